"""Lists: Kubernetes' own functions (sum, min, max, indexOf, includes) and the lists extension, version 3.

Sorting is by value and, where elements of one list are compared, all of one type. Estimates of the
extension's functions grow with the square of the list for whatever compares all elements with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes_cel import costs, types
from kubernetes_cel.ast import Call, Comprehension, Expr, Ident, ListLiteral, Literal, Select
from kubernetes_cel.costs import (
    LIST_COST,
    ONE,
    UNBOUNDED,
    CallEstimate,
    CostModel,
    Node,
    Range,
    SizeHint,
    estimated_size,
    plain_size,
)
from kubernetes_cel.declarations import Function, Library, Macro, Overload
from kubernetes_cel.errors import EvaluationAborted, EvaluationError, no_such_overload
from kubernetes_cel.libraries.sets import same
from kubernetes_cel.libraries.time import add_durations
from kubernetes_cel.macros import Expander, MacroError, expand_map
from kubernetes_cel.types import Type
from kubernetes_cel.values import (
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    Duration,
    ListView,
    Timestamp,
    Uint,
    compare,
    size_of_list,
)

#: Lists longer than this are not built; upstream would run out of memory instead.
MAX_LIST = 1 << 21

_COMPARABLE: tuple[tuple[str, Type], ...] = (
    ("int", types.int_),
    ("uint", types.uint),
    ("double", types.double),
    ("bool", types.bool_),
    ("duration", types.duration),
    ("timestamp", types.timestamp),
    ("string", types.string),
    ("bytes", types.bytes_),
)
_COMPARED = frozenset((int, Uint, float, bool, Duration, Timestamp, str, bytes))


class _TooLargeError(EvaluationError):
    """A list that is not built. It costs what the list would have cost."""

    def __init__(self, size: int) -> None:
        super().__init__(f"list of {size} elements is too large")
        self.size = size

    def cel_size(self) -> int:
        """Elements of the list."""
        return self.size


def _bounded(size: int) -> None:
    if size > MAX_LIST:
        raise _TooLargeError(size)


def _comparable(value: Any) -> None:
    if type(value) not in _COMPARED:
        raise no_such_overload()


def _order(left: Any, right: Any) -> int | None:
    """compare(), or None where upstream has an error it then ignores."""
    try:
        return compare(left, right)
    except EvaluationError:
        return None


def is_sorted(items: Any) -> bool:
    """Whether no element is greater than its successor."""
    previous: Any = None
    for index, item in enumerate(items):
        _comparable(item)
        if index and _order(previous, item) == 1:
            return False
        previous = item
    return True


def _extreme(name: str, replaced_at: int) -> Callable[[Any], Any]:
    def pick(items: Any) -> Any:
        best: Any = None
        found = False
        for item in items:
            _comparable(item)
            if not found or _order(best, item) == replaced_at:
                best = item
                found = True
        if not found:
            raise EvaluationError(f"{name} called on empty list")
        return best

    return pick


def _sum(zero: Any, add: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def total(items: Any) -> Any:
        result = zero
        for item in items:
            if type(item) is not type(zero):
                raise no_such_overload()
            result = add(result, item)
        return result

    return total


def _add_ints(left: int, right: int) -> int:
    result = left + right
    if not MIN_INT <= result <= MAX_INT:
        raise EvaluationError("integer overflow")
    return result


def _add_uints(left: int, right: int) -> Uint:
    result = int(left) + int(right)
    if result > MAX_UINT:
        raise EvaluationError("unsigned integer overflow")
    return Uint(result)


_SUMMABLE: tuple[tuple[str, Type, Callable[[Any], Any]], ...] = (
    ("int", types.int_, _sum(0, _add_ints)),
    ("uint", types.uint, _sum(Uint(0), _add_uints)),
    ("double", types.double, _sum(0.0, lambda left, right: left + right)),
    ("duration", types.duration, _sum(Duration(0), add_durations)),
)


def index_of(items: Any, wanted: Any) -> int:
    """First index of an element, or -1."""
    return next((index for index, item in enumerate(items) if same(item, wanted)), -1)


def last_index_of(items: Any, wanted: Any) -> int:
    """Last index of an element, or -1."""
    last = -1
    for index, item in enumerate(items):
        if same(item, wanted):
            last = index
    return last


def includes(target: Any, wanted: Any) -> bool:
    """Whether a list has an element; for anything else, whether it equals the argument."""
    if isinstance(target, list | ListView):
        return index_of(target, wanted) >= 0
    return same(target, wanted)


def slice_(items: Any, start: int, end: int) -> list[Any]:
    """From `start` up to, not including, `end`."""
    what = f"cannot slice({start}, {end}), "
    if start < 0 or end < 0:
        raise EvaluationError(what + "negative indexes not supported")
    if start > end:
        raise EvaluationError(what + "start index must be less than or equal to end index")
    if size_of_list(items) < end:
        raise EvaluationError(f"{what}list is length {size_of_list(items)}")
    _bounded(end - start)
    return [items[index] for index in range(start, end)]


def flatten(items: Any, depth: int = 1) -> list[Any]:
    """Lists inside the list, down to a depth, replaced by their elements."""
    if not isinstance(items, list | ListView) or type(depth) is not int:
        raise no_such_overload()
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    out: list[Any] = []
    todo: list[tuple[Any, int]] = [(iter(items), depth)]
    visited = 0
    while todo:
        iterator, left = todo.pop()
        for item in iterator:
            visited += 1
            _bounded(visited)
            if left > 0 and isinstance(item, list | ListView):
                todo.append((iterator, left))
                todo.append((iter(item), left - 1))
                break
            out.append(item)
    return out


def sort_by_keys(items: Any, keys: Any) -> Any:
    """The list in the order of a list of keys, one for each element."""
    if not isinstance(items, list | ListView):
        raise no_such_overload("@sortByAssociatedKeys")
    if not isinstance(keys, list | ListView):
        raise EvaluationAborted("internal error: the keys to sort by are no list")
    if size_of_list(items) != size_of_list(keys):
        raise EvaluationError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got "
            f"{size_of_list(items)} and {size_of_list(keys)} elements respectively"
        )
    if not keys:
        return items
    _bounded(size_of_list(keys))
    sorted_keys = list(keys)
    if type(sorted_keys[0]) not in _COMPARED:
        raise EvaluationError("list elements must be comparable")
    if len(sorted_keys) > 1 and any(type(key) is not type(sorted_keys[0]) for key in sorted_keys):
        raise EvaluationError("list elements must have the same type")

    def by_key(left: int, right: int) -> int:
        return _order(sorted_keys[left], sorted_keys[right]) or 0

    values = list(items)
    return [values[index] for index in sorted(range(len(values)), key=functools.cmp_to_key(by_key))]


def sort(items: Any) -> Any:
    """The list in ascending order."""
    if not isinstance(items, list | ListView):
        raise no_such_overload("sort")
    return sort_by_keys(items, items)


_LONGEST_RANGE = 1_000_000


def range_(count: int) -> list[int]:
    """0, 1, ... count - 1."""
    if count < 0:
        raise EvaluationError(f"lists.range: size must be non-negative, got {count}")
    if count > _LONGEST_RANGE:
        raise EvaluationError(f"lists.range: size {count} exceeds maximum allowed ({_LONGEST_RANGE})")
    return list(range(count))


def reverse(items: Any) -> list[Any]:
    """Last element first."""
    _bounded(size_of_list(items))
    return list(items)[::-1]


_HASHED = frozenset((str, bool, bytes))


def distinct(items: Any) -> Any:
    """The first of each group of equal elements."""
    if not items:
        return items
    _bounded(size_of_list(items))
    unique: list[Any] = []
    others: list[Any] = []
    seen: set[tuple[type, Any]] = set()
    for item in items:
        kind = type(item)
        if kind in _HASHED:  # equal to nothing of another type
            if (kind, item) not in seen:
                seen.add((kind, item))
                unique.append(item)
        elif not any(same(item, other) for other in others):
            others.append(item)
            unique.append(item)
    return unique


def _sort_by(expand: Expander, target: Expr | None, args: list[Expr]) -> Expr | None:
    """`list.sortBy(e, key)`: names the list, maps it to its keys, and sorts by them."""
    name = "@__sortBy_input__"
    if not isinstance(target, ListLiteral | Select | Ident | Comprehension | Call):
        node = target.id if target is not None else 0
        raise MacroError(
            node, "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    keys = expand_map(expand, expand.ident(name), args)
    call = expand.member_call("@sortByAssociatedKeys", expand.ident(name), keys)
    return Comprehension(
        expand.new_id(),
        expand.list(),
        "#unused",
        "",
        name,
        target,
        expand.literal(False),
        expand.ident(name),
        call,
        "let",
    )


def _constant(node: Node, default: int) -> int:
    """The value of an int literal, 0 when negative, else the default."""
    if isinstance(node.expr, Literal) and type(node.expr.value) is int:
        return max(node.expr.value, 0)
    return default


def _built(factor: float, size: Range) -> CallEstimate:
    return CallEstimate(size.scaled(factor).plus(ONE).plus(Range(LIST_COST, LIST_COST)), size)


def _fixed(size: int) -> Range:
    wrapped = size % 2**64  # upstream's arithmetic wraps here
    return Range(wrapped, wrapped)


def _slice_estimate(hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if target is None or len(args) != 2:
        return None
    size = estimated_size(hint, target)
    return _built(1.0, _fixed(_constant(args[1], size.max) - _constant(args[0], 0)))


def _range_estimate(_: SizeHint, __: str, target: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if target is not None or len(args) != 1:
        return None
    return _built(1.0, _fixed(_constant(args[0], UNBOUNDED)))


def _reverse_estimate(
    hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    return None if target is None or args else _built(1.0, estimated_size(hint, target))


def _flatten_estimate(
    hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if target is None or len(args) > 1:
        return None
    depth = _constant(args[0], UNBOUNDED) if args else 1
    return _built(float(depth), estimated_size(hint, target))


def _squared(factor: float, size: Range) -> CallEstimate:
    return _built(factor, size.times(size))


def _distinct_estimate(
    hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    return None if target is None or args else _squared(2.0, estimated_size(hint, target))


def _sort_factor(overload: str) -> float:
    return 2.0 + costs.TRAVERSAL_FACTOR if overload.startswith(("list_string_", "list_bytes_")) else 2.0


def _sort_estimate(
    hint: SizeHint, overload: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if target is None or args:
        return None
    return _squared(_sort_factor(overload), estimated_size(hint, target))


def _sort_by_estimate(
    hint: SizeHint, overload: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if target is None or len(args) != 1:
        return None
    return _squared(_sort_factor(overload), estimated_size(hint, args[0]))


def _spent(factor: float, size: int) -> int:
    if factor < 0.0:
        factor = 1.0
    spent = int(float(size) * factor)
    if spent > UNBOUNDED:
        spent = 2**63  # what upstream's conversion of such a double to an integer yields
    return min(spent + 1 + LIST_COST, UNBOUNDED)


def _result_size(overload: str, _: Sequence[Any], result: Any) -> int | None:
    return _spent(1.0, plain_size(result)) if overload else None


def _flatten_actual(overload: str, args: Sequence[Any], _: Any) -> int | None:
    if not overload:
        return None
    depth = 1.0
    if len(args) == 2:
        if type(args[1]) is not int:
            raise EvaluationAborted("internal error: the cost of flatten needs a depth")
        depth = float(args[1])
    return _spent(depth, plain_size(args[0]))


def _compared(which: int) -> Callable[[str, Sequence[Any], Any], int | None]:
    def actual(overload: str, args: Sequence[Any], _: Any) -> int | None:
        if not overload:
            return None
        items = args[which] if len(args) > which else None
        if not isinstance(items, list | ListView):
            raise EvaluationAborted("internal error: the cost of a list function needs a list")
        size = size_of_list(items)
        if size == 0:
            return _spent(2.0, 0)
        factor = 2.0 + costs.TRAVERSAL_FACTOR if type(items[0]) in (str, bytes) else 2.0
        return _spent(factor, min(size * size, UNBOUNDED))

    return actual


_T = types.param("T")
_A = types.param("A")
_LIST = types.list_of(_T)
_LIST_A = types.list_of(_A)
_SLICE_COST = CostModel(_slice_estimate, _result_size, needs_result=True)
_RANGE_COST = CostModel(_range_estimate, _result_size, needs_result=True)
_REVERSE_COST = CostModel(_reverse_estimate, _result_size, needs_result=True)
_FLATTEN_COST = CostModel(_flatten_estimate, _flatten_actual)
_DISTINCT_COST = CostModel(_distinct_estimate, _compared(0))
_SORT_COST = CostModel(_sort_estimate, _compared(0))
_SORT_BY_COST = CostModel(_sort_by_estimate, _compared(1))


def _member(id_: str, args: tuple[Type, ...], result: Type, impl: Any = None) -> Overload:
    return Overload(id_, args, result, impl, member=True)


def _for_each(
    template: str, result: Type | None, impl: Callable[[Any], Any], sources: Any = _COMPARABLE
) -> tuple[Overload, ...]:
    return tuple(
        _member(template.format(name), (types.list_of(t),), result or t, impl) for name, t in sources
    )


KUBERNETES = Library(
    "kubernetes.lists",
    functions=(
        Function("isSorted", _for_each("list_{}_is_sorted_bool", types.bool_, is_sorted), cost=costs.SEARCH),
        Function(
            "sum",
            tuple(_member(f"list_{n}_sum_{n}", (types.list_of(t),), t, impl) for n, t, impl in _SUMMABLE),
            cost=costs.SEARCH,
        ),
        Function("max", _for_each("list_{0}_max_{0}", None, _extreme("max", -1)), cost=costs.SEARCH),
        Function("min", _for_each("list_{0}_min_{0}", None, _extreme("min", 1)), cost=costs.SEARCH),
        Function(
            "indexOf",
            (_member("list_a_index_of_int", (_LIST_A, _A), types.int_, index_of),),
            cost=costs.SEARCH,
        ),
        Function(
            "lastIndexOf",
            (_member("list_a_last_index_of_int", (_LIST_A, _A), types.int_, last_index_of),),
            cost=costs.SEARCH,
        ),
        Function(
            "includes",
            (_member("list_includes_dyn_dyn", (types.dyn, types.dyn), types.bool_, includes),),
            cost=costs.INCLUDES,
        ),
    ),
)

EXTENSION = Library(
    "lists",
    functions=(
        Function(
            "slice",
            (_member("list_slice", (_LIST, types.int_, types.int_), _LIST, slice_),),
            cost=_SLICE_COST,
        ),
        Function(
            "flatten",
            (
                _member("list_flatten", (types.list_of(_LIST),), _LIST, flatten),
                _member("list_flatten_int", (types.list_dyn, types.int_), types.list_dyn, flatten),
            ),
            cost=_FLATTEN_COST,
            guarded=False,
        ),
        Function(
            "sort",
            tuple(
                _member(f"list_{t.name}_sort", (types.list_of(t),), types.list_of(t)) for _, t in _COMPARABLE
            ),
            shared=sort,
            cost=_SORT_COST,
        ),
        Function(
            "@sortByAssociatedKeys",
            tuple(
                _member(f"list_{t.name}_sortByAssociatedKeys", (_LIST, types.list_of(t)), _LIST)
                for _, t in _COMPARABLE
            ),
            shared=sort_by_keys,
            cost=_SORT_BY_COST,
        ),
        Function(
            "lists.range",
            (Overload("lists_range", (types.int_,), types.list_of(types.int_), range_),),
            cost=_RANGE_COST,
        ),
        Function("reverse", (_member("list_reverse", (_LIST,), _LIST, reverse),), cost=_REVERSE_COST),
        Function("distinct", (_member("list_distinct", (_LIST,), _LIST, distinct),), cost=_DISTINCT_COST),
    ),
    macros=(Macro("sortBy", 2, True, _sort_by),),
)
