"""Kubernetes quantities, exact.

A quantity is a rational number with at most nine decimal digits after the point in practice, but nothing here
rounds: ``500m``, ``1Ki``, ``1e3`` and ``1.5Gi`` compare by value. ``value`` and ``milli`` round away from
zero the way the API machinery's ``Value()`` and ``MilliValue()`` do, because step arithmetic of request
policies is defined on them. Numbers beyond int64 keep their value and report themselves as not representable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

INT64_MAX: Final = 2**63 - 1

_FORM = re.compile(
    r"^(?P<sign>[+-]?)(?P<digits>\d+(?:\.\d*)?|\.\d+)"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE](?P<exp>[+-]?\d{1,9}))?$",
    re.ASCII,
)
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MAX_EXPONENT: Final = 100
_MAX_LENGTH: Final = 256

Format = str
DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"


class QuantityError(ValueError):
    """The text is not a quantity."""


@dataclass(frozen=True, slots=True, order=False)
class Quantity:
    """An exact amount. Equality and order are by value; ``form`` only says how to print it."""

    amount: Fraction
    form: Format = DECIMAL_SI

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash(self.amount)

    def __lt__(self, other: Quantity) -> bool:
        return self.amount < other.amount

    def __le__(self, other: Quantity) -> bool:
        return self.amount <= other.amount

    def __gt__(self, other: Quantity) -> bool:
        return self.amount > other.amount

    def __ge__(self, other: Quantity) -> bool:
        return self.amount >= other.amount

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.amount + other.amount, self.form)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.amount - other.amount, self.form)

    @property
    def value(self) -> int:
        """The integer value, rounded away from zero."""
        return _round_away(self.amount)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _round_away(self.amount * 1000)

    def exact_milli(self) -> int | None:
        """Thousandths when that loses nothing and fits int64, otherwise ``None``."""
        scaled = self.amount * 1000
        if scaled.denominator != 1 or abs(scaled.numerator) > INT64_MAX:
            return None
        return scaled.numerator

    def __str__(self) -> str:
        return canonical(self)


def _round_away(amount: Fraction) -> int:
    whole, rest = divmod(abs(amount.numerator), amount.denominator)
    if rest:
        whole += 1
    return whole if amount >= 0 else -whole


@lru_cache(maxsize=8192)
def parse(text: str) -> Quantity:
    """Read a quantity as the API machinery does.

    Raises :class:`QuantityError` with a reason that names the text.
    """
    if len(text) > _MAX_LENGTH:
        raise QuantityError(f"quantity of {len(text)} characters is too long")
    match = _FORM.match(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity such as 16, 500m, 1.5Gi or 1e3")
    amount = Fraction(match["digits"])
    suffix, exponent = match["suffix"], match["exp"]
    form = DECIMAL_SI
    if suffix in _BINARY:
        amount *= _BINARY[suffix]
        form = BINARY_SI
    elif exponent is not None:
        power = int(exponent)
        if abs(power) > _MAX_EXPONENT:
            raise QuantityError(f"{text!r}: the exponent is out of any useful range")
        amount *= Fraction(10) ** power
        form = DECIMAL_EXPONENT
    else:
        amount *= Fraction(10) ** _DECIMAL[suffix or ""]
    # Finer than nano is rounded up, as upstream does.
    nano = amount * 10**9
    if nano.denominator != 1:
        amount = Fraction(_round_away(nano), 10**9)
    return Quantity(-amount if match["sign"] == "-" else amount, form)


def from_int(value: int, form: Format = DECIMAL_SI) -> Quantity:
    return Quantity(Fraction(value), form)


def from_milli(value: int, form: Format = DECIMAL_SI) -> Quantity:
    return Quantity(Fraction(value, 1000), form)


def canonical(quantity: Quantity) -> str:
    """The canonical text: no fraction digits, the largest suffix that keeps the value whole."""
    amount = quantity.amount
    if amount == 0:
        return "0"
    sign = "-" if amount < 0 else ""
    amount = abs(amount)
    # Binary suffixes carry no fractions below one; upstream falls back to decimal there as well.
    if quantity.form == BINARY_SI and amount.denominator == 1 and amount >= 1024:
        number, suffix = amount.numerator, ""
        for unit, factor in _BINARY.items():
            if amount.numerator % factor == 0:
                number, suffix = amount.numerator // factor, unit
        return f"{sign}{number}{suffix}"
    power = -9
    mantissa = (
        (amount * 10**9).numerator if (amount * 10**9).denominator == 1 else _round_away(amount * 10**9)
    )
    while mantissa % 1000 == 0 and power < 18:
        mantissa //= 1000
        power += 3
    if quantity.form == DECIMAL_EXPONENT:
        return f"{sign}{mantissa}" if power == 0 else f"{sign}{mantissa}e{power}"
    suffix = next(unit for unit, exponent in _DECIMAL.items() if exponent == power)
    return f"{sign}{mantissa}{suffix}"


ZERO: Final = Quantity(Fraction(0))
