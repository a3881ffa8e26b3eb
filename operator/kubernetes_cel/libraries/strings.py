"""The strings library, version 2: what strings can do beyond the standard functions.

Indexes count code points, as everywhere in CEL. `format` is in `formatting`.
"""

from __future__ import annotations

from typing import Any

from kubernetes_cel import costs, types
from kubernetes_cel.costs import CallEstimate, CostModel, Node, Range, SizeHint, estimated_size
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries.formatting import FORMAT, check_formats

_S, _I = types.string, types.int_
_LOWER = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}
_UPPER = {c: c - 32 for c in range(ord("a"), ord("z") + 1)}
#: What Go's strings.TrimSpace takes for space; Python's strip() also takes U+001C to U+001F.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


#: No result is longer than this; upstream would run out of memory instead.
MAX_TEXT = 1 << 24


def bounded(size: int) -> None:
    """Refuse to build a text of `size` characters when that is out of all proportion."""
    if size > MAX_TEXT:
        raise EvaluationError(f"result of {size} characters is too large")


def _out_of_range(index: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {index}")


def lower_ascii(text: str) -> str:
    """Lower case, ASCII letters only."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def upper_ascii(text: str) -> str:
    """Upper case, ASCII letters only."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def char_at(text: str, index: int) -> str:
    """The character at an index; empty at the very end."""
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def index_of(text: str, part: str, start: int = 0) -> int:
    """First index of `part` at or after `start`, or -1."""
    if start < 0:
        raise _out_of_range(start)
    if part == "":
        return min(start, len(text))
    return text.find(part, start) if start < len(text) else -1


def last_index_of(text: str, part: str) -> int:
    """Last index of `part`, or -1."""
    return len(text) if part == "" else _rfind(text, part, len(text))


def last_index_of_from(text: str, part: str, start: int) -> int:
    """Last index of `part` at or before `start`, or -1."""
    if start < 0:
        raise _out_of_range(start)
    if part == "":
        return min(start, len(text))
    if start >= len(text):
        return -1
    return _rfind(text, part, start + len(part))


def _rfind(text: str, part: str, end: int) -> int:
    if len(text) * len(part) < 1 << 20:
        return text.rfind(part, 0, end)
    # Python searches forward in linear time, backward not always.
    found = text[:end][::-1].find(part[::-1])
    return -1 if found < 0 else min(end, len(text)) - found - len(part)


def replace_n(text: str, old: str, new: str, count: int) -> str:
    """Replace the first `count` matches; all of them when negative."""
    if len(new) > len(old):
        matches = text.count(old)
        bounded(len(text) + (matches if count < 0 else min(matches, count)) * (len(new) - len(old)))
    return text.replace(old, new, count)


def replace(text: str, old: str, new: str) -> str:
    """Replace all matches."""
    return replace_n(text, old, new, -1)


def split(text: str, separator: str) -> list[str]:
    """All parts; every character for an empty separator."""
    return text.split(separator) if separator else list(text)


def split_n(text: str, separator: str, limit: int) -> list[str]:
    """At most `limit` parts, the last one unsplit; none for 0, all when negative."""
    if limit == 0:
        return []
    if limit < 0:
        return split(text, separator)
    if separator:
        return text.split(separator, limit - 1)
    if len(text) <= limit:
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def substring(text: str, start: int) -> str:
    """Everything from `start` on."""
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def substring_range(text: str, start: int, end: int) -> str:
    """From `start` up to, not including, `end`."""
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if end > len(text):
        raise _out_of_range(end)
    return text[start:end]


def join(items: Any, separator: str = "") -> str:
    """All strings of a list, with a separator in between."""
    size = 0
    for count, item in enumerate(items):
        if type(item) is not str:
            raise EvaluationError(f"join: invalid input: {item}")
        size += len(item) + len(separator)
        bounded(max(size, count))
    return separator.join(items)


_QUOTED = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\", 34: '\\"'}


def quote(text: str) -> str:
    """A string literal of the text. Other control characters stay as they are."""
    return f'"{text.translate(_QUOTED)}"'


def _quote_estimate(hint: SizeHint, _: str, __: Node | None, args: Any) -> CallEstimate | None:
    if len(args) != 1:
        return None
    size = estimated_size(hint, args[0])
    most = (size.max * 2 + 2) % 2**64  # upstream's arithmetic wraps here
    return CallEstimate(size.scaled(costs.TRAVERSAL_FACTOR), Range((size.min + 2) % 2**64, most))


def _quote_actual(overload: str, args: Any, _: Any) -> int | None:
    return costs.traversal(costs.plain_size(args[0])) if overload else None


_QUOTE_COST = CostModel(_quote_estimate, _quote_actual)


def _member(id_: str, args: tuple[types.Type, ...], result: types.Type, impl: Any) -> Overload:
    return Overload(id_, args, result, impl, member=True)


_LIST = types.list_of(_S)

LIBRARY = Library(
    "strings",
    functions=(
        Function("charAt", (_member("string_char_at_int", (_S, _I), _S, char_at),)),
        Function(
            "indexOf",
            (
                _member("string_index_of_string", (_S, _S), _I, index_of),
                _member("string_index_of_string_int", (_S, _S, _I), _I, index_of),
            ),
            cost=costs.SEARCH,
        ),
        Function(
            "lastIndexOf",
            (
                _member("string_last_index_of_string", (_S, _S), _I, last_index_of),
                _member("string_last_index_of_string_int", (_S, _S, _I), _I, last_index_of_from),
            ),
            cost=costs.SEARCH,
        ),
        Function(
            "lowerAscii",
            (_member("string_lower_ascii", (_S,), _S, lower_ascii),),
            cost=costs.TEXT,
        ),
        Function(
            "upperAscii",
            (_member("string_upper_ascii", (_S,), _S, upper_ascii),),
            cost=costs.TEXT,
        ),
        Function(
            "replace",
            (
                _member("string_replace_string_string", (_S, _S, _S), _S, replace),
                _member("string_replace_string_string_int", (_S, _S, _S, _I), _S, replace_n),
            ),
            cost=costs.REPLACE,
            grows=True,
        ),
        Function(
            "split",
            (
                _member("string_split_string", (_S, _S), _LIST, split),
                _member("string_split_string_int", (_S, _S, _I), _LIST, split_n),
            ),
            cost=costs.SPLIT,
        ),
        Function(
            "substring",
            (
                _member("string_substring_int", (_S, _I), _S, substring),
                _member("string_substring_int_int", (_S, _I, _I), _S, substring_range),
            ),
            cost=costs.TEXT,
        ),
        Function("trim", (_member("string_trim", (_S,), _S, lambda s: s.strip(_SPACE)),), cost=costs.TEXT),
        Function(
            "join",
            (
                _member("list_join", (_LIST,), _S, join),
                _member("list_join_string", (_LIST, _S), _S, join),
            ),
            cost=costs.JOIN,
            grows=True,
        ),
        Function("strings.quote", (Overload("strings_quote", (_S,), _S, quote),), cost=_QUOTE_COST),
        FORMAT,
    ),
    validators=(check_formats,),
    mixed=frozenset(("format",)),
)
