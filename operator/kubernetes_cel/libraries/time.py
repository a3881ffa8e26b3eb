"""Timestamps and durations: reading, printing, arithmetic, and accessors with time zones.

The calendar is computed here and not with `datetime`, because an offset can lead a moment of year 1 or
9999 out of `datetime`'s range. Zone names are looked up in the system's time zone database.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from kubernetes_cel import types
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries.gotext import format_f, parse_int
from kubernetes_cel.values import MAX_INT, MIN_INT, Duration, Timestamp

_SECOND = 1_000_000_000
_DAY = 86400
_UNITS = {
    "ns": 1,
    "us": 1000,
    "µs": 1000,
    "μs": 1000,
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_LIMIT = 1 << 63
#: Longer texts are no durations here. Upstream reads on, at a cost of 1 whatever the length.
_MAX_DURATION = 1 << 16
_PART = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?([^0-9.]*)")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})"
    r"(?:[.,]([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))\Z"
)


class Civil(NamedTuple):
    """A moment on a calendar and clock. `day_of_year` counts from 0, `weekday` from Sunday = 0."""

    year: int
    month: int
    day: int
    day_of_year: int
    weekday: int
    hour: int
    minute: int
    second: int


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def _days_in(year: int, month: int) -> int:
    if month == 2:
        return 29 if _is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 in the Gregorian calendar, extended in both directions."""
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719162
    return days + _BEFORE[month - 1] + (month > 2 and _is_leap(year)) + day - 1


def civil(seconds: int) -> Civil:
    """The calendar date and time of a number of seconds since 1970, in the zone they were shifted to."""
    days, rest = divmod(seconds, _DAY)
    year = 1970 + days * 400 // 146097
    while _days(year, 1, 1) > days:
        year -= 1
    while _days(year + 1, 1, 1) <= days:
        year += 1
    of_year = days - _days(year, 1, 1)
    month = 12
    while _days(year, month, 1) > days:
        month -= 1
    return Civil(
        year,
        month,
        days - _days(year, month, 1) + 1,
        of_year,
        (days + 4) % 7,
        rest // 3600,
        rest // 60 % 60,
        rest % 60,
    )


_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z")


def is_date(text: str) -> bool:
    """Whether the text is a calendar date such as 2024-02-29."""
    match = _DATE.match(text)
    if match is None:
        return False
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    return 1 <= month <= 12 and 1 <= day <= _days_in(year, month)


def timestamp_of_text(text: str) -> Timestamp | None:
    """An RFC 3339 timestamp as Go takes it (hours of one digit, a comma before the fraction), or None."""
    match = _RFC3339.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    if not 1 <= month <= 12 or not 1 <= day <= _days_in(year, month):
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    nanos = int((match[7] or "0")[:9].ljust(9, "0"))
    offset = 0
    if match[8]:
        if int(match[9]) > 24 or int(match[10]) > 60:
            return None
        offset = (int(match[9]) * 60 + int(match[10])) * 60 * (-1 if match[8] == "-" else 1)
    seconds = _days(year, month, day) * _DAY + hour * 3600 + minute * 60 + second - offset
    if not Timestamp.MIN_SECONDS <= seconds <= Timestamp.MAX_SECONDS:
        raise EvaluationError("timestamp overflow")
    return Timestamp(seconds, nanos, offset)


def timestamp_of_seconds(seconds: int) -> Timestamp:
    """A number of seconds since 1970."""
    if not Timestamp.MIN_SECONDS <= seconds <= Timestamp.MAX_SECONDS:
        raise EvaluationError("timestamp overflow")
    return Timestamp(seconds)


def timestamp_text(value: Timestamp) -> str:
    """RFC 3339 with as many places as needed, in the offset it was written with."""
    at = civil(value.seconds + value.offset)
    year = f"{at.year:04d}" if at.year >= 0 else f"-{-at.year:04d}"
    text = f"{year}-{at.month:02d}-{at.day:02d}T{at.hour:02d}:{at.minute:02d}:{at.second:02d}"
    if value.nanos:
        text += f".{value.nanos:09d}".rstrip("0")
    if value.offset == 0:
        return text + "Z"
    hours, minutes = divmod(abs(value.offset) // 60, 60)
    return f"{text}{'-' if value.offset < 0 else '+'}{hours:02d}:{minutes:02d}"


def duration_of_text(text: str) -> Duration | None:
    """A duration such as `1h30m`, `-1.5s` or `0`, by Go's rules, or None."""
    if len(text) > _MAX_DURATION:
        return None
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return Duration(0)
    if not rest:
        return None
    total = at = 0
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None or not (match[1] or match[3]):
            return None
        unit = _UNITS.get(match[4])
        if unit is None or len(match[1].lstrip("0")) > 19:
            return None
        value = int(match[1].lstrip("0") or "0")
        if value > _LIMIT // unit:
            return None
        value *= unit
        if match[3]:
            fraction, scale = _fraction(match[3])
            value += int(float(fraction) * (float(unit) / scale))
        total += value
        if value > _LIMIT or total > _LIMIT:
            return None
        at = match.end()
    if text[0] == "-":
        return Duration(-total)
    return Duration(total) if total < _LIMIT else None


def _fraction(digits: str) -> tuple[int, float]:
    value, scale = 0, 1.0
    for digit in digits:
        if value > (_LIMIT - 1) // 10 or value * 10 + int(digit) > _LIMIT:
            break
        value = value * 10 + int(digit)
        scale *= 10
    return value, scale


def _truncated(value: int, unit: int) -> int:
    """Division towards zero."""
    return value // unit if value >= 0 else -(-value // unit)


def duration_text(value: Duration) -> str:
    """Seconds with as many places as a double needs: `5400s`, `0.25s`."""
    whole = _truncated(value.nanos, _SECOND)
    return format_f(float(whole) + float(value.nanos - whole * _SECOND) / 1e9) + "s"


def _checked(nanos: int) -> Duration:
    if not MIN_INT <= nanos <= MAX_INT:
        raise EvaluationError("integer overflow")
    return Duration(nanos)


def negate_duration(value: Duration) -> Duration:
    """-d"""
    return _checked(-value.nanos)


def add_durations(left: Duration, right: Duration) -> Duration:
    """d + d"""
    return _checked(left.nanos + right.nanos)


def subtract_durations(left: Duration, right: Duration) -> Duration:
    """d - d"""
    return _checked(left.nanos - right.nanos)


def _moved(value: Timestamp, nanos: int) -> Timestamp:
    carry, rest = divmod(value.nanos + nanos, _SECOND)
    seconds = value.seconds + carry
    if not Timestamp.MIN_SECONDS <= seconds <= Timestamp.MAX_SECONDS:
        raise EvaluationError("timestamp overflow")
    return Timestamp(seconds, rest, value.offset)


def add_timestamp_duration(value: Timestamp, span: Duration) -> Timestamp:
    """t + d; the result keeps the offset."""
    return _moved(value, span.nanos)


def add_duration_timestamp(span: Duration, value: Timestamp) -> Timestamp:
    """d + t"""
    return _moved(value, span.nanos)


def subtract_timestamp_duration(value: Timestamp, span: Duration) -> Timestamp:
    """t - d"""
    return _moved(value, negate_duration(span).nanos)


def subtract_timestamps(left: Timestamp, right: Timestamp) -> Duration:
    """t - t"""
    seconds = (left.seconds - right.seconds) * _SECOND
    if not MIN_INT <= seconds <= MAX_INT:
        raise EvaluationError("integer overflow")
    return _checked(seconds + left.nanos - right.nanos)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | None:
    if name in ("", "UTC", "Local"):
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise EvaluationError(f"unknown time zone {name}") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _zone_offset(name: str, seconds: int) -> int:
    """Seconds east of UTC, at a moment, of a named zone or of an offset such as `-08:00`."""
    hours, colon, minutes = name.partition(":")
    if colon:
        hour = parse_int(hours, MIN_INT, MAX_INT)
        minute = parse_int(minutes, MIN_INT, MAX_INT)
        if hour is None or minute is None:
            raise EvaluationError(f'invalid time zone offset "{name}"')
        return (hour * 60 - minute if name[0] == "-" else hour * 60 + minute) * 60
    zone = _zone(name)
    if zone is None:
        return 0
    # One day off the ends of datetime's range no zone changes its offset.
    near = min(max(seconds, Timestamp.MIN_SECONDS + 2 * _DAY), Timestamp.MAX_SECONDS - 2 * _DAY)
    offset = (_EPOCH + timedelta(seconds=near)).astimezone(zone).utcoffset()
    return 0 if offset is None else offset.days * _DAY + offset.seconds


def _accessor(
    name: str, ids: tuple[str, str], field: Callable[[Civil], int], span: tuple[str, int] | None = None
) -> Function:
    def here(value: Timestamp) -> int:
        return field(civil(value.seconds))

    def there(value: Timestamp, zone: str) -> int:
        return field(civil(value.seconds + _zone_offset(zone, value.seconds)))

    overloads = [
        Overload(ids[0], (types.timestamp,), types.int_, here, member=True),
        Overload(ids[1], (types.timestamp, types.string), types.int_, there, member=True),
    ]
    if span is not None:
        id_, unit = span
        overloads.append(Overload(id_, (types.duration,), types.int_, _in_units(unit), member=True))
    return Function(name, tuple(overloads))


def _in_units(unit: int) -> Callable[[Any], int]:
    return lambda value: _truncated(value.nanos, unit)


def _ids(name: str, zoned: str = "") -> tuple[str, str]:
    return f"timestamp_to_{name}", zoned or f"timestamp_to_{name}_with_tz"


def _milliseconds() -> Function:
    def here(value: Timestamp) -> int:
        return value.nanos // 1_000_000

    def there(value: Timestamp, zone: str) -> int:
        _zone_offset(zone, value.seconds)
        return value.nanos // 1_000_000

    plain, zoned = _ids("milliseconds")
    return Function(
        "getMilliseconds",
        (
            Overload(plain, (types.timestamp,), types.int_, here, member=True),
            Overload(zoned, (types.timestamp, types.string), types.int_, there, member=True),
            Overload(
                "duration_to_milliseconds", (types.duration,), types.int_, _in_units(1_000_000), member=True
            ),
        ),
    )


LIBRARY = Library(
    "time",
    functions=(
        _accessor("getFullYear", _ids("year"), lambda at: at.year),
        _accessor("getMonth", _ids("month"), lambda at: at.month - 1),
        _accessor("getDayOfYear", _ids("day_of_year"), lambda at: at.day_of_year),
        _accessor("getDayOfMonth", _ids("day_of_month"), lambda at: at.day - 1),
        _accessor("getDate", _ids("day_of_month_1_based"), lambda at: at.day),
        _accessor("getDayOfWeek", _ids("day_of_week"), lambda at: at.weekday),
        _accessor("getHours", _ids("hours"), lambda at: at.hour, ("duration_to_hours", 3600 * _SECOND)),
        _accessor("getMinutes", _ids("minutes"), lambda at: at.minute, ("duration_to_minutes", 60 * _SECOND)),
        _accessor(
            "getSeconds",
            _ids("seconds", "timestamp_to_seconds_tz"),
            lambda at: at.second,
            ("duration_to_seconds", _SECOND),
        ),
        _milliseconds(),
    ),
)
