"""`find` and `findAll`: RE2 patterns searched in strings.

RE2 runs in time linear in the text, whatever the pattern. Compiled patterns are kept, the number of them
bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import re2

from kubernetes_cel import costs, types
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


#: More are an error: each match takes microseconds, and costs next to nothing.
_MAX_MATCHES = 1 << 18


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern; an `EvaluationError` when it is none."""
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as e:
        reason = e.args[0].decode(errors="replace") if isinstance(e.args[0], bytes) else str(e.args[0])
        raise EvaluationError(f"error parsing regexp: {reason}") from None


def find(text: str, pattern: str) -> str:
    """The first match, or an empty string."""
    match = compile_pattern(pattern).search(text)
    return "" if match is None else str(match.group())


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """The first `limit` matches, or all of them when negative.

    Searches bytes, where the binding to RE2 need not count characters for every match.
    """
    compiled = compile_pattern(pattern)
    found: list[str] = []
    if limit == 0:
        return found
    data = text.encode("utf-8", "surrogatepass")
    previous = -1
    for match in compiled.finditer(data):
        start, end = match.span()
        # An empty match right behind another match, or inside a character, is none.
        if start == end and (start == previous or (start < len(data) and data[start] & 0xC0 == 0x80)):
            continue
        previous = end
        found.append(data[start:end].decode("utf-8", "surrogatepass"))
        if len(found) == limit:
            break
        if len(found) > _MAX_MATCHES:
            raise EvaluationError(f"more than {_MAX_MATCHES} matches")
    return found


def _find_constant(pattern: str) -> Callable[..., Any]:
    """`find` of a constant pattern: a bad one is found while compiling."""
    compile_pattern(pattern)

    def run(text: Any) -> str:
        if type(text) is not str:
            raise no_such_overload()
        return find(text, pattern)

    return run


def _find_all_constant(pattern: str) -> Callable[..., Any]:
    """`findAll` of a constant pattern."""
    compile_pattern(pattern)

    def run(text: Any, limit: Any = -1) -> list[str]:
        if type(text) is not str or type(limit) is not int:
            raise no_such_overload()
        return find_all(text, pattern, limit)

    return run


_S = types.string
_LIST = types.list_of(_S)

LIBRARY = Library(
    "kubernetes.regex",
    functions=(
        Function(
            "find",
            (Overload("string_find_string", (_S, _S), _S, find, member=True),),
            cost=costs.FIND,
            precompile=_find_constant,
        ),
        Function(
            "findAll",
            (
                Overload("string_find_all_string", (_S, _S), _LIST, find_all, member=True),
                Overload("string_find_all_string_int", (_S, _S, types.int_), _LIST, find_all, member=True),
            ),
            cost=costs.FIND,
            precompile=_find_all_constant,
        ),
    ),
)
