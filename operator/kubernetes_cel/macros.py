"""Macros: calls that are rewritten into other trees while parsing.

The rewritten trees are exactly upstream's, because the cost of a macro is the cost of its tree. `Expander`
hands out nodes with fresh ids, all placed where the macro call is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubernetes_cel.ast import (
    Call,
    Comprehension,
    Entry,
    Expr,
    Field,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    StructLiteral,
)
from kubernetes_cel.declarations import Library, Macro

#: The accumulator's name; an author cannot write it.
ACCUMULATOR = "@result"
#: The accumulator's old name, which loop variables still may not take.
_OLD_ACCUMULATOR = "__result__"
#: The variable of loops that do not loop.
UNUSED = "#unused"


class MacroError(Exception):
    """Arguments a macro does not accept; `node` is the id of the offending argument."""

    def __init__(self, node: int, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message


class Expander:
    """Makes nodes for a macro. `new_id()` returns a fresh id placed at the macro call."""

    __slots__ = ("new_id",)

    def __init__(self, new_id: Callable[[], int]) -> None:
        self.new_id = new_id

    def literal(self, value: Any) -> Expr:
        """A constant."""
        return Literal(self.new_id(), value)

    def ident(self, name: str) -> Expr:
        """A name."""
        return Ident(self.new_id(), name)

    def accumulator(self) -> Expr:
        """The accumulator's value."""
        return Ident(self.new_id(), ACCUMULATOR)

    def list(self, *elements: Expr) -> Expr:
        """A list literal."""
        return ListLiteral(self.new_id(), list(elements))

    def map(self) -> Expr:
        """An empty map literal."""
        return MapLiteral(self.new_id(), [])

    def call(self, function: str, *args: Expr) -> Expr:
        """A call of a global function or operator."""
        return Call(self.new_id(), function, None, list(args))

    def member_call(self, function: str, target: Expr, *args: Expr) -> Expr:
        """A call of a member function."""
        return Call(self.new_id(), function, target, list(args))

    def presence(self, operand: Expr, field: str) -> Expr:
        """`has(operand.field)`."""
        return Select(self.new_id(), operand, field, test_only=True)

    def fold(
        self,
        over: Expr,
        variables: tuple[str, str],
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
        *,
        accumulator: str = ACCUMULATOR,
        macro: str = "",
    ) -> Expr:
        """A comprehension; the second variable is empty for one-variable macros."""
        return Comprehension(
            self.new_id(), over, *variables, accumulator, init, condition, step, result, macro
        )

    def copy(self, node: Expr) -> Expr:
        """The same tree with fresh ids."""
        new = self.new_id()
        if isinstance(node, Literal):
            return Literal(new, node.value)
        if isinstance(node, Ident):
            return Ident(new, node.name)
        if isinstance(node, Select):
            return Select(new, self.copy(node.operand), node.field, node.test_only)
        if isinstance(node, Call):
            target = None if node.target is None else self.copy(node.target)
            return Call(new, node.function, target, [self.copy(arg) for arg in node.args])
        if isinstance(node, ListLiteral):
            return ListLiteral(new, [self.copy(e) for e in node.elements], node.optional)
        if isinstance(node, MapLiteral):
            return MapLiteral(
                new,
                [
                    Entry(self.new_id(), self.copy(e.key), self.copy(e.value), e.optional)
                    for e in node.entries
                ],
            )
        if isinstance(node, StructLiteral):
            return StructLiteral(
                new,
                node.name,
                [Field(self.new_id(), f.name, self.copy(f.value), f.optional) for f in node.fields],
            )
        return Comprehension(
            new,
            self.copy(node.iter_range),
            node.iter_var,
            node.iter_var2,
            node.accu_var,
            self.copy(node.accu_init),
            self.copy(node.condition),
            self.copy(node.step),
            self.copy(node.result),
            node.macro,
        )


def _has(x: Expander, _: Expr | None, args: list[Expr]) -> Expr:
    if not isinstance(args[0], Select):
        raise MacroError(args[0].id, "invalid argument to has() macro")
    return x.presence(args[0].operand, args[0].field)


def _variable(node: Expr, complaint: str) -> str:
    if not isinstance(node, Ident):
        raise MacroError(node.id, complaint)
    if node.name in (ACCUMULATOR, _OLD_ACCUMULATOR):
        raise MacroError(node.id, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(args: list[Expr]) -> tuple[str, str]:
    names = []
    for node in args[:2]:
        if not isinstance(node, Ident):
            raise MacroError(node.id, "argument must be a simple name")
        names.append(node.name)
    if names[0] == names[1]:
        raise MacroError(args[1].id, f"duplicate variable name: {names[0]}")
    for node, name in zip(args, names, strict=False):
        if name in (ACCUMULATOR, _OLD_ACCUMULATOR):
            raise MacroError(node.id, "iteration variable overwrites accumulator variable")
    return names[0], names[1]


def _all(x: Expander, over: Expr, variables: tuple[str, str], predicate: Expr) -> Expr:
    return x.fold(
        over,
        variables,
        x.literal(True),
        x.call("@not_strictly_false", x.accumulator()),
        x.call("_&&_", x.accumulator(), predicate),
        x.accumulator(),
        macro="all",
    )


def _exists(x: Expander, over: Expr, variables: tuple[str, str], predicate: Expr) -> Expr:
    return x.fold(
        over,
        variables,
        x.literal(False),
        x.call("@not_strictly_false", x.call("!_", x.accumulator())),
        x.call("_||_", x.accumulator(), predicate),
        x.accumulator(),
        macro="exists",
    )


def _exists_one(x: Expander, over: Expr, variables: tuple[str, str], predicate: Expr) -> Expr:
    one_more = x.call("_+_", x.accumulator(), x.literal(1))
    return x.fold(
        over,
        variables,
        x.literal(0),
        x.literal(True),
        x.call("_?_:_", predicate, one_more, x.accumulator()),
        x.call("_==_", x.accumulator(), x.literal(1)),
        macro="exists_one",
    )


def _collect(
    x: Expander, over: Expr, variables: tuple[str, str], predicate: Expr | None, transform: Expr
) -> Expr:
    step = x.call("_+_", x.accumulator(), x.list(transform))
    if predicate is not None:
        step = x.call("_?_:_", predicate, step, x.accumulator())
    return x.fold(over, variables, x.list(), x.literal(True), step, x.accumulator(), macro="collect")


def _collect_map(
    x: Expander, over: Expr, variables: tuple[str, str], predicate: Expr | None, step: Expr
) -> Expr:
    if predicate is not None:
        step = x.call("_?_:_", predicate, step, x.accumulator())
    return x.fold(over, variables, x.map(), x.literal(True), step, x.accumulator(), macro="collect_map")


def _range(target: Expr | None) -> Expr:
    assert target is not None  # receiver macros have one
    return target


_Quantifier = Callable[[Expander, Expr, tuple[str, str], Expr], Expr]


def _one_variable(build: _Quantifier) -> Callable[[Expander, Expr | None, list[Expr]], Expr]:
    def expand(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
        variable = _variable(args[0], "argument must be a simple name")
        return build(x, _range(target), (variable, ""), args[1])

    return expand


def _two_variables(build: _Quantifier) -> Callable[[Expander, Expr | None, list[Expr]], Expr]:
    def expand(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
        return build(x, _range(target), _variables(args), args[2])

    return expand


def expand_map(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
    """list.map(e, x) and list.map(e, condition, x); the list extension sorts by it."""
    variable = _variable(args[0], "argument is not an identifier")
    predicate = args[1] if len(args) == 3 else None
    return _collect(x, _range(target), (variable, ""), predicate, args[-1])


def _filter(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
    variable = _variable(args[0], "argument is not an identifier")
    return _collect(x, _range(target), (variable, ""), args[1], args[0])


def _transform_list(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
    predicate = args[2] if len(args) == 4 else None
    return _collect(x, _range(target), _variables(args), predicate, args[-1])


def _transform_map(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
    variables = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = x.call("cel.@mapInsert", x.accumulator(), x.ident(variables[0]), args[-1])
    return _collect_map(x, _range(target), variables, predicate, step)


def _transform_map_entry(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
    variables = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = x.call("cel.@mapInsert", x.accumulator(), args[-1])
    return _collect_map(x, _range(target), variables, predicate, step)


def let(x: Expander, name: str, value: Expr, body: Expr) -> Expr:
    """`body` with `name` bound to `value`: a fold over nothing whose accumulator is the variable."""
    return x.fold(
        x.list(),
        (UNUSED, ""),
        value,
        x.literal(False),
        x.ident(name),
        body,
        accumulator=name,
        macro="let",
    )


def _opt_map(flat: bool) -> Callable[[Expander, Expr | None, list[Expr]], Expr]:
    name = "optFlatMap" if flat else "optMap"

    def expand(x: Expander, target: Expr | None, args: list[Expr]) -> Expr:
        if not isinstance(args[0], Ident):
            raise MacroError(args[0].id, f"{name}() variable name must be a simple identifier")
        operand = _range(target)
        present = x.member_call("hasValue", operand)
        body = let(x, args[0].name, x.member_call("value", x.copy(operand)), args[1])
        if not flat:
            body = x.call("optional.of", body)
        return x.call("_?_:_", present, body, x.call("optional.none"))

    return expand


def _bind(x: Expander, target: Expr | None, args: list[Expr]) -> Expr | None:
    if not isinstance(target, Ident) or target.name != "cel":
        return None
    if not isinstance(args[0], Ident):
        raise MacroError(args[0].id, "cel.bind() variable names must be simple identifiers")
    return let(x, args[0].name, args[1], args[2])


#: The macros of the language definition.
STANDARD_MACROS = (
    Macro("has", 1, False, _has),
    Macro("all", 2, True, _one_variable(_all)),
    Macro("exists", 2, True, _one_variable(_exists)),
    Macro("exists_one", 2, True, _one_variable(_exists_one)),
    Macro("map", 2, True, expand_map),
    Macro("map", 3, True, expand_map),
    Macro("filter", 2, True, _filter),
)

#: Two-variable comprehensions.
TWO_VARIABLE_MACROS = (
    Macro("all", 3, True, _two_variables(_all)),
    Macro("exists", 3, True, _two_variables(_exists)),
    Macro("existsOne", 3, True, _two_variables(_exists_one)),
    Macro("exists_one", 3, True, _two_variables(_exists_one)),
    Macro("transformList", 3, True, _transform_list),
    Macro("transformList", 4, True, _transform_list),
    Macro("transformMap", 3, True, _transform_map),
    Macro("transformMap", 4, True, _transform_map),
    Macro("transformMapEntry", 3, True, _transform_map_entry),
    Macro("transformMapEntry", 4, True, _transform_map_entry),
)

#: Macros of optional values.
OPTIONAL_MACROS = (
    Macro("optMap", 2, True, _opt_map(flat=False)),
    Macro("optFlatMap", 2, True, _opt_map(flat=True)),
)

#: `cel.bind`, which only device selectors have.
BINDINGS = Library("bindings", macros=(Macro("bind", 3, True, _bind),))
