"""Values of message literals: what is in the fields, converted as protobuf stores it, and unwrapped again.

A wrapper is its value, a `Struct` a map, a `ListValue` a list, and so on, so nothing of the message is left
but what storing it changed: 32-bit ranges, the precision of a float, and JSON's types in `Struct`,
`ListValue` and `Value`, where every number is a double (or a string, when a double cannot hold it).
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries.network import CIDR, IP
from kubernetes_cel.libraries.quantity import Quantity
from kubernetes_cel.libraries.semver import Semver
from kubernetes_cel.libraries.time import duration_text, timestamp_text
from kubernetes_cel.libraries.urls import URL
from kubernetes_cel.messages import TYPES
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.values import (
    EMPTY,
    MAX_INT,
    MIN_INT,
    MISSING,
    Duration,
    ListView,
    MapView,
    Optional,
    Timestamp,
    Uint,
    size_of_list,
    type_name,
)

#: Counts what was built, and ends the evaluation when it is too much.
Count: TypeAlias = Callable[[int], None]
#: Makes a message of the fields that were set, or raises `EvaluationError`.
Construct: TypeAlias = Callable[[Mapping[str, Any], Count], Any]
_Convert: TypeAlias = Callable[[Any, Count], Any]

#: What an element of a list or map counts for when it is converted: upstream charges 40 for any number.
_WEIGHT = 32
_SAFE = 2**53 - 1
#: Types of Kubernetes' libraries that upstream takes for their text where a string is stored.
_TEXTS = (CIDR, IP, Quantity, Semver, URL)


def _refused(value: Any, wanted: str) -> EvaluationError:
    return EvaluationError(f"unsupported type conversion from '{type_name(value)}' to '{wanted}'")


def _unwrapped(value: Any) -> Any:
    """The value of an optional: upstream converts it in its place."""
    while type(value) is Optional:
        value = value.get()
    return value


def _exactly(kind: type, wanted: str) -> _Convert:
    def convert(value: Any, count: Count) -> Any:
        value = _unwrapped(value)
        if type(value) is not kind:
            raise _refused(value, wanted)
        return value

    return convert


def _in_range(convert: _Convert, low: int, high: int, wanted: str) -> _Convert:
    def check(value: Any, count: Count) -> Any:
        number = convert(value, count)
        if not low <= number <= high:
            raise EvaluationError(f"range error converting {number} to {wanted}")
        return number

    return check


_bool = _exactly(bool, "bool")
_int64 = _exactly(int, "int64")
_int32 = _in_range(_int64, -(2**31), 2**31 - 1, "int32")
_uint64 = _exactly(Uint, "uint64")
_uint32 = _in_range(_uint64, 0, 2**32 - 1, "uint32")
_double = _exactly(float, "double")


def _string(value: Any, count: Count) -> str:
    value = _unwrapped(value)
    if type(value) is str:
        return value
    if isinstance(value, _TEXTS):
        return str(value)
    raise _refused(value, "string")


def _bytes(value: Any, count: Count) -> bytes:
    value = _unwrapped(value)
    if type(value) is bytes:
        return value
    if isinstance(value, list | ListView):  # a list of small uints is as good
        count(size_of_list(value) * _WEIGHT)
        if all(type(item) is Uint and item < 256 for item in value):
            return bytes(value)
    raise _refused(value, "bytes")


def _float(value: Any, count: Count) -> float:
    number: float = _double(value, count)
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


# -- JSON


def _json_scalar(value: Any) -> Any:
    """A value as JSON has it, MISSING for what contains others or cannot be converted."""
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int or kind is Uint:
        return float(value) if -_SAFE <= value <= _SAFE else str(int(value))
    if kind is bytes:
        return base64.b64encode(value).decode()
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is Duration:
        return duration_text(value)
    return MISSING


def _convert_json(value: Any, count: Count, known: dict[int, tuple[Any, Any]]) -> Work[Any]:
    value = _unwrapped(value)
    converted = _json_scalar(value)
    if converted is not MISSING:
        return converted
    if id(value) in known:  # lists that contain the same list many times are converted once
        return known[id(value)][1]
    if isinstance(value, list | ListView):
        count(size_of_list(value) * _WEIGHT)
        converted = []
        for item in value:
            scalar = _json_scalar(item)
            if scalar is MISSING:
                scalar = yield _convert_json(item, count, known)
            converted.append(scalar)
    elif isinstance(value, dict | MapView):
        count(len(value) * _WEIGHT)
        converted = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _refused(key, "string")
            scalar = _json_scalar(item)
            if scalar is MISSING:
                scalar = yield _convert_json(item, count, known)
            converted[key] = scalar
    elif value is EMPTY:
        return {}
    else:
        raise _refused(value, "google.protobuf.Value")
    known[id(value)] = value, converted
    return converted


def _json(value: Any, count: Count) -> Any:
    return drive(_convert_json(value, count, {}))


def _repeated(value: Any, count: Count) -> Any:
    if not isinstance(value, list | ListView):
        raise _refused(value, "google.protobuf.ListValue")
    return _json(value, count)


def _entries(value: Any, count: Count) -> Any:
    if not isinstance(value, dict | MapView):
        raise _refused(value, "google.protobuf.Struct")
    return _json(value, count)


def _list_value(value: Any, count: Count) -> Any:
    value = _unwrapped(value)
    if isinstance(value, dict | MapView) and len(value) == 0:  # upstream fills a list's fields from a map's
        return []
    return _repeated(value, count)


def _struct_value(value: Any, count: Count) -> Any:
    return _entries(_unwrapped(value), count)


# -- messages


def _single(field: str, convert: _Convert, unset: Any) -> Construct:
    """A message of one field that is as good as the field's value."""

    def construct(values: Mapping[str, Any], count: Count) -> Any:
        return convert(values[field], count) if field in values else unset

    return construct


def _enum(value: Any, count: Count) -> None:
    _int32(value, count)


_KINDS: Mapping[str, _Convert] = {
    "null_value": _enum,
    "number_value": _double,
    "string_value": _string,
    "bool_value": _bool,
    "struct_value": _struct_value,
    "list_value": _list_value,
}


def _value(values: Mapping[str, Any], count: Count) -> Any:
    """Of several kinds the last one written stays (upstream: any of them)."""
    result = None
    for field, value in values.items():
        result = _KINDS[field](value, count)
    return result


def _span(values: Mapping[str, Any], count: Count) -> tuple[int, int]:
    seconds = _int64(values.get("seconds", 0), count)
    return seconds, _int32(values.get("nanos", 0), count)


def _duration(values: Mapping[str, Any], count: Count) -> Duration:
    """Beyond int64 nanoseconds it is the longest there is."""
    seconds, nanos = _span(values, count)
    whole = seconds * 10**9
    total = whole + nanos if MIN_INT <= whole <= MAX_INT else whole
    return Duration(min(max(total, MIN_INT), MAX_INT))


def _timestamp(values: Mapping[str, Any], count: Count) -> Timestamp:
    """Outside of the years 1 to 9999 it is an error; upstream makes one that nothing else can."""
    seconds, nanos = _span(values, count)
    seconds, nanos = seconds + nanos // 10**9, nanos % 10**9
    if not Timestamp.MIN_SECONDS <= seconds <= Timestamp.MAX_SECONDS:
        raise EvaluationError("range error: a timestamp is outside of the years 1 to 9999")
    return Timestamp(seconds, nanos)


def _any(values: Mapping[str, Any], count: Count) -> Any:
    """Always an error: upstream unpacks what is inside, if it is a well-known type, and nothing else."""
    url = _string(values.get("type_url", ""), count)
    _bytes(values.get("value", b""), count)
    name = url.rpartition("/")[2]
    if name in TYPES:
        raise EvaluationError(f"a packed '{name}' cannot be unpacked here: write the value itself")
    raise EvaluationError(f"unknown type: '{name}'")


#: How each message is made, by its name.
CONSTRUCTORS: Mapping[str, Construct] = {
    "google.protobuf.Any": _any,
    "google.protobuf.BoolValue": _single("value", _bool, False),
    "google.protobuf.BytesValue": _single("value", _bytes, b""),
    "google.protobuf.DoubleValue": _single("value", _double, 0.0),
    "google.protobuf.Duration": _duration,
    "google.protobuf.Empty": lambda values, count: EMPTY,
    "google.protobuf.FloatValue": _single("value", _float, 0.0),
    "google.protobuf.Int32Value": _single("value", _int32, 0),
    "google.protobuf.Int64Value": _single("value", _int64, 0),
    "google.protobuf.ListValue": _single("values", _repeated, []),
    "google.protobuf.StringValue": _single("value", _string, ""),
    "google.protobuf.Struct": _single("fields", _entries, {}),
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.UInt32Value": _single("value", _uint32, Uint(0)),
    "google.protobuf.UInt64Value": _single("value", _uint64, Uint(0)),
    "google.protobuf.Value": _value,
}
