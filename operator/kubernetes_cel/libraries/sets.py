"""Set operations on lists: containment, equivalence, intersection. Elements are compared as by ==."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubernetes_cel import types
from kubernetes_cel.costs import (
    ONE,
    UNBOUNDED,
    CallEstimate,
    CostModel,
    Node,
    SizeHint,
    estimated_size,
    plain_size,
)
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.values import equal


def same(left: Any, right: Any) -> bool:
    """==, where values that cannot be compared differ."""
    try:
        return equal(left, right)
    except EvaluationError:
        return False


def _has(items: Any, wanted: Any) -> bool:
    return any(same(wanted, item) for item in items)


def contains(items: Any, part: Any) -> bool:
    """Whether each element of `part` is in `items`."""
    return all(_has(items, element) for element in part)


def equivalent(left: Any, right: Any) -> bool:
    """Whether both contain each other."""
    return contains(left, right) and contains(right, left)


def intersects(left: Any, right: Any) -> bool:
    """Whether they have an element in common."""
    return any(_has(right, element) for element in left)


def _cost(factor: int) -> CostModel:
    def estimate(hint: SizeHint, _: str, __: Node | None, args: Sequence[Node]) -> CallEstimate | None:
        if len(args) != 2:
            return None
        pairs = estimated_size(hint, args[0]).times(estimated_size(hint, args[1]))
        return CallEstimate(pairs.scaled(float(factor)).plus(ONE))

    def actual(overload: str, args: Sequence[Any], _: Any) -> int | None:
        if not overload:
            return None
        return min(1 + plain_size(args[0]) * plain_size(args[1]) * factor, UNBOUNDED)

    return CostModel(estimate, actual)


_LIST = types.list_of(types.param("T"))


def _function(name: str, impl: Any, factor: int) -> Function:
    overload = Overload(f"list_sets_{name}_list", (_LIST, _LIST), types.bool_, impl)
    return Function(f"sets.{name}", (overload,), cost=_cost(factor))


LIBRARY = Library(
    "sets",
    functions=(
        _function("contains", contains, 1),
        _function("equivalent", equivalent, 2),
        _function("intersects", intersects, 1),
    ),
)
