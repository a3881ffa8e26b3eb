"""Literals of protobuf's well-known types: types, values, errors and costs as cel-go 0.29.2 has them."""

from __future__ import annotations

from typing import Any

import pytest

from kubernetes_cel import CheckError, Environment, EvaluationError
from kubernetes_cel.libraries import ADMISSION
from kubernetes_cel.values import Duration, ListView, Timestamp, Uint

ENVIRONMENT = Environment.admission()
OBJECT = {"s": "abc", "l": [1, "a", None, {"q": 2.5}]}


def message(text: str) -> str:
    return f"google.protobuf.{text}"


@pytest.mark.parametrize(
    ("literal", "static", "value"),
    [
        ("BoolValue{}", "wrapper(bool)", False),
        ("BytesValue{value: b'a'}", "wrapper(bytes)", b"a"),
        ("DoubleValue{value: 1.1}", "wrapper(double)", 1.1),
        ("FloatValue{value: 1.1}", "wrapper(double)", 1.100000023841858),
        ("FloatValue{value: -1e39}", "wrapper(double)", float("-inf")),
        ("Int32Value{value: -2147483648}", "wrapper(int)", -(2**31)),
        ("Int64Value{}", "wrapper(int)", 0),
        ("StringValue{value: object.s}", "wrapper(string)", "abc"),
        ("StringValue{value: dyn(quantity('1.50'))}", "wrapper(string)", "1500m"),
        ("UInt32Value{value: 4294967295u}", "wrapper(uint)", Uint(2**32 - 1)),
        ("Int32Value{?value: optional.none()}", "wrapper(int)", 0),
        ("Int32Value{value: 1, ?value: optional.none()}", "wrapper(int)", 0),
        ("Int32Value{?value: optional.of(7)}", "wrapper(int)", 7),
        ("Struct{fields: {'a': 1}}", "map(string, dyn)", {"a": 1.0}),
        ("ListValue{values: object.l}", "list(dyn)", [1.0, "a", None, {"q": 2.5}]),
        ("ListValue{values: [9007199254740992]}", "list(dyn)", ["9007199254740992"]),
        ("ListValue{values: [b'x']}", "list(dyn)", ["eA=="]),
        ("ListValue{values: [duration('1.5s')]}", "list(dyn)", ["1.5s"]),
        ("ListValue{values: [[1u], [2u]]}", "list(dyn)", [[1.0], [2.0]]),
        ("Value{}", "dyn", None),
        ("Value{null_value: google.protobuf.NullValue.NULL_VALUE}", "dyn", None),
        ("Value{number_value: 2.0}", "dyn", 2.0),
        ("Value{struct_value: {'k': [optional.of(3)]}}", "dyn", {"k": [3.0]}),
    ],
)
def test_values(literal: str, static: str, value: Any) -> None:
    program = ENVIRONMENT.compile(message(literal))
    assert program.output_type == static
    result = program.evaluate({"object": OBJECT})
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected"),
    [
        (1, -1, 999_999_999),
        (9223372036, 999_999_999, 2**63 - 1),
        (9223372037, -999_999_999, 2**63 - 1),
        (-(2**63), 0, -(2**63)),
    ],
)
def test_durations_end_at_the_longest(seconds: int, nanos: int, expected: int) -> None:
    literal = message(f"Duration{{seconds: {seconds}, nanos: {nanos}}}")
    value = ENVIRONMENT.compile(literal).evaluate({})
    assert isinstance(value, Duration)
    assert value.nanos == expected


def test_timestamps() -> None:
    value = ENVIRONMENT.compile(message("Timestamp{seconds: 5, nanos: -1}")).evaluate({})
    assert isinstance(value, Timestamp)
    assert (value.seconds, value.nanos) == (4, 999_999_999)


@pytest.mark.parametrize(
    "expression",
    [
        "google.protobuf.Int32Value{value: 1} + 1 == 2",
        "google.protobuf.Int32Value{} != null",
        "google.protobuf.Int32Value{value: 1} == google.protobuf.Int64Value{value: 1}",
        "(true ? google.protobuf.StringValue{value: 'a'} : 'b') == 'a'",
        "google.protobuf.Struct{fields: {'a': 1}}.a == 1",
        "google.protobuf.Empty{} == google.protobuf.Empty{}",
        "type(google.protobuf.Empty{}) == google.protobuf.Empty",
        "type(google.protobuf.Int32Value{}) == int",
        "!optional.ofNonZeroValue(google.protobuf.Empty{}).hasValue()",
        "google.protobuf.NullValue.NULL_VALUE == 0",
        ".google.protobuf.Value{} == null",
    ],
)
def test_what_holds(expression: str) -> None:
    assert ENVIRONMENT.compile(expression).evaluate({"object": OBJECT}) is True


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("google.protobuf.Int32Value{foo: 1}", "undefined field 'foo'"),
        (
            "google.protobuf.Int32Value{value: 'a'}",
            "expected type of field 'value' is 'int' but provided type is 'string'",
        ),
        ("google.protobuf.Int32Value{?value: 1}", "expected type 'optional_type(int)' but found 'int'"),
        (
            "google.protobuf.Int32Value{}.value",
            "type 'wrapper(int)' does not support field selection",
        ),
        ("[google.protobuf.Int32Value{}, null]", "expected type 'wrapper(int)' but found 'null'"),
        ("google.protobuf.Int32Value{} == google.protobuf.UInt32Value{}", "found no matching overload"),
        ("google.protobuf.FieldMask{}", "undeclared reference to 'google.protobuf.FieldMask'"),
        ("google.protobuf.NullValue{}", "undeclared reference to 'google.protobuf.NullValue'"),
        ("int{}", "'int' is not a message type"),
        ("google.protobuf.Int32Value == int", "is no value"),
    ],
)
def test_what_does_not_compile(expression: str, problem: str) -> None:
    with pytest.raises(CheckError) as caught:
        ENVIRONMENT.compile(expression)
    assert problem in caught.value.message


@pytest.mark.parametrize(
    "literal",
    [
        "Int32Value{value: 2147483648}",
        "UInt32Value{value: 4294967296u}",
        "Int32Value{value: dyn(null)}",
        "Value{number_value: dyn(1)}",
        "Value{null_value: dyn(null)}",
        "Value{list_value: dyn({'a': 1})}",
        "Struct{fields: dyn({1: 2})}",
        "ListValue{values: [quantity('1')]}",
        "ListValue{values: [optional.none()]}",
        "Int32Value{?value: dyn(1)}",
        "Timestamp{seconds: 253402300800}",
        "Any{}",
        "Any{type_url: 'type.googleapis.com/google.protobuf.Int32Value', value: b'\\x08\\x01'}",
    ],
)
def test_what_fails_costs_the_same(literal: str) -> None:
    program = ENVIRONMENT.compile(message(literal))
    outcome = program.run({"object": OBJECT})
    assert isinstance(outcome.error, EvaluationError)
    assert outcome.cost in range(40, 52)


def test_costs() -> None:
    program = ENVIRONMENT.compile("google.protobuf.ListValue{values: [object.s]}")
    assert program.estimate == (51, 51)
    assert program.run({"object": OBJECT}).cost == 52


def test_conversions_of_shared_lists_end() -> None:
    shared: list[Any] = [1]
    for _ in range(100):
        shared = [shared, shared]
    program = ENVIRONMENT.compile("google.protobuf.ListValue{values: object}.size()")
    assert program.evaluate({"object": shared}) == 2


def test_conversions_of_deep_lists_end() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    program = ENVIRONMENT.compile("google.protobuf.ListValue{values: object}.size()")
    assert program.evaluate({"object": deep}) == 1


def test_long_lists_are_not_converted() -> None:
    doubled: Any = [1] * 100
    for _ in range(40):
        doubled = ListView(doubled, doubled)
    program = ENVIRONMENT.compile("google.protobuf.ListValue{values: object}.size()")
    outcome = program.run({"object": doubled})
    assert outcome.error is not None
    assert "too large" in str(outcome.error)


def test_names_are_looked_up_in_the_container() -> None:
    environment = Environment({}, ADMISSION, container="google.protobuf")
    assert environment.compile("Int32Value{value: 1} == 1").evaluate({}) is True
    with pytest.raises(CheckError, match=r"undeclared reference to 'x' \(in container 'google.protobuf'\)"):
        environment.compile("x")
