"""What extractor authors rely on: missing fields, absorbed errors, branches, results that are no strings."""

from __future__ import annotations

from typing import Any

import pytest

from kubernetes_cel import CheckError, Environment, EvaluationError, NonStringError, from_json

ENVIRONMENT = Environment.admission()


def run(expression: str, value: Any) -> Any:
    return ENVIRONMENT.compile(expression, "string").evaluate({"object": from_json(value)})


class TestMissingFields:
    """E-01: comparing with a field that is not there is an error, `has` answers."""

    def test_reading_one_is_an_error(self) -> None:
        with pytest.raises(EvaluationError, match="no such key: ibPKey"):
            run("object.ibPKey", {})

    def test_comparing_one_is_an_error_and_not_false(self) -> None:
        with pytest.raises(EvaluationError, match="no such key: ibPKey"):
            run('object.ibPKey == "x" ? "y" : ""', {})

    def test_has_says_no(self) -> None:
        assert run('has(object.ibPKey) ? object.ibPKey : ""', {}) == ""

    def test_null_is_there_but_no_string(self) -> None:
        value = {"ibPKey": None}
        assert run('has(object.ibPKey) ? "y" : "n"', value) == "y"
        assert run('object.ibPKey == "x" ? "y" : ""', value) == ""
        with pytest.raises(NonStringError, match="null_type"):
            run("object.ibPKey", value)

    def test_has_looks_one_level_deep_only(self) -> None:
        with pytest.raises(EvaluationError):
            run('has(object.a.b) ? "y" : "n"', {})
        assert run('has(object.a.b) ? "y" : "n"', {"a": {}}) == "n"


class TestAbsorption:
    """E-02: a decisive operand hides an error on either side; untaken branches do not run."""

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ('object.kind == "NICConfig" && object.subnetID != "" ? object.subnetID : ""', ""),
            ('object.subnetID != "" && object.kind == "NICConfig" ? object.subnetID : ""', ""),
            ('object.subnetID != "" || true ? "v" : ""', "v"),
            ('true || object.subnetID != "" ? "v" : ""', "v"),
            ('false ? object.nope : ""', ""),
        ],
    )
    def test_decisive_operands(self, expression: str, expected: str) -> None:
        assert run(expression, {"kind": "Other"}) == expected

    def test_exists_goes_on_after_an_error(self) -> None:
        value = {"list": [{"other": 1}, {"name": "eth1"}]}
        expression = 'object.list.exists(o, o.missing == "x" || o.name == "eth1") ? "y" : ""'
        assert run(expression, value) == "y"

    def test_an_error_stays_when_nothing_decides(self) -> None:
        with pytest.raises(EvaluationError, match="no such key: missing"):
            run('object.list.exists(o, o.missing == "x") ? "y" : ""', {"list": [{}, {}]})

    def test_operands_must_be_bool(self) -> None:
        with pytest.raises(EvaluationError, match="no such overload"):
            run('object.subnetID && true ? "y" : ""', {"subnetID": "a"})


class TestTypedSurprises:
    """G-01: what YAML made of an unquoted identifier is no key; quoted ones are keys as they stand."""

    @pytest.mark.parametrize("value", [32769, False, 8, 1.5, None, ["x"], {"a": "b"}])
    def test_other_types_are_errors(self, value: Any) -> None:
        with pytest.raises(NonStringError):
            run("object.key", {"key": value})

    @pytest.mark.parametrize(
        "value",
        ["0x8001", "0X8001", "32769", " a", "a ", "A", "e\u0301", "\u00e9", "line\nbreak", "x" * (1 << 20)],
    )
    def test_texts_come_through_untouched(self, value: str) -> None:
        assert run("object.key", {"key": value}) == value

    def test_static_types_are_refused_while_compiling(self) -> None:
        for expression in ("1", "true", "[object.a]", "object.a == 1", "size(object.a)", "null"):
            with pytest.raises(CheckError, match="must evaluate to string"):
                ENVIRONMENT.compile(expression, "string")


class TestNumbers:
    """Numbers of JSON: int where it fits int64, double otherwise; compared by value across types."""

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("object.n == 5.0", True),
            ("object.n == 5u", True),
            ("object.n < 5.5", True),
            ("object.n in [5.0]", True),
            ("double('NaN') in [double('NaN')]", False),
            ("object.t == 1", False),
            ("object.n == '5'", False),
            ("object.huge > object.big", True),
            ("type(object.huge) == double && type(object.big) == int", True),
            ("object.list[0.0] == 1", True),
            ("[1, 2] == object.list", True),
            ("{1: 'a'}[dyn(1.0)] == 'a'", True),
            ("2 in object.list && 2.0 in object.list && !('2' in object.list)", True),
        ],
    )
    def test_across_types(self, expression: str, expected: bool) -> None:
        value = from_json({"n": 5, "t": True, "big": 2**63 - 1, "huge": 2**64, "list": [1, 2]})
        assert ENVIRONMENT.compile(expression).evaluate({"object": value}) is expected

    @pytest.mark.parametrize(
        ("expression", "message"),
        [
            ("9223372036854775807 + object.one", "integer overflow"),
            ("-9223372036854775808 - object.one", "integer overflow"),
            ("1 / (object.one - 1)", "division by zero"),
            ("1 % (object.one - 1)", "modulus by zero"),
            ("uint(0 - object.one)", "unsigned integer overflow"),
            ("object.list[2]", "index out of bounds: 2"),
            ("object.list[-1]", "index out of bounds: -1"),
            ("object[5]", "no such key: 5"),
            ("object.one + 'a'", "no such overload"),
        ],
    )
    def test_errors(self, expression: str, message: str) -> None:
        with pytest.raises(EvaluationError, match=message):
            ENVIRONMENT.compile(expression).evaluate({"object": {"one": 1, "list": [1, 2]}})

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [("-7 / 2", -3), ("-7 % 2", -1), ("7 / -2", -3), ("- -1", 1), ("--1", 1), ("---1", -1)],
    )
    def test_integers_truncate_and_signs_pair(self, expression: str, expected: int) -> None:
        assert ENVIRONMENT.compile(expression).evaluate({}) == expected


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("labelValue().validate('{63}a')", "must be no more than 63 bytes"),
        ("qualifiedName().validate('{63}a')", "name part must be no more than 63 bytes"),
        ("qualifiedName().validate('{253}a/b')", "prefix part must be no more than 253 bytes"),
        ("dns1123Subdomain().validate('{253}a')", "must be no more than 253 characters"),
        ("dns1123Label().validate('{63}a')", "must be no more than 63 characters"),
    ],
)
def test_lengths_are_told_as_kubernetes_tells_them(call: str, problem: str) -> None:
    """It has moved some checks to a package with other words; the answers are cel-go's for 1.36 and 1.37."""
    expression = f"format.{call}.value()[0]".replace("{63}", "a" * 63).replace("{253}", "a" * 253)
    assert run(expression, {}) == problem
