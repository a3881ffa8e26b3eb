"""The estimated cost of a checked expression: least and most, without running it.

Sizes that the expression does not tell come from a hint (`costs.SizeHint`) that is asked with the path of a
value below a variable. The arithmetic and its gaps are upstream's: a selection on a dynamic value costs
nothing, so an estimate can be below what a run costs, and a string that is built and read again has no known
size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kubernetes_cel import types
from kubernetes_cel.ast import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    StructLiteral,
)
from kubernetes_cel.checker import Checked
from kubernetes_cel.costs import (
    IDENT_COST,
    LIST_COST,
    MAP_COST,
    ONE,
    REGEX_FACTOR,
    STRUCT_COST,
    TRAVERSAL_FACTOR,
    UNBOUNDED,
    UNKNOWN,
    ZERO,
    CallEstimate,
    CostModel,
    Range,
    SizeHint,
)
from kubernetes_cel.macros import ACCUMULATOR
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.types import Type

Path = tuple[str, ...]
_EMPTY = Range(UNBOUNDED, 0)  # the neutral element of union
_SCALARS = frozenset((types.BOOL, types.DOUBLE, types.DURATION, types.INT, types.TIMESTAMP, types.UINT))
_ORDERED = frozenset(
    f"{operator}_{kind}"
    for operator in ("less", "less_equals", "greater", "greater_equals")
    for kind in ("string", "bytes")
)


def estimate_cost(checked: Checked, models: Mapping[str, CostModel], hint: SizeHint) -> Range:
    """Least and most cost of an expression, each saturating at 2**64 - 1."""
    return drive(_Estimator(checked, models, hint).cost(checked.root))


@dataclass(frozen=True, slots=True)
class _Argument:
    """An expression as cost models see it."""

    path: Path | None
    type: Type
    expr: Expr | None
    size: Range | None


@dataclass(frozen=True, slots=True)
class _Entries:
    """Sizes of what is in a list or map: `keys` and `values`; of what kind the container is."""

    kind: str
    keys: Range
    values: Range

    def union(self, other: _Entries) -> _Entries:
        return _Entries(self.kind, self.keys.union(other.keys), self.values.union(other.values))


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: Range | None = None
    entries: _Entries | None = None


@dataclass(slots=True)
class _Estimator:
    checked: Checked
    models: Mapping[str, CostModel]
    hint: SizeHint
    paths: dict[int, Path] = field(default_factory=dict)
    locals: dict[str, list[_Local]] = field(default_factory=dict)
    sizes: dict[int, Range] = field(default_factory=dict)
    entries: dict[int, _Entries] = field(default_factory=dict)

    # -- what is known of values

    def _type(self, node: Expr) -> Type:
        return self.checked.types.get(node.id, types.dyn)

    def _local(self, name: str) -> _Local | None:
        stack = self.locals.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Expr) -> Path:
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                return local.path
        return self.paths.get(node.id, ())

    def _argument(self, node: Expr) -> _Argument:
        path: Path | None = self._path(node)
        if not path or path[0] == ACCUMULATOR:
            path = None
        return _Argument(path, self._type(node), node, self._size(node))

    def _size(self, node: Expr) -> Range | None:
        known = self.sizes.get(node.id)
        if known is not None:
            return known
        written = _written_size(node)
        if written is not None:
            return written
        hinted = self.hint(_Argument(self._path(node) or None, self._type(node), node, None))
        if hinted is not None:
            self.sizes[node.id] = hinted
            return hinted
        if _is_scalar(self._type(node)):
            return ONE
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                return local.size
        return None

    def _size_or_unknown(self, node: Expr) -> Range:
        size = self._size(node)
        return UNKNOWN if size is None else size

    def _entries(self, node: Expr) -> _Entries | None:
        known = self.entries.get(node.id)
        if known is not None:
            return known
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                return local.entries
        return None

    def _set_size(self, node: Expr, size: Range | None) -> None:
        if size is not None:
            self.sizes[node.id] = size

    def _set_entries(self, node: Expr, entries: _Entries | None) -> None:
        if entries is not None:
            self.entries[node.id] = entries

    # -- nodes

    def cost(self, node: Expr) -> Work[Range]:
        """Cost of a node and all below it."""
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Comprehension):
            return self._let(node) if node.macro == "let" else self._comprehension(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        return self._other(node)

    def _other(self, node: Expr) -> Work[Range]:
        leaf = self._leaf(node)
        if leaf is not None:
            return leaf
        total = Range(STRUCT_COST, STRUCT_COST)
        if isinstance(node, StructLiteral):
            for entry in node.fields:
                total = total.plus((yield self.cost(entry.value)))
        return total

    def _leaf(self, node: Expr) -> Range | None:
        """Cost of a constant or name at once; None for everything else."""
        if isinstance(node, Literal):
            return ZERO
        if isinstance(node, Ident):
            local = self._local(node.name)
            if local is not None:
                self.paths[node.id] = local.path
            else:
                # A name that needs its dot, because a loop variable hides it, keeps it and so gets no size
                # hint.
                bare = node.name.removeprefix(".")
                self.paths[node.id] = (bare if self._local(bare) is None else node.name,)
            return ONE
        return None

    def _select(self, node: Select) -> Work[Range]:
        if node.id in self.checked.constants or node.id in self.checked.names:
            # A qualified name of a type or variable: upstream makes it an identifier.
            self.paths[node.id] = (self.checked.names.get(node.id, ""),)
            return ONE
        leaf = self._leaf(node.operand)
        total: Range = (yield self.cost(node.operand)) if leaf is None else leaf
        if node.test_only:
            return total
        if self._type(node.operand).kind in (types.MAP, types.STRUCT, types.TYPE_PARAM):
            total = total.plus(Range(IDENT_COST, IDENT_COST))
        self.paths[node.id] = (*self._path(node.operand), node.field)
        return total

    def _list(self, node: ListLiteral) -> Work[Range]:
        total = Range(LIST_COST, LIST_COST)
        items = _EMPTY if node.elements else ZERO
        for element in node.elements:
            total = total.plus((yield self.cost(element)))
            items = items.union(self._size_or_unknown(element))
        self.entries[node.id] = _Entries(types.LIST, ONE, items)
        return total

    def _map(self, node: MapLiteral) -> Work[Range]:
        total = Range(MAP_COST, MAP_COST)
        keys = values = _EMPTY if node.entries else ZERO
        for entry in node.entries:
            total = total.plus((yield self.cost(entry.key)))
            total = total.plus((yield self.cost(entry.value)))
            keys = keys.union(self._size_or_unknown(entry.key))
            values = values.union(self._size_or_unknown(entry.value))
        self.entries[node.id] = _Entries(types.MAP, keys, values)
        return total

    def _let(self, node: Comprehension) -> Work[Range]:
        total: Range = yield self.cost(node.iter_range)
        total = total.plus((yield self.cost(node.accu_init)))
        init = node.accu_init
        local = _Local(self._path(init), self._size(init), self._entries(init))
        self.locals.setdefault(node.accu_var, []).append(local)
        total = total.plus((yield self.cost(node.result)))
        self.locals[node.accu_var].pop()
        self._set_size(node, self._size(node.result))
        self._set_entries(node, self._entries(node.result))
        return total

    def _comprehension(self, node: Comprehension) -> Work[Range]:
        over, init = node.iter_range, node.accu_init
        total: Range = yield self.cost(over)
        total = total.plus((yield self.cost(init)))
        self._push(node.accu_var, _Local(self._path(init), self._size(init), self._entries(init)))
        for name, local in self._iteration(node):
            self._push(name, local)
        loop: Range = yield self.cost(node.condition)
        loop = (yield self.cost(node.step)).plus(loop)
        self.locals[node.iter_var].pop()
        if node.iter_var2:
            self.locals[node.iter_var2].pop()
        total = total.plus((yield self.cost(node.result)))
        self.locals[node.accu_var].pop()
        count = self._size_or_unknown(over)
        total = total.plus(count.times(loop))
        if isinstance(init, Literal):
            self._set_size(node, self._size(init))
        elif isinstance(init, ListLiteral | MapLiteral):
            self.sizes[node.id] = count
            self._set_entries(node, self._entries(node.step))
        return total

    def _push(self, name: str, local: _Local) -> None:
        self.locals.setdefault(name, []).append(local)

    def _iteration(self, node: Comprehension) -> list[tuple[str, _Local]]:
        entries = self._entries(node.iter_range)
        kind = self._type(node.iter_range).kind if entries is None else entries.kind
        path = self._path(node.iter_range)
        keys = None if entries is None else entries.keys
        values = None if entries is None else entries.values
        is_list = kind == types.LIST
        if node.iter_var2:
            return [
                (node.iter_var, _Local((*path, "@indices" if is_list else "@keys"), keys)),
                (node.iter_var2, _Local((*path, "@items" if is_list else "@values"), values)),
            ]
        if is_list:
            return [(node.iter_var, _Local((*path, "@items"), values))]
        return [(node.iter_var, _Local((*path, "@keys"), keys))]

    # -- calls

    def _call(self, node: Call) -> Work[Range]:
        if node.function == "dyn":
            inner: Range = yield self.cost(node.args[0])
            self._set_size(node, self._size(node.args[0]))
            self._set_entries(node, self._entries(node.args[0]))
            return inner.plus(ONE)
        args: list[_Argument] = []
        costs: list[Range] = []
        for arg in node.args:
            leaf = self._leaf(arg)
            costs.append((yield self.cost(arg)) if leaf is None else leaf)
            args.append(self._argument(arg))
        overloads = self.checked.overloads.get(node.id, ())
        if not overloads:
            return ZERO
        total = ZERO
        target: _Argument | None = None
        if node.target is not None:
            total = yield self.cost(node.target)
            target = self._argument(node.target)
        call = _EMPTY
        result: Range | None = None
        for overload in overloads:
            one = self._overload(node, overload, target, args, costs)
            call = call.union(one.cost)
            if one.result is not None:
                result = one.result if result is None else result.union(one.result)
            if overload in ("index_list", "index_map"):
                entries = self._entries(node.args[0])
                result = None if entries is None else entries.values
                step = "@items" if overload == "index_list" else "@values"
                self.paths[node.id] = (*self._path(node.args[0]), step)
            if result is None:
                result = self._size(node)
        self._set_size(node, result)
        return total.plus(call)

    def _overload(
        self,
        node: Call,
        overload: str,
        target: _Argument | None,
        args: Sequence[_Argument],
        costs: Sequence[Range],
    ) -> CallEstimate:
        if overload in ("logical_and", "logical_or"):
            # The other operand may never be looked at.
            return CallEstimate(Range(costs[0].min, costs[0].plus(costs[1]).max))
        if overload == "conditional":
            self._conditional_entries(node)
            size = _known(args[1]).union(_known(args[2]))
            return CallEstimate(costs[0].plus(costs[1].union(costs[2])), size)
        arguments = ZERO
        for cost in costs:
            arguments = arguments.plus(cost)
        model = self.models.get(node.function)
        estimate = None
        if model is not None and model.estimate is not None:
            estimate = model.estimate(self.hint, overload, target, args)
        if estimate is None:
            estimate = self._standard(node, overload, target, args)
        return CallEstimate(estimate.cost.plus(arguments), estimate.result)

    def _conditional_entries(self, node: Call) -> None:
        yes, no = self._entries(node.args[1]), self._entries(node.args[2])
        if yes is not None and no is not None:
            self.entries[node.id] = yes.union(no)

    def _standard(
        self, node: Call, overload: str, target: _Argument | None, args: Sequence[_Argument]
    ) -> CallEstimate:
        """Overloads of the language definition; everything unknown costs 1."""
        if overload in ("starts_with_string", "ends_with_string") and len(args) == 1:
            return CallEstimate(_known(args[0]).scaled(TRAVERSAL_FACTOR))
        if overload in ("equals", "not_equals") or overload in _ORDERED:
            most = min(_known(args[0]).max, _known(args[1]).max)
            return CallEstimate(Range(1 if most > 0 else 0, most).scaled(TRAVERSAL_FACTOR))
        if overload in ("add_string", "add_bytes", "add_list"):
            return self._concatenation(node, overload, args)
        if overload == "in_list" and len(args) == 2:
            return CallEstimate(_known(args[1]).scaled(1.0))
        if overload == "contains_string" and target is not None and len(args) == 1:
            text = _known(target).scaled(TRAVERSAL_FACTOR)
            return CallEstimate(text.times(_known(args[0]).scaled(TRAVERSAL_FACTOR)))
        if overload == "matches_string" and target is not None and len(args) == 1:
            return CallEstimate(_regex(target, args[0]))
        if overload == "matches" and target is None and len(args) == 2:
            return CallEstimate(_regex(args[0], args[1]))
        if overload == "string_format" and target is not None:
            return CallEstimate(_known(target).scaled(TRAVERSAL_FACTOR))
        if overload == "string_to_bytes" and len(args) == 1:
            size = _known(args[0])
            # Wraps around as 64-bit multiplication does; the size is only ever asked for when it is known.
            return CallEstimate(size.scaled(TRAVERSAL_FACTOR), Range(size.min, size.max * 4 % 2**64))
        if overload == "bytes_to_string" and len(args) == 1:
            size = _known(args[0])
            return CallEstimate(size.scaled(TRAVERSAL_FACTOR), Range(size.min // 4, size.max))
        if overload == "strings_quote" and len(args) == 1:
            size = _known(args[0])
            quoted = Range((size.min + 2) % 2**64, (size.max * 2 + 2) % 2**64)
            return CallEstimate(size.scaled(TRAVERSAL_FACTOR), quoted)
        return CallEstimate(ONE)

    def _concatenation(self, node: Call, overload: str, args: Sequence[_Argument]) -> CallEstimate:
        size = _known(args[0]).plus(_known(args[1]))
        left, right = self._entries(node.args[0]), self._entries(node.args[1])
        if left is not None and right is not None:
            self.entries[node.id] = left.union(right)
        if overload == "add_list":
            return CallEstimate(ONE, size)
        return CallEstimate(size.scaled(TRAVERSAL_FACTOR), size)


def _known(argument: _Argument) -> Range:
    return UNKNOWN if argument.size is None else argument.size


def _regex(text: _Argument, pattern: _Argument) -> Range:
    return _known(text).plus(ONE).scaled(TRAVERSAL_FACTOR).times(_known(pattern).scaled(REGEX_FACTOR))


def _written_size(node: Expr) -> Range | None:
    """The size of what is written out: literals, and elements of list and map literals."""
    if isinstance(node, Literal):
        size = len(node.value) if isinstance(node.value, str | bytes) else 1
    elif isinstance(node, ListLiteral):
        size = len(node.elements)
    elif isinstance(node, MapLiteral):
        size = len(node.entries)
    else:
        return None
    return Range(size, size)


def _is_scalar(t: Type) -> bool:
    while t.kind == types.OPAQUE and t.name == "optional_type":
        t = t.params[0]
    return t.kind in _SCALARS
