"""matchAttribute and distinctAttribute over the devices of a claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharing_affinity.api import Constraint

AttributeValue = tuple[str, Any]
"""Kind (string, int, bool, version) and value."""
_KINDS: Final = ("string", "int", "bool", "version")


def covers(constraint: Constraint, request: str) -> bool:
    """Whether a constraint applies to a result name (``main`` or ``main/sub``); it may name either."""
    names = constraint.requests
    return not names or request in names or request.partition("/")[0] in names


def lookup(attributes: Mapping[str, Any], driver: str, name: str) -> AttributeValue | None:
    """A device's attribute by its qualified name; the driver's own may be published without the domain."""
    value = attributes.get(name)
    if value is None:
        domain, slash, bare = name.partition("/")
        if not slash or domain != driver:
            return None
        value = attributes.get(bare)
        if value is None:
            return None
    for kind in _KINDS:
        if value.get(kind) is not None:
            return (kind, value[kind])
    return ("unknown", None)


def admit(
    constraint: Constraint, chosen: tuple[AttributeValue, ...], value: AttributeValue | None
) -> tuple[AttributeValue, ...] | None:
    """The values chosen so far with one more, or ``None`` when that breaks the constraint.

    A device without the attribute breaks both kinds. The first device may have any value.
    """
    if value is None:
        return None
    if not chosen:
        return (value,)
    if value[0] == "unknown":
        return None
    if constraint.distinct:
        return None if value in chosen else (*chosen, value)
    # All are equal, so the first stands for the rest.
    return chosen if value == chosen[0] else None
