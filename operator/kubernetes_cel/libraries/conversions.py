"""Conversions between types: `int("5")`, `string(1.5)`, `timestamp("...")`, `type(x)`, `dyn(x)` and the like.

What a text must look like is what Go's parsers take, which is more than CEL's own literals in some places
(`+5`, `0x1p-2`, `Inf`) and less in others (no `0x10` for int, no spaces).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes_cel import costs, types
from kubernetes_cel.costs import CallEstimate, CostModel, Node, Range, SizeHint, estimated_size
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.libraries.gotext import format_g, parse_float, parse_int
from kubernetes_cel.libraries.time import (
    duration_of_text,
    duration_text,
    timestamp_of_seconds,
    timestamp_of_text,
    timestamp_text,
)
from kubernetes_cel.types import Type
from kubernetes_cel.values import MAX_INT, MAX_UINT, MIN_INT, Duration, Timestamp, Uint, type_name, type_of


def _unconvertible(source: str, target: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{source}' to '{target}'")


def _parsed(target: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = parse(text)
        if value is None:
            raise _unconvertible("string", target)
        return value

    return convert


string_to_int = _parsed("int", lambda text: parse_int(text, MIN_INT, MAX_INT))
string_to_double = _parsed("double", parse_float)
string_to_bool = _parsed(
    "bool",
    lambda text: {
        **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
        **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
    }.get(text),
)


def _parse_uint(text: str) -> Uint | None:
    value = parse_int(text, 0, MAX_UINT)
    return None if value is None else Uint(value)


string_to_uint = _parsed("uint", _parse_uint)


def double_to_int(value: float) -> int:
    """Towards zero; the ends of the range are already too far."""
    if math.isnan(value) or not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def double_to_uint(value: float) -> Uint:
    """Towards zero."""
    if math.isnan(value) or not 0 <= value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return Uint(int(value))


def uint_to_int(value: Uint) -> int:
    """The same number, if an int can hold it."""
    if value > MAX_INT:
        raise EvaluationError("integer overflow")
    return int(value)


def int_to_uint(value: int) -> Uint:
    """The same number, if a uint can hold it."""
    if value < 0:
        raise EvaluationError("unsigned integer overflow")
    return Uint(value)


def bytes_to_string(value: bytes) -> str:
    """Decoded as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def to_string(value: Any) -> str:
    """`string(value)` for every type of the standard overloads."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is Uint:
        return str(int(value))
    if kind is float:
        return format_g(value)
    if kind is bytes:
        return bytes_to_string(value)
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is Duration:
        return duration_text(value)
    if kind is Type:
        return str(value.name)
    raise no_such_overload("string", (type_name(value),))


def _same(value: Any) -> Any:
    return value


def _string_estimate(
    hint: SizeHint, overload: str, _: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if overload != "bytes_to_string" or len(args) != 1:
        return None
    size = estimated_size(hint, args[0])
    return CallEstimate(size.scaled(costs.TRAVERSAL_FACTOR), Range(size.min // 4, size.max))


def _bytes_estimate(
    hint: SizeHint, overload: str, _: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if overload != "string_to_bytes" or len(args) != 1:
        return None
    size = estimated_size(hint, args[0])
    most = size.max * 4 % 2**64  # upstream's arithmetic wraps here
    return CallEstimate(size.scaled(costs.TRAVERSAL_FACTOR), Range(size.min, most))


def _traverse(overload: str, args: Sequence[Any], _: Any) -> int | None:
    if overload in ("bytes_to_string", "string_to_bytes"):
        return costs.traversal(costs.plain_size(args[0]))
    return None


_STRING_COST = CostModel(_string_estimate, _traverse)
_BYTES_COST = CostModel(_bytes_estimate, _traverse)
_A = types.param("A")


def _function(
    name: str, result: Type, overloads: Sequence[tuple[str, Type, Any]], cost: CostModel | None = None
) -> Function:
    return Function(name, tuple(Overload(i, (arg,), result, impl) for i, arg, impl in overloads), cost=cost)


LIBRARY = Library(
    "conversions",
    functions=(
        _function("type", types.type_of_type(_A), [("type", _A, type_of)]),
        _function("dyn", types.dyn, [("to_dyn", _A, _same)]),
        _function(
            "bool",
            types.bool_,
            [("bool_to_bool", types.bool_, _same), ("string_to_bool", types.string, string_to_bool)],
        ),
        _function(
            "bytes",
            types.bytes_,
            [
                ("bytes_to_bytes", types.bytes_, _same),
                ("string_to_bytes", types.string, lambda text: text.encode("utf-8", "surrogatepass")),
            ],
            _BYTES_COST,
        ),
        _function(
            "double",
            types.double,
            [
                ("double_to_double", types.double, _same),
                ("int64_to_double", types.int_, float),
                ("string_to_double", types.string, string_to_double),
                ("uint64_to_double", types.uint, float),
            ],
        ),
        _function(
            "duration",
            types.duration,
            [
                ("duration_to_duration", types.duration, _same),
                ("string_to_duration", types.string, _parsed("google.protobuf.Duration", duration_of_text)),
            ],
        ),
        _function(
            "int",
            types.int_,
            [
                ("int64_to_int64", types.int_, _same),
                ("double_to_int64", types.double, double_to_int),
                ("duration_to_int64", types.duration, lambda value: value.nanos),
                ("string_to_int64", types.string, string_to_int),
                ("timestamp_to_int64", types.timestamp, lambda value: value.seconds),
                ("uint64_to_int64", types.uint, uint_to_int),
            ],
        ),
        _function(
            "string",
            types.string,
            [
                ("string_to_string", types.string, _same),
                ("bool_to_string", types.bool_, to_string),
                ("bytes_to_string", types.bytes_, bytes_to_string),
                ("double_to_string", types.double, format_g),
                ("duration_to_string", types.duration, duration_text),
                ("int64_to_string", types.int_, str),
                ("timestamp_to_string", types.timestamp, timestamp_text),
                ("uint64_to_string", types.uint, to_string),
            ],
            _STRING_COST,
        ),
        _function(
            "timestamp",
            types.timestamp,
            [
                ("timestamp_to_timestamp", types.timestamp, _same),
                ("int64_to_timestamp", types.int_, timestamp_of_seconds),
                (
                    "string_to_timestamp",
                    types.string,
                    _parsed("google.protobuf.Timestamp", timestamp_of_text),
                ),
            ],
        ),
        _function(
            "uint",
            types.uint,
            [
                ("uint64_to_uint64", types.uint, _same),
                ("double_to_uint64", types.double, double_to_uint),
                ("int64_to_uint64", types.int_, int_to_uint),
                ("string_to_uint64", types.string, string_to_uint),
            ],
        ),
    ),
)
