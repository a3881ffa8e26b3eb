"""The type checker: resolves names, picks overloads, and gives every node a type.

What it decides is what cel-go's checker decides, because costs depend on it: a call that is left with exactly
one overload is charged by that overload, one that is left with several is charged the default. Errors are
collected, not raised one by one, and name the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_cel import messages, types
from kubernetes_cel.ast import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    Source,
    StructLiteral,
)
from kubernetes_cel.declarations import Declarations, Function, Overload
from kubernetes_cel.errors import CheckError, Issue
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.types import Type, format_type, is_dyn, is_dyn_or_error
from kubernetes_cel.unification import Bindings, equal_or_less_specific
from kubernetes_cel.values import MISSING, Uint


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked tree: `types` by node id, `overloads` by id of each call, `constants` by id of names of
    types and of protobuf's null (MISSING for types that upstream can name, but has no value for).

    `names` holds the variables that selections such as `a.b` turned out to be. `nodes` are all nodes that are
    evaluated, parents before what is below them.
    """

    root: Expr
    source: Source
    types: Mapping[int, Type]
    overloads: Mapping[int, tuple[str, ...]]
    constants: Mapping[int, Any]
    names: Mapping[int, str]
    nodes: Sequence[Expr]


def check(root: Expr, source: Source, declarations: Declarations) -> Checked:
    """Check a tree. Raises `CheckError` with all findings. Rewrites qualified names in the tree."""
    checker = _Checker(source, declarations)
    drive(checker.check(root))
    if checker.issues:
        raise CheckError(checker.issues, source.text)
    resolve = checker.bindings.resolve
    final = {node: resolve(t, unbound_to_dyn=True) if t.generic else t for node, t in checker.types.items()}
    return Checked(root, source, final, checker.overloads, checker.constants, checker.names, checker.nodes)


_LITERALS: dict[type, Type] = {
    type(None): types.null,
    bool: types.bool_,
    int: types.int_,
    Uint: types.uint,
    float: types.double,
    str: types.string,
    bytes: types.bytes_,
}


def qualified_name(node: Expr) -> str | None:
    """`a.b.c` for a chain of plain selections on a name, else None."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join([node.name, *reversed(parts)])


class _Checker:
    def __init__(self, source: Source, declarations: Declarations) -> None:
        self._source = source
        self._declarations = declarations
        self._scopes: list[dict[str, Type]] = []
        self.bindings = Bindings()
        self.types: dict[int, Type] = {}
        self.overloads: dict[int, tuple[str, ...]] = {}
        self.constants: dict[int, Any] = {}
        self.issues: list[Issue] = []
        self.names: dict[int, str] = {}
        self.nodes: list[Expr] = []

    # -- findings

    def _report(self, node: int, message: str) -> None:
        self.issues.append(Issue(*self._source.location(node), message))

    def _mismatch(self, node: int, expected: Type, actual: Type) -> None:
        self._report(node, f"expected type '{format_type(expected)}' but found '{format_type(actual)}'")

    def _undeclared(self, node: int, name: str) -> None:
        self._report(
            node, f"undeclared reference to '{name}' (in container '{self._declarations.container}')"
        )
        self.types[node] = types.error

    # -- names

    def _local(self, name: str) -> Type | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _candidates(self, name: str) -> list[str]:
        """What a name may stand for, the innermost namespace of the container first."""
        if name.startswith("."):
            return [name[1:]]
        parts = self._declarations.container.split(".") if self._declarations.container else []
        return [".".join([*parts[:length], name]) for length in range(len(parts), -1, -1)]

    def _global(self, name: str) -> tuple[str, Type, Any] | None:
        """The full name of a variable, its type and None; or of a constant, its type and its value."""
        for candidate in self._candidates(name):
            declared = self._declarations.variables.get(candidate)
            if declared is not None:
                return candidate, declared, None
            named = self._declarations.type_names.get(candidate)
            if named is not None:
                return candidate, types.type_of_type(named), named
            message = messages.TYPES.get(candidate)
            if message is not None:
                value = message if message.kind == types.STRUCT else MISSING
                return candidate, types.type_of_type(message), value
            if candidate == messages.NULL:
                return candidate, types.int_, 0
        return None

    def _resolve_name(self, node: Expr, name: str) -> bool:
        """Give a node the type of a name, if there is such a name."""
        bare = name.removeprefix(".")
        head = bare.split(".", 1)[0]
        local = self._local(bare if "." not in bare else head)
        absolute = name.startswith(".")
        if local is not None and not absolute:
            if "." in bare:
                return False  # a selection on a local variable
            self.types[node.id] = local
            return True
        found = self._global(name)
        if found is None:
            return False
        full, self.types[node.id], constant = found
        if constant is not None:
            self.constants[node.id] = constant
        elif isinstance(node, Select):
            self.names[node.id] = full if local is None else f".{full}"
        elif isinstance(node, Ident) and full != bare:
            node.name = full
        return True

    # -- nodes

    def check(self, node: Expr) -> Work[None]:
        """Give the node and all below it a type."""
        self.nodes.append(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Comprehension):
            return self._comprehension(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        if isinstance(node, StructLiteral):
            return self._struct(node)
        return self._leaf(node)

    def _leaf(self, node: Expr) -> Work[None]:
        self._check_leaf(node)
        return
        yield

    def _check_leaf(self, node: Expr) -> bool:
        """Give a constant or name its type at once; False for everything else."""
        if isinstance(node, Ident):
            if not self._resolve_name(node, node.name):
                self._undeclared(node.id, node.name)
            return True
        if isinstance(node, Literal):
            self.types[node.id] = _LITERALS[type(node.value)]
            return True
        return False

    def _select(self, node: Select) -> Work[None]:
        if not node.test_only:
            name = qualified_name(node)
            if name is not None and self._resolve_name(node, name):
                return
        result = yield self._field(node.id, node.operand, node.field, optional=False)
        self.types[node.id] = types.bool_ if node.test_only else self.bindings.resolve(result)

    def _field(self, node: int, operand: Expr, field: str, *, optional: bool) -> Work[Type]:
        """The type of a field of an operand."""
        if not self._check_leaf(operand):
            yield self.check(operand)
        target, was_optional = types.unwrap_optional(self.bindings.resolve(self.types[operand.id]))
        result = types.dyn
        if target.kind == types.MAP:
            result = target.params[1]
        elif target.kind == types.STRUCT:
            known = self._declarations.fields.get(target.name, {}).get(field)
            if known is None:
                self._report(node, f"undefined field '{field}'")
                known = types.error
            result = known
        elif target.kind == types.TYPE_PARAM:
            self.bindings.assignable(types.dyn, target)
        elif not is_dyn_or_error(target):
            self._report(node, f"type '{format_type(target)}' does not support field selection")
        return types.optional_of(result) if was_optional or optional else result

    def _function(self, name: str) -> Function | None:
        functions = self._declarations.functions
        return next((functions[c] for c in self._candidates(name) if c in functions), None)

    def _call(self, node: Call) -> Work[None]:
        if node.function == "_?._":
            operand, name = node.args
            field = name.value if isinstance(name, Literal) else ""
            result = yield self._field(node.id, operand, field, optional=True)
            self.types[node.id] = self.bindings.resolve(result)
            self.types[name.id] = types.string
            self.overloads[node.id] = ("select_optional_field",)
            return
        for arg in node.args:
            if not self._check_leaf(arg):
                yield self.check(arg)
        if node.target is None:
            function = self._function(node.function)
            if function is None:
                self._undeclared(node.id, node.function)
                return
            node.function = function.name
            self._resolve_call(node, function)
            return
        prefix = qualified_name(node.target)
        if prefix is not None:
            function = self._function(f"{prefix}.{node.function}")
            if function is not None:
                node.function = function.name
                node.target = None
                self._resolve_call(node, function)
                return
        yield self.check(node.target)
        function = self._declarations.functions.get(node.function)
        if function is None:
            self._undeclared(node.id, node.function)
            return
        self._resolve_call(node, function)

    def _resolve_call(self, node: Call, function: Function) -> None:
        operands = node.args if node.target is None else [node.target, *node.args]
        given = [self.types[operand.id] for operand in operands]
        if function.name in ("_&&_", "_||_"):
            self._logical(node, function, given)
            return
        result: Type | None = None
        matched: list[str] = []
        for overload in function.overloads:
            if overload.member is (node.target is None):
                continue
            wanted, returned = self._instantiate(overload)
            if not self.bindings.all_assignable(given, wanted):
                continue
            matched.append(overload.id)
            returned = self.bindings.resolve(returned)
            if result is None:
                result = returned
            elif not is_dyn(result) and returned != result:
                result = types.dyn
        if result is None:
            shown = [format_type(self.bindings.resolve(t, unbound_to_dyn=True)) for t in given]
            receiver = f"{shown.pop(0)}." if node.target is not None else ""
            signature = f"{receiver}({', '.join(shown)})"
            self._report(
                node.id, f"found no matching overload for '{function.name}' applied to '{signature}'"
            )
            self.types[node.id] = types.error
            return
        self.types[node.id] = result
        self.overloads[node.id] = tuple(matched)

    def _logical(self, node: Call, function: Function, given: Sequence[Type]) -> None:
        good = True
        for arg, t in zip(node.args, given, strict=True):
            if not self.bindings.assignable(t, types.bool_):
                self._mismatch(arg.id, types.bool_, t)
                good = False
        self.types[node.id] = types.bool_ if good else types.error
        self.overloads[node.id] = (function.overloads[0].id,)

    def _instantiate(self, overload: Overload) -> tuple[Sequence[Type], Type]:
        """Argument and result types with fresh variables for the overload's type parameters."""
        if not overload.params:
            return overload.args, overload.result
        fresh = {name: self.bindings.fresh() for name in overload.params}
        replacement = fresh.__getitem__
        wanted = [types.replace_params(t, replacement) for t in overload.args]
        return wanted, types.replace_params(overload.result, replacement)

    def _join(self, previous: Type | None, current: Type) -> Type:
        """The common type of aggregate elements: `dyn` for mixed ones, which a validator refuses later."""
        if previous is None:
            return current
        if self.bindings.assignable(previous, current):
            return previous if equal_or_less_specific(previous, current) else current
        return types.dyn

    def _element(self, node: Expr, optional: bool) -> Type:
        t = self.types[node.id]
        if optional:
            inner, is_optional = types.unwrap_optional(t)
            if not is_optional and not is_dyn(inner):
                self._mismatch(node.id, types.optional_of(inner), inner)
            return inner
        return t

    def _list(self, node: ListLiteral) -> Work[None]:
        common: Type | None = None
        for i, element in enumerate(node.elements):
            yield self.check(element)
            common = self._join(common, self._element(element, i in node.optional))
        self.types[node.id] = types.list_of(self.bindings.fresh() if common is None else common)

    def _map(self, node: MapLiteral) -> Work[None]:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            yield self.check(entry.key)
            keys = self._join(keys, self.types[entry.key.id])
            yield self.check(entry.value)
            values = self._join(values, self._element(entry.value, entry.optional))
        if keys is None or values is None:
            keys, values = self.bindings.fresh(), self.bindings.fresh()
        self.types[node.id] = types.map_of(keys, values)

    def _struct(self, node: StructLiteral) -> Work[None]:
        fields = self._message(node)
        if fields is None:
            return
        for entry in node.fields:
            yield self.check(entry.value)
            value = self.types[entry.value.id]
            if entry.optional:
                value, is_optional = types.unwrap_optional(value)
                if not is_optional and not is_dyn(value):
                    self._mismatch(entry.value.id, types.optional_of(value), value)
            wanted = fields.get(entry.name)
            if wanted is None:
                self._report(entry.id, f"undefined field '{entry.name}'")
            elif not self.bindings.assignable(wanted, value):
                self._report(
                    entry.id,
                    f"expected type of field '{entry.name}' is '{format_type(wanted)}' "
                    f"but provided type is '{format_type(value)}'",
                )

    def _message(self, node: StructLiteral) -> Mapping[str, Type] | None:
        """Give a message literal its type; the fields it may have, None when it cannot be constructed."""
        for candidate in self._candidates(node.name):
            message = messages.TYPES.get(candidate)
            if message is not None:
                node.name = candidate
                self.types[node.id] = message
                return messages.fields(message)
            named = self._declarations.type_names.get(candidate)
            if named is not None:
                self._report(node.id, f"'{named.name}' is not a message type")
                self.types[node.id] = types.error
                return None
        self._undeclared(node.id, node.name)
        return None

    def _comprehension(self, node: Comprehension) -> Work[None]:
        yield self.check(node.iter_range)
        yield self.check(node.accu_init)
        over = self.bindings.resolve(self.types[node.iter_range.id])
        accumulated = self.types[node.accu_init.id]
        self._scopes.append({node.accu_var: accumulated})
        first, second = self._variables(node, over)
        variables = {node.iter_var: first}
        if node.iter_var2:
            variables[node.iter_var2] = second
        self._scopes.append(variables)
        yield self.check(node.condition)
        self._assert(node.condition, types.bool_)
        yield self.check(node.step)
        self._assert(node.step, accumulated)
        self._scopes.pop()
        yield self.check(node.result)
        self._scopes.pop()
        self.types[node.id] = self.bindings.resolve(self.types[node.result.id])

    def _variables(self, node: Comprehension, over: Type) -> tuple[Type, Type]:
        if over.kind == types.LIST:
            return (types.int_, over.params[0]) if node.iter_var2 else (over.params[0], types.dyn)
        if over.kind == types.MAP:
            return over.params[0], over.params[1]
        if over.kind in (types.DYN, types.ERROR, types.TYPE_PARAM):
            self.bindings.assignable(types.dyn, over)
            return types.dyn, types.dyn
        self._report(
            node.iter_range.id,
            f"expression of type '{format_type(over)}' cannot be range of a comprehension "
            "(must be list, map, or dynamic)",
        )
        return types.error, types.error

    def _assert(self, node: Expr, wanted: Type) -> None:
        if not self.bindings.assignable(wanted, self.types[node.id]):
            self._mismatch(node.id, wanted, self.types[node.id])
