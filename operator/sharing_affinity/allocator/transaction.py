"""Tentative changes that can be taken back exactly.

A search changes its state only through a transaction: every change notes what was there before, and
:meth:`Transaction.undo` restores it, newest first, down to a mark. So every way out of a branch is the same
one line, and nothing a rejected branch did can stay behind.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Final = object()


class Transaction:
    """An undo log over dictionaries and lists."""

    __slots__ = ("_log",)

    def __init__(self) -> None:
        self._log: list[tuple[Any, Any, Any]] = []

    def mark(self) -> int:
        """Where the log stands now."""
        return len(self._log)

    def put(self, mapping: dict[K, V], key: K, value: V) -> None:
        """Set an entry."""
        self._log.append((mapping, key, mapping.get(key, _MISSING)))
        mapping[key] = value

    def append(self, items: list[V], value: V) -> None:
        """Add to the end of a list."""
        self._log.append((items, _MISSING, None))
        items.append(value)

    def undo(self, mark: int) -> None:
        """Take back everything since ``mark``."""
        while len(self._log) > mark:
            target, key, before = self._log.pop()
            if key is _MISSING:
                target.pop()
            elif before is _MISSING:
                del target[key]
            else:
                target[key] = before
