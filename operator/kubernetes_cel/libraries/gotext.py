"""How Go prints and parses plain values, where CEL's answers depend on it.

Shortest digits come from Python's `repr`, which finds the same ones as Go; only their layout differs.
"""

from __future__ import annotations

import math
import re

_FLOAT = re.compile(r"[+-]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]+)?\Z")
#: Where an underscore may not stand: it separates digits.
_BAD_UNDERSCORE = re.compile(r"(?<![0-9])_|_(?![0-9])")
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+\Z")
_SPECIAL = {"inf": math.inf, "infinity": math.inf}
_DIGITS = re.compile(r"[0-9]+\Z")
#: Python refuses to convert longer texts in one go.
_CHUNK = 4000


def decimal_digits(value: float) -> tuple[str, int]:
    """Shortest digits of a finite, non-negative double, and where the decimal point goes: 0.5 is ("5", 0)."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0", 1
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    return digits.rstrip("0"), point


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def format_g(value: float) -> str:
    """`%g`: shortest digits, with an exponent below 1e-4 and from 1e+06 on."""
    special = _special(value)
    if special is not None:
        return special
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    digits, point = decimal_digits(abs(value))
    exponent = point - 1
    if digits == "0":
        return sign + "0"
    if exponent < -4 or exponent >= 6:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return sign + _positional(digits, point)


def format_f(value: float) -> str:
    """`%f` with the fewest digits that identify the value, never an exponent."""
    special = _special(value)
    if special is not None:
        return special
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return sign + _positional(*decimal_digits(abs(value)))


def _positional(digits: str, point: int) -> str:
    if point <= 0:
        return "0" if digits == "0" else "0." + "0" * -point + digits
    if point >= len(digits):
        return digits + "0" * (point - len(digits))
    return digits[:point] + "." + digits[point:]


def parse_float(text: str) -> float | None:
    """A double as `strconv.ParseFloat` reads it, or None."""
    if _FLOAT.match(text):
        if "_" in text and _BAD_UNDERSCORE.search(text):
            return None
        value = float(text)
    elif _HEX_FLOAT.match(text):
        try:
            value = float.fromhex(text)
        except OverflowError:
            return None
    else:
        lowered = text.lower()
        if lowered == "nan":
            return math.nan
        sign, name = (lowered[0], lowered[1:]) if lowered[:1] in ("+", "-") else ("", lowered)
        special = _SPECIAL.get(name)
        if special is None:
            return None
        return -special if sign == "-" else special
    return None if math.isinf(value) else value


def parse_digits(text: str) -> int:
    """An integer from ASCII digits, of any length."""
    if len(text) <= _CHUNK:
        return int(text)
    half = len(text) // 2
    shift: int = 10 ** (len(text) - half)
    return parse_digits(text[:half]) * shift + parse_digits(text[half:])


def print_digits(value: int) -> str:
    """The decimal digits of a non-negative integer of any length."""
    if value < 10**_CHUNK:
        return str(value)
    half = value.bit_length() * 3 // 20  # about half of the decimal digits
    high, low = divmod(value, 10**half)
    return print_digits(high) + print_digits(low).rjust(half, "0")


def parse_int(text: str, low: int, high: int) -> int | None:
    """An integer as `strconv.ParseInt(text, 10, 64)` reads it, or None when it is none or out of range."""
    body = text[1:] if text[:1] in ("+", "-") and low < 0 else text
    if not _DIGITS.match(body):
        return None
    if len(body) > 40 and len(body.lstrip("0")) > 40:
        return None
    value = parse_digits(body.lstrip("0") or "0")
    if text[0] == "-":
        value = -value
    return value if low <= value <= high else None


_ESCAPES = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\", 34: '\\"'}
_UNUSUAL = re.compile(r"[^ !#-\[\]-~]")


def quote(text: str) -> str:
    """`%q`: Go's quoted string; what is not printable is escaped."""
    return f'"{_UNUSUAL.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if char.isprintable() and not char.isspace():
        return char
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
