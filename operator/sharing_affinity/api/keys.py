"""Affinity keys as a value: sorted (name, value) pairs, hashable and cheap to compare."""

from __future__ import annotations

from collections.abc import Mapping

KeyMap = tuple[tuple[str, str], ...]
"""Pairs of key name and value, sorted by name; never an empty value."""


def key_map(pairs: Mapping[str, str]) -> KeyMap:
    return tuple(sorted(pairs.items()))


def render(keys: KeyMap, limit: int = 64) -> str:
    """``subnet=A,vlan=7`` for people: long values are cut, control characters are escaped."""
    return ",".join(f"{name}={shorten(value, limit)}" for name, value in keys)


def shorten(value: str, limit: int = 64) -> str:
    """A value of any length or content as one line of at most ``limit`` characters."""
    clean = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in value[: limit + 1])
    return cut(clean, limit)


def cut(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters; one that is cut says so by its last."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
