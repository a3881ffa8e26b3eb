"""What calls cost: estimated before running, counted while running.

A `CostModel` has the two sides of one function's cost: `estimate` works on what is known of the arguments'
sizes, `actual` on the arguments themselves. Functions without a model cost 1. The numbers are part of the
Kubernetes API: an expression that is admitted or refused for its cost must be so here too (upstream:
`k8s.io/apiserver` `pkg/cel/library/cost.go`, `cel-go` `checker/cost.go` and `interpreter/runtimecost.go`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kubernetes_cel import types
from kubernetes_cel.ast import Expr
from kubernetes_cel.types import Type
from kubernetes_cel.values import MAX_VISITED, ListView, MapView, Optional, size_or_none, too_large

#: Costs are unsigned 64-bit numbers that saturate.
UNBOUNDED = 2**64 - 1
_TWO_64 = 2.0**64

IDENT_COST = 1
LIST_COST = 10
MAP_COST = 30
STRUCT_COST = 40
TRAVERSAL_FACTOR = 0.1
REGEX_FACTOR = 0.25


class Range(NamedTuple):
    """A smallest and largest size (in elements, code points or bytes), or a smallest and largest cost."""

    min: int
    max: int

    def plus(self, other: Range) -> Range:
        """Sum, saturating."""
        return Range(min(self.min + other.min, UNBOUNDED), min(self.max + other.max, UNBOUNDED))

    def times(self, other: Range) -> Range:
        """Product, saturating."""
        return Range(min(self.min * other.min, UNBOUNDED), min(self.max * other.max, UNBOUNDED))

    def scaled(self, factor: float) -> Range:
        """Product with a factor, rounded up, in double precision as upstream computes it."""
        return Range(_scale(self.min, factor), _scale(self.max, factor))

    def union(self, other: Range) -> Range:
        """The smallest range that holds both."""
        return Range(min(self.min, other.min), max(self.max, other.max))


def _scale(value: int, factor: float) -> int:
    scaled = math.ceil(float(value) * factor)
    return UNBOUNDED if scaled >= _TWO_64 else scaled


UNKNOWN = Range(0, UNBOUNDED)
ZERO = Range(0, 0)
ONE = Range(1, 1)


class Node(Protocol):
    """An argument as the estimator sees it.

    `path` leads from a variable to the value (`("object", "spec", "@items")`), or is None where none leads
    there; `size` is what the expression itself tells of the value's size, or None.
    """

    @property
    def path(self) -> tuple[str, ...] | None: ...
    @property
    def type(self) -> Type: ...
    @property
    def expr(self) -> Expr | None: ...
    @property
    def size(self) -> Range | None: ...


@dataclass(frozen=True, slots=True)
class ItemsNode:
    """The elements of a list argument, seen as an argument themselves."""

    path: tuple[str, ...] | None
    type: Type
    expr: Expr | None = None
    size: Range | None = None


class CallEstimate(NamedTuple):
    """Estimated cost of a call without its arguments, and the size of its result where it has one."""

    cost: Range
    result: Range | None = None


#: Size hints: the size of a value nobody computed, or None.
SizeHint = Callable[[Node], Range | None]
#: (size hints, overload id, receiver or None, arguments) -> estimate, or None for "no opinion".
Estimate = Callable[[SizeHint, str, Node | None, Sequence[Node]], CallEstimate | None]
#: (overload id or "", arguments with the receiver first, result) -> cost, or None for "no opinion".
#: Arguments and result can be `EvaluationError` instances: failed calls cost as well.
Actual = Callable[[str, Sequence[Any], Any], int | None]


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of one function, for all its overloads. `needs_result` when `actual` looks at the result."""

    estimate: Estimate | None = None
    actual: Actual | None = None
    needs_result: bool = False


def size_of(value: Any) -> int:
    """Run-time size: code points, bytes, elements or entries; 1 for everything else."""
    size = size_or_none(value)
    if size is not None:
        return size
    if type(value) is Optional and value.has_value:
        return size_of(value.value)
    return 1


def plain_size(value: Any) -> int:
    """Run-time size as Kubernetes' own functions count it: optionals count 1."""
    size = size_or_none(value)
    return 1 if size is None else size


def estimated_size(hint: SizeHint, node: Node) -> Range:
    """The best known size of an argument."""
    return node.size or hint(node) or UNKNOWN


def element_node(node: Node) -> ItemsNode | None:
    """The elements of a list (keys of a map), or None when the static type has no parameters."""
    if not node.type.params:
        return None
    return ItemsNode((*node.path, "@items") if node.path is not None else None, node.type.params[0])


def traversal(size: int, factor: float = TRAVERSAL_FACTOR) -> int:
    """Cost of reading `size` units once."""
    return math.ceil(size * factor)


def _constant(_hint: SizeHint, _overload: str, _target: Node | None, _args: Sequence[Node]) -> CallEstimate:
    return CallEstimate(ONE)


#: Accessors and arithmetic of fixed cost 1.
NOMINAL = CostModel(_constant, lambda _overload, _args, _result: 1)


def _read_argument(factor: float, sized_result: bool = False) -> CostModel:
    """Reads its first argument once (factor 0.1) or more; `sized_result`: the result is about as long."""

    def estimate(hint: SizeHint, _: str, __: Node | None, args: Sequence[Node]) -> CallEstimate | None:
        if not args:
            return None
        size = estimated_size(hint, args[0])
        return CallEstimate(size.scaled(factor), size if sized_result else None)

    return CostModel(estimate, lambda _overload, args, _result: math.ceil(plain_size(args[0]) * factor))


#: isIP, cidr, isCIDR, quantity, isQuantity, semver, isSemver: parse one string.
PARSE_ARGUMENT = _read_argument(TRAVERSAL_FACTOR)
#: url
PARSE_URL = _read_argument(TRAVERSAL_FACTOR, sized_result=True)


def _canonical_actual(_: str, args: Sequence[Any], __: Any) -> int:
    return math.ceil(float(plain_size(args[0])) * 2 * TRAVERSAL_FACTOR)


#: ip.isCanonical: parse and compare.
CANONICAL = CostModel(_read_argument(2 * TRAVERSAL_FACTOR).estimate, _canonical_actual)


def _ip_estimate(hint: SizeHint, overload: str, _: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if overload == "cidr_ip":
        return CallEstimate(ONE)
    return CallEstimate(estimated_size(hint, args[0]).scaled(TRAVERSAL_FACTOR)) if args else None


def _ip_actual(overload: str, args: Sequence[Any], _: Any) -> int:
    return 1 if overload == "cidr_ip" else traversal(plain_size(args[0]))


#: ip(string) and cidr.ip()
IP = CostModel(_ip_estimate, _ip_actual)


def _text_estimate(hint: SizeHint, _: str, target: Node | None, __: Sequence[Node]) -> CallEstimate | None:
    if target is None:
        return None
    size = estimated_size(hint, target)
    return CallEstimate(size.scaled(TRAVERSAL_FACTOR), size)


#: lowerAscii, upperAscii, substring, trim: read the receiver, result at most as long.
TEXT = CostModel(_text_estimate, lambda _overload, args, _result: traversal(plain_size(args[0])))


def _replace_estimate(
    hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]
) -> CallEstimate | None:
    if target is None or len(args) < 2:
        return None
    size = estimated_size(hint, target)
    old, new = estimated_size(hint, args[0]), estimated_size(hint, args[1])
    if old.min == 0:  # an empty pattern surrounds every character with the replacement
        most, kept_most = min(size.max + 1, UNBOUNDED), size.max
    elif new.max <= old.min:  # cannot grow
        most, kept_most = 0, size.max
    else:
        most, kept_most = _ceil_divide(size.max, old.min), 0
    if old.max == 0:
        least, kept_least = min(size.min + 1, UNBOUNDED), size.min
    elif old.max <= new.min:  # cannot shrink
        least, kept_least = 0, size.min
    else:
        least, kept_least = _ceil_divide(size.min, old.max), 0
    result = Range(least, most).times(new).plus(Range(kept_least, kept_most))
    return CallEstimate(size.scaled(2 * TRAVERSAL_FACTOR), result)


def _ceil_divide(a: int, b: int) -> int:
    quotient = math.ceil(float(a) / float(b))
    # A Go conversion of 2**64 from double to uint64 on amd64 gives 2**63; sizes that large are unknown
    # anyway.
    return quotient if quotient < 2**64 else 2**63


def _twice_actual(_: str, args: Sequence[Any], __: Any) -> int:
    return math.ceil(float(plain_size(args[0])) * 2 * TRAVERSAL_FACTOR)


#: replace
REPLACE = CostModel(_replace_estimate, _twice_actual)


def _split_estimate(hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if target is None:
        return None
    size = estimated_size(hint, target)
    most = size.max
    if len(args) > 1:
        limit = getattr(args[1].expr, "value", None)
        if type(limit) is int:
            most = limit % 2**64
    return CallEstimate(size.scaled(2 * TRAVERSAL_FACTOR), Range(0, most))


#: split
SPLIT = CostModel(_split_estimate, _twice_actual)


def _join_estimate(hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if target is None:
        return None
    count = estimated_size(hint, target)
    size = ZERO
    element = element_node(target)
    if element is not None:
        size = count.times(estimated_size(hint, element))
    if args:
        separators = Range(max(count.min - 1, 0), max(count.max - 1, 0))
        size = size.plus(estimated_size(hint, args[0]).times(separators))
    return CallEstimate(size.scaled(TRAVERSAL_FACTOR), size)


def _join_actual(_: str, args: Sequence[Any], result: Any) -> int:
    return math.ceil(float(plain_size(result)) * 2 * TRAVERSAL_FACTOR)


#: join
JOIN = CostModel(_join_estimate, _join_actual, needs_result=True)


def _find_estimate(hint: SizeHint, _: str, target: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if target is None or not args:
        return None
    size = estimated_size(hint, target)
    cost = size.plus(ONE).scaled(TRAVERSAL_FACTOR).times(estimated_size(hint, args[0]).scaled(REGEX_FACTOR))
    return CallEstimate(cost, Range(0, size.max))


def regex_cost(text: int, pattern: int) -> int:
    """Cost of matching `text` units against a pattern of `pattern` characters."""
    return math.ceil((1.0 + text) * TRAVERSAL_FACTOR) * math.ceil(pattern * REGEX_FACTOR)


def _find_actual(_: str, args: Sequence[Any], __: Any) -> int | None:
    if len(args) < 2:
        return None
    return regex_cost(plain_size(args[0]), plain_size(args[1]))


#: find, findAll
FIND = CostModel(_find_estimate, _find_actual)


def _search_estimate(includes: bool) -> Estimate:
    def estimate(hint: SizeHint, _: str, target: Node | None, __: Sequence[Node]) -> CallEstimate | None:
        if target is None:
            return None
        size = estimated_size(hint, target)
        element = element_node(target)
        if element is not None:
            cost = ONE
            if element.type.kind in (types.STRING, types.BYTES):
                cost = cost.plus(estimated_size(hint, element).scaled(TRAVERSAL_FACTOR))
            return CallEstimate(size.times(cost))
        if includes:  # the receiver may be a list even though its static type does not say so
            return CallEstimate(size.times(ONE))
        return CallEstimate(size.scaled(TRAVERSAL_FACTOR))

    return estimate


def deep_cost(value: Any) -> int:
    """Cost of reading a value as a tree: strings and bytes 0.1 a byte (rounded down), other scalars 1."""
    cost = visited = 0
    todo = [value]
    while todo:
        v = todo.pop()
        visited += 1
        if visited > MAX_VISITED:
            raise too_large()
        if isinstance(v, str):
            cost += int(len(v.encode("utf-8", "surrogatepass")) * TRAVERSAL_FACTOR)
        elif isinstance(v, bytes):
            cost += int(len(v) * TRAVERSAL_FACTOR)
        elif isinstance(v, list | ListView):
            todo.extend(v)
        elif isinstance(v, dict | MapView):
            for key, item in v.items():
                todo.append(key)
                todo.append(item)
        else:
            cost += 1
    return cost


def _search_actual(_: str, args: Sequence[Any], __: Any) -> int:
    return deep_cost(args[0]) if args else 0


#: isSorted, sum, min, max, indexOf, lastIndexOf: go through the receiver once.
SEARCH = CostModel(_search_estimate(includes=False), _search_actual)
#: includes
INCLUDES = CostModel(_search_estimate(includes=True), _search_actual)

_ADDRESS = Range(4, 16)


def _contains_estimate(parsed: str, inner: bool) -> Estimate:
    def estimate(hint: SizeHint, overload: str, _: Node | None, args: Sequence[Node]) -> CallEstimate | None:
        if not args:
            return None
        cost = _ADDRESS.plus(_ADDRESS).scaled(TRAVERSAL_FACTOR)
        if inner:
            cost = cost.plus(_ADDRESS.scaled(TRAVERSAL_FACTOR)).plus(ONE)
        if overload == parsed:
            cost = cost.plus(estimated_size(hint, args[0]).scaled(TRAVERSAL_FACTOR))
        return CallEstimate(cost)

    return estimate


def _contains_actual(parsed: str, inner: bool) -> Actual:
    def actual(overload: str, args: Sequence[Any], _: Any) -> int | None:
        if len(args) < 2:
            return None
        network, other = plain_size(args[0]), plain_size(args[1])
        cost = traversal(network + network)
        if inner:
            cost += traversal(network) + 1
        if overload == parsed:
            cost += traversal(other)
        return cost

    return actual


#: cidr.containsIP(ip or string)
CONTAINS_IP = CostModel(
    _contains_estimate("cidr_contains_ip_string", inner=False),
    _contains_actual("cidr_contains_ip_string", inner=False),
)
#: cidr.containsCIDR(cidr or string)
CONTAINS_CIDR = CostModel(
    _contains_estimate("cidr_contains_cidr_string", inner=True),
    _contains_actual("cidr_contains_cidr_string", inner=True),
)


def validate(largest_regex: int, regex_size: Callable[[Any], int | None]) -> CostModel:
    """format.validate(string). `regex_size` gives a format value's own bound, or None for anything else."""

    def estimate(hint: SizeHint, _: str, __: Node | None, args: Sequence[Node]) -> CallEstimate | None:
        if not args:
            return None
        read = estimated_size(hint, args[0]).scaled(TRAVERSAL_FACTOR)
        return CallEstimate(read.scaled(largest_regex * REGEX_FACTOR))

    def actual(_: str, args: Sequence[Any], __: Any) -> int | None:
        bound = regex_size(args[0]) if len(args) >= 2 else None
        return None if bound is None else regex_cost(plain_size(args[1]), bound)

    return CostModel(estimate, actual)


#: Names of the Kubernetes types whose equality has a fixed cost.
_FIXED_EQUALITY = frozenset(
    (
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.URL",
        "kubernetes.NamedFormat",
        "net.IP",
        "net.CIDR",
    )
)
_LONGEST_FORMAT_NAME = 64


def _equality_estimate(_: SizeHint, __: str, ___: Node | None, args: Sequence[Node]) -> CallEstimate | None:
    if len(args) != 2 or args[0].type.name != args[1].type.name:
        return None
    name = args[0].type.name
    if name == "kubernetes.NamedFormat":
        return CallEstimate(Range(1, _LONGEST_FORMAT_NAME).scaled(TRAVERSAL_FACTOR))
    if name == "kubernetes.URL":
        size = args[1].size or ONE
        return CallEstimate(Range(1, size.max).scaled(TRAVERSAL_FACTOR))
    return CallEstimate(ONE) if name in _FIXED_EQUALITY else None


def _equality_actual(_: str, args: Sequence[Any], __: Any) -> int | None:
    declared = getattr(args[0], "cel_type", None)
    return 1 if declared is not None and declared.name in _FIXED_EQUALITY else None


#: == of Kubernetes' own types; None (the standard cost) for all others.
EQUALITY = CostModel(_equality_estimate, _equality_actual)


def _smaller(args: Sequence[Any]) -> int:
    return math.ceil(min(size_of(args[0]), size_of(args[1])) * TRAVERSAL_FACTOR)


def _standard_costs() -> dict[str, Callable[[Sequence[Any]], int]]:
    def first(args: Sequence[Any]) -> int:
        return traversal(size_of(args[0]))

    def second(args: Sequence[Any]) -> int:
        return traversal(size_of(args[1]))

    def both(args: Sequence[Any]) -> int:
        return traversal(size_of(args[0]) + size_of(args[1]))

    def pattern(args: Sequence[Any]) -> int:
        return regex_cost(size_of(args[0]), size_of(args[1]))

    def product(args: Sequence[Any]) -> int:
        return traversal(size_of(args[0])) * traversal(size_of(args[1]))

    costs: dict[str, Callable[[Sequence[Any]], int]] = {
        "starts_with_string": second,
        "ends_with_string": second,
        "string_to_bytes": first,
        "bytes_to_string": first,
        "strings_quote": first,
        "string_format": first,
        "in_list": lambda args: size_of(args[1]),
        "equals": _smaller,
        "not_equals": _smaller,
        "add_string": both,
        "add_bytes": both,
        "matches": pattern,
        "matches_string": pattern,
        "contains_string": product,
    }
    for operator in ("less", "less_equals", "greater", "greater_equals"):
        for kind in ("string", "bytes"):
            costs[f"{operator}_{kind}"] = _smaller
    return costs


#: Run-time costs of overloads of the language definition, from their arguments; all others cost 1.
STANDARD_COSTS = _standard_costs()
