"""`quantity("1.5Gi")`: Kubernetes resource quantities, exact.

Upstream holds a quantity either as an int64 with a decimal scale or as an arbitrary-precision decimal,
and some answers depend on which (`isInteger`, `asInteger`, `asApproximateFloat`), so the difference is
kept here as well.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from kubernetes_cel import costs, types
from kubernetes_cel.costs import NOMINAL
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.libraries.gotext import parse_digits, parse_int, print_digits
from kubernetes_cel.types import Type
from kubernetes_cel.values import MAX_INT, MIN_INT

QUANTITY_TYPE = types.struct("kubernetes.Quantity")

_DECIMAL_SI, _BINARY_SI, _EXPONENT = "DecimalSI", "BinarySI", "DecimalExponent"
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_OF = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_OF = {exponent: suffix for suffix, exponent in _BINARY.items()}
_TEXT = re.compile(r"([+-]?)(0*)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)\Z")
#: Scales further apart than this are not brought together; upstream would run out of memory.
_MAX_SHIFT = 20_000
#: Digits that are read.
_MAX_DIGITS = 100_000
_INVALID = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class Quantity:
    """`value * 10**scale`; `big` says that upstream would hold it in arbitrary precision.

    `computed` marks results of `add` and `sub`: upstream's == knows them on its left side only.
    """

    __slots__ = ("big", "computed", "form", "scale", "text", "value")
    cel_type: ClassVar[Type] = QUANTITY_TYPE

    def __init__(
        self, value: int, scale: int, form: str, *, big: bool = False, text: str = "", computed: bool = False
    ) -> None:
        self.value = value
        self.scale = scale
        self.form = form
        self.big = big
        self.text = text
        self.computed = computed

    def compare(self, other: Quantity) -> int:
        """-1, 0 or 1 by value."""
        a, b = self.value, other.value
        if self.scale == other.scale or a == 0 or b == 0 or (a < 0) != (b < 0):
            return (a > b) - (a < b)
        # Compare magnitudes first, so that scales far apart never meet.
        sign = 1 if a > 0 else -1
        size_a, size_b = _digits(a) + self.scale, _digits(b) + other.scale
        if size_a != size_b:
            return sign if size_a > size_b else -sign
        low = min(self.scale, other.scale)
        a, b = _shifted(a, self.scale - low), _shifted(b, other.scale - low)
        return (a > b) - (a < b)

    def as_int(self) -> int | None:
        """The value as int64, or None where upstream finds none without arithmetic in arbitrary precision."""
        if self.big or self.scale < 0 or (self.scale > 18 and self.value not in (0, 1)):
            return None
        if self.scale > 18:
            return 0 if self.value == 0 else None
        value = _shifted(self.value, self.scale)
        if self.value == MIN_INT and self.scale > 0:
            return None
        return value if MIN_INT <= value <= MAX_INT else None

    def cel_equal(self, other: Any) -> bool:
        """The same value; anything else cannot be compared."""
        if type(other) is not Quantity or other.computed:
            raise no_such_overload()
        return self.compare(other) == 0

    def __str__(self) -> str:
        return self.text or self._canonical()

    def __repr__(self) -> str:
        return f"Quantity({self})"

    def _canonical(self) -> str:
        if self.value == 0:
            return "0"
        form = self.form
        if form == _BINARY_SI:
            small = Quantity(abs(self.value), self.scale, form).compare(Quantity(1024, 0, form)) < 0
            if small or not self._is_whole():
                form = _DECIMAL_SI
        if form != _BINARY_SI:
            value, exponent = _without_tens(abs(self.value), self.scale)
            value *= 10 ** (exponent % 3)
            exponent -= exponent % 3
            if form == _DECIMAL_SI:
                suffix = _DECIMAL_OF.get(exponent, "")
            else:
                suffix = f"e{exponent}" if exponent else ""
        else:
            value = (
                abs(self.value) * 10**self.scale if self.scale >= 0 else abs(self.value) // 10**-self.scale
            )
            exponent = 0
            while value % 1024 == 0:
                value //= 1024
                exponent += 10
            suffix = _BINARY_OF.get(exponent, "")
        return f"{'-' if self.value < 0 else ''}{print_digits(value)}{suffix}"

    def _is_whole(self) -> bool:
        return self.scale >= 0 or (-self.scale < _MAX_SHIFT and self.value % 10**-self.scale == 0)


def _shifted(value: int, places: int) -> int:
    factor: int = 10**places
    return value * factor


def _digits(value: int) -> int:
    """Number of decimal digits."""
    value = abs(value)
    guess = max(int(value.bit_length() * 0.30102999566398) - 1, 0)
    power = 10**guess
    while power <= value:
        power *= 10
        guess += 1
    return guess


def _without_tens(value: int, exponent: int) -> tuple[int, int]:
    while value % 10 == 0:
        value //= 10
        exponent += 1
    return value, exponent


def parse_quantity(text: str) -> Quantity:
    """`quantity(text)`"""
    quantity = _parse(text)
    if quantity is None:
        raise EvaluationError(_INVALID)
    return quantity


def _suffix(suffix: str) -> tuple[int, int, str] | None:
    """Base, exponent and form."""
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], _DECIMAL_SI
    if suffix in _BINARY:
        return 2, _BINARY[suffix], _BINARY_SI
    if len(suffix) > 1 and suffix[0] in "eE":
        exponent = parse_int(suffix[1:], MIN_INT, MAX_INT)
        if exponent is not None:
            return 10, (exponent + 2**31) % 2**32 - 2**31, _EXPONENT
    return None


def _parse(text: str) -> Quantity | None:
    if text == "0":
        return Quantity(0, 0, _DECIMAL_SI, text=text)
    match = _TEXT.match(text)
    if not text or match is None:
        return None
    sign, zeros, number, fraction, suffix = match.groups()
    known = _suffix(suffix)
    if known is None:
        return None
    base, exponent, form = known
    whole, places = number or "0", fraction or ""
    negative = sign == "-"
    fast = _fast(whole, places, exponent, form, negative, text)
    if fast is not None:
        return fast
    if not (zeros or number or places):
        return None  # no digit at all is a zero for upstream only where it needs no arithmetic
    if len(number) + len(places) > _MAX_DIGITS:
        raise EvaluationError("quantity has too many digits")
    value = parse_digits((zeros + number + places) or "0")
    scale = -len(places)
    if base == 10:
        scale += exponent
    else:
        value <<= exponent
    if value:
        value, scale = _rounded_up(value, scale)
    if form == _BINARY_SI:
        at_nano = Quantity(value, scale, form)
        if at_nano.compare(Quantity(MAX_INT, 0, form)) > 0:
            value, scale = MAX_INT, 0
        elif value and at_nano.compare(Quantity(1, 0, form)) < 0:
            form = _DECIMAL_SI
    return Quantity(-value if negative else value, scale, form, big=True)


def _rounded_up(value: int, scale: int) -> tuple[int, int]:
    """At nine decimal places, away from zero."""
    if scale > -9:
        if scale + 9 > _MAX_SHIFT:
            raise EvaluationError("quantity is too large")
        return value * 10 ** (scale + 9), -9
    if -scale - 9 > _digits(value):
        return 1, -9
    return -(-value // 10 ** (-scale - 9)), -9


def _fast(whole: str, places: str, exponent: int, form: str, negative: bool, text: str) -> Quantity | None:
    """The int64 representation, where upstream uses it."""
    scale, mantissa = 0, 1
    if form == _BINARY_SI:
        if places:
            return None
        mantissa = 1 << exponent
        precision = 15 - len(whole) - exponent * 3 // 10 - 1
    else:
        scale = exponent
        precision = 18 - len(whole) - len(places)
    scale -= len(places)
    if precision < 0 or scale < -9:
        return None
    shifted = whole + places
    value = int(shifted)
    result = value * mantissa
    if result > MAX_INT:
        return None
    if form == _BINARY_SI:
        canonical = exponent % 10 == 0 and value & 7 != 0
    else:
        canonical = scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"
    return Quantity(-result if negative else result, scale, form, text=text if canonical else "")


def _added(a: Quantity, b: Quantity, sign: int) -> Quantity:
    form = b.form if a.value == 0 else a.form
    if not a.big and not b.big:
        quick = _added_int64(a, b, MIN_INT if sign * b.value == -MIN_INT else sign * b.value, form)
        if quick is not None:
            return quick
    low = min(a.scale, b.scale)
    if abs(a.scale - b.scale) > _MAX_SHIFT:
        raise EvaluationError("quantities are too far apart to add")
    total = _shifted(a.value, a.scale - low) + sign * _shifted(b.value, b.scale - low)
    return Quantity(total, low, form, big=True, computed=True)


def _added_int64(a: Quantity, b: Quantity, other: int, form: str) -> Quantity | None:
    """The sum in int64 arithmetic, or None where that overflows. `other` is b's value, signed."""
    if b.value == 0:
        return Quantity(a.value, a.scale, form, computed=True)
    if a.value == 0:
        return Quantity(other, b.scale, form, computed=True)
    if abs(a.scale - b.scale) > 18:
        return None
    low = min(a.scale, b.scale)
    left, right = _shifted(a.value, a.scale - low), _shifted(other, b.scale - low)
    if all(MIN_INT <= part <= MAX_INT for part in (left, right, left + right)):
        return Quantity(left + right, low, form, computed=True)
    return None


def _with_int(value: int) -> Quantity:
    return Quantity(value, 0, _EXPONENT)


def _as_integer(quantity: Quantity) -> int:
    value = quantity.as_int()
    if value is None:
        raise EvaluationError("cannot convert value to integer")
    return value


def _as_float(quantity: Quantity) -> float:
    """Upstream multiplies two doubles, so this is close, not exact."""
    try:
        base = float(quantity.value)
    except OverflowError:
        base = float("inf") if quantity.value > 0 else float("-inf")
    if quantity.scale == 0:
        return base
    if quantity.scale > 308:
        return base * float("inf")
    return base * (float(f"1e{quantity.scale}") if quantity.scale >= -323 else 0.0)


def _is_quantity(text: str) -> bool:
    try:
        return _parse(text) is not None
    except EvaluationError:
        return True


def _method(name: str, *overloads: tuple[str, tuple[Type, ...], Type, Any]) -> Function:
    made = tuple(
        Overload(id_, (QUANTITY_TYPE, *args), result, impl, member=True)
        for id_, args, result, impl in overloads
    )
    return Function(name, made, cost=NOMINAL)


_Q, _S, _B, _I = QUANTITY_TYPE, types.string, types.bool_, types.int_

LIBRARY = Library(
    "kubernetes.quantity",
    functions=(
        Function(
            "quantity",
            (Overload("string_to_quantity", (_S,), _Q, parse_quantity),),
            cost=costs.PARSE_ARGUMENT,
        ),
        Function(
            "isQuantity",
            (Overload("is_quantity_string", (_S,), _B, _is_quantity),),
            cost=costs.PARSE_ARGUMENT,
        ),
        Function(
            "sign",
            (Overload("quantity_sign", (_Q,), _I, lambda q: (q.value > 0) - (q.value < 0)),),
            cost=NOMINAL,
        ),
        _method("isGreaterThan", ("quantity_is_greater_than", (_Q,), _B, lambda a, b: a.compare(b) == 1)),
        _method("isLessThan", ("quantity_is_less_than", (_Q,), _B, lambda a, b: a.compare(b) == -1)),
        _method("compareTo", ("quantity_compare_to", (_Q,), _I, lambda a, b: a.compare(b))),
        _method("asApproximateFloat", ("quantity_get_float", (), types.double, _as_float)),
        _method("asInteger", ("quantity_get_int", (), _I, _as_integer)),
        _method("isInteger", ("quantity_is_integer", (), _B, lambda q: q.as_int() is not None)),
        _method(
            "add",
            ("quantity_add", (_Q,), _Q, lambda a, b: _added(a, b, 1)),
            ("quantity_add_int", (_I,), _Q, lambda a, b: _added(a, _with_int(b), 1)),
        ),
        _method(
            "sub",
            ("quantity_sub", (_Q,), _Q, lambda a, b: _added(a, b, -1)),
            ("quantity_sub_int", (_I,), _Q, lambda a, b: _added(a, _with_int(b), -1)),
        ),
    ),
)
