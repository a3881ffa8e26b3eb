"""Passes over deep trees without deep recursion.

An expression within upstream's bounds can nest 250 macros, each several nodes deep: more than Python's
recursion limit allows, and that limit belongs to the process, not to us. So passes are written as generators
that `yield` the work on a child and get its result back, and `drive` runs them with a stack of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

#: Work that yields other work and is resumed with its result.
Work: TypeAlias = Generator["Work[Any]", Any, T]


def drive(work: Work[T]) -> T:
    """The result of a piece of work."""
    stack: list[Work[Any]] = [work]
    value: Any = None
    while True:
        try:
            child = stack[-1].send(value)
        except StopIteration as done:
            value = done.value
            stack.pop()
            if not stack:
                return value  # type: ignore[no-any-return]
        else:
            stack.append(child)
            value = None
