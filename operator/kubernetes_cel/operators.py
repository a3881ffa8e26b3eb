"""Arithmetic and ordering on run-time values, with upstream's overflow rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.values import (
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    Duration,
    ListView,
    MapView,
    Timestamp,
    Uint,
    compare,
    concatenate,
    equal,
    size_or_none,
)

_NANOS = 1_000_000_000


def _int(value: int) -> int:
    if MIN_INT <= value <= MAX_INT:
        return value
    raise EvaluationError("integer overflow")


def _uint(value: int) -> Uint:
    if 0 <= value <= MAX_UINT:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def shift(t: Timestamp, nanos: int) -> Timestamp:
    """A timestamp moved by nanoseconds, with the same offset."""
    seconds, rest = divmod(t.nanos + nanos, _NANOS)
    seconds += t.seconds
    if not Timestamp.MIN_SECONDS <= seconds <= Timestamp.MAX_SECONDS:
        raise EvaluationError("timestamp overflow")
    return Timestamp(seconds, rest, t.offset)


def add(a: Any, b: Any) -> Any:
    """a + b"""
    ka, kb = type(a), type(b)
    if ka is str and kb is str:
        return a + b
    if ka is int and kb is int:
        return _int(a + b)
    if ka is float and kb is float:
        return a + b
    if ka is Uint and kb is Uint:
        return _uint(int(a) + int(b))
    if (ka is list or ka is ListView) and (kb is list or kb is ListView):
        return concatenate(a, b)
    if ka is bytes and kb is bytes:
        return a + b
    if ka is Duration:
        if kb is Duration:
            return Duration(_int(a.nanos + b.nanos))
        if kb is Timestamp:
            return shift(b, a.nanos)
    elif ka is Timestamp and kb is Duration:
        return shift(a, b.nanos)
    raise no_such_overload()


def subtract(a: Any, b: Any) -> Any:
    """a - b"""
    ka, kb = type(a), type(b)
    if ka is int and kb is int:
        return _int(a - b)
    if ka is float and kb is float:
        return a - b
    if ka is Uint and kb is Uint:
        return _uint(int(a) - int(b))
    if ka is Duration and kb is Duration:
        return Duration(_int(a.nanos - b.nanos))
    if ka is Timestamp:
        if kb is Duration:
            return shift(a, _int(-b.nanos))
        if kb is Timestamp:
            return Duration(_int((a.seconds - b.seconds) * _NANOS + a.nanos - b.nanos))
    raise no_such_overload()


def multiply(a: Any, b: Any) -> Any:
    """a * b"""
    ka, kb = type(a), type(b)
    if ka is int and kb is int:
        return _int(a * b)
    if ka is float and kb is float:
        return a * b
    if ka is Uint and kb is Uint:
        return _uint(int(a) * int(b))
    raise no_such_overload()


def divide(a: Any, b: Any) -> Any:
    """a / b: integers truncate towards zero, doubles follow IEEE 754."""
    ka, kb = type(a), type(b)
    if ka is float and kb is float:
        return _divide_doubles(a, b)
    if ka is kb and (ka is int or ka is Uint):
        if b == 0:
            raise EvaluationError("division by zero")
        if ka is Uint:
            return Uint(int(a) // int(b))
        quotient = abs(a) // abs(b)
        return _int(quotient if (a < 0) is (b < 0) else -quotient)
    raise no_such_overload()


def _divide_doubles(a: float, b: float) -> float:
    if b != 0.0:
        return a / b
    if a == 0.0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def modulo(a: Any, b: Any) -> Any:
    """a % b, with the sign of a."""
    ka, kb = type(a), type(b)
    if ka is kb and (ka is int or ka is Uint):
        if b == 0:
            raise EvaluationError("modulus by zero")
        if ka is Uint:
            return Uint(int(a) % int(b))
        if a == MIN_INT and b == -1:
            raise EvaluationError("integer overflow")
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    raise no_such_overload()


def negate(a: Any) -> Any:
    """-a"""
    kind = type(a)
    if kind is int:
        return _int(-a)
    if kind is float:
        return -a
    if kind is Duration:
        return Duration(_int(-a.nanos))
    raise no_such_overload("-_")


def logical_not(a: Any) -> bool:
    """!a"""
    if a is True:
        return False
    if a is False:
        return True
    raise no_such_overload()


def ordering(accept: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    """One of the four comparisons, given which results of `compare` it accepts."""

    def test(a: Any, b: Any) -> bool:
        return accept(compare(a, b))

    return test


def _same(element: Any, item: Any) -> bool:
    try:
        return equal(element, item)
    except EvaluationError:
        return False


def contains(element: Any, container: Any) -> bool:
    """element in container"""
    kind = type(container)
    if kind is dict:
        return type(element) is str and element in container
    if kind is list or kind is ListView:
        return any(_same(element, item) for item in container)
    if isinstance(container, MapView):
        return container.contains(element)
    raise no_such_overload()


def size(value: Any) -> int:
    """size(value)"""
    if type(value) is ListView:
        return _int(value.counted)
    known = size_or_none(value)
    if known is None:
        raise no_such_overload("size")
    return known
