"""Kubernetes quantities, exact.

A quantity is a whole number of billionths: the API machinery knows nothing finer and rounds it up when it
reads, so nothing is lost and all arithmetic is on integers of any size. ``500m``, ``1Ki``, ``1e3`` and
``1.5Gi`` compare by value. ``value`` and ``milli`` round away from zero the way the API machinery's
``Value()`` and ``MilliValue()`` do, because step arithmetic of request policies is defined on them. Numbers
beyond int64 keep their value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

INT64_MAX: Final = 2**63 - 1
NANO: Final = 10**9

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


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount in billionths. Equality and order are by value; ``form`` only says how to print it."""

    nano: int
    form: Format = DECIMAL_SI

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Quantity) -> bool:
        return self.nano <= other.nano

    def __gt__(self, other: Quantity) -> bool:
        return self.nano > other.nano

    def __ge__(self, other: Quantity) -> bool:
        return self.nano >= other.nano

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.form)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.form)

    @property
    def amount(self) -> Fraction:
        """The amount in units."""
        return Fraction(self.nano, NANO)

    @property
    def value(self) -> int:
        """The integer value, rounded away from zero."""
        return _divide_away(self.nano, NANO)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divide_away(self.nano, NANO // 1000)

    def exact_milli(self) -> int | None:
        """Thousandths when that loses nothing and fits int64, otherwise ``None``."""
        scaled, rest = divmod(self.nano, NANO // 1000)
        return None if rest or abs(scaled) > INT64_MAX else scaled

    def __str__(self) -> str:
        return canonical(self)


def _divide_away(number: int, by: int) -> int:
    return -(-number // by) if number >= 0 else number // by


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
    amount = Fraction(match["digits"]) * NANO
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
    nano = _divide_away(amount.numerator, amount.denominator)
    return Quantity(-nano if match["sign"] == "-" else nano, form)


def from_int(value: int, form: Format = DECIMAL_SI) -> Quantity:
    return Quantity(value * NANO, form)


def from_milli(value: int, form: Format = DECIMAL_SI) -> Quantity:
    return Quantity(value * (NANO // 1000), form)


def canonical(quantity: Quantity) -> str:
    """The canonical text: no fraction digits, the largest suffix that keeps the value whole."""
    return _canonical(quantity.nano, quantity.form)


@lru_cache(maxsize=8192)
def _canonical(nano: int, form: Format) -> str:
    if nano == 0:
        return "0"
    sign = "-" if nano < 0 else ""
    nano = abs(nano)
    whole, rest = divmod(nano, NANO)
    # Binary suffixes carry no fractions below one; upstream falls back to decimal there as well.
    if form == BINARY_SI and not rest and whole >= 1024:
        number, suffix = whole, ""
        for unit, factor in _BINARY.items():
            if whole % factor == 0:
                number, suffix = whole // factor, unit
        return f"{sign}{number}{suffix}"
    power, mantissa = -9, nano
    while mantissa % 1000 == 0 and power < 18:
        mantissa //= 1000
        power += 3
    if form == DECIMAL_EXPONENT:
        return f"{sign}{mantissa}" if power == 0 else f"{sign}{mantissa}e{power}"
    suffix = next(unit for unit, exponent in _DECIMAL.items() if exponent == power)
    return f"{sign}{mantissa}{suffix}"


ZERO: Final = Quantity(0)
