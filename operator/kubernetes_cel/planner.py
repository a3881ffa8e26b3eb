"""From a checked tree to closures that evaluate it and charge the meter.

Planning does what upstream does when it builds a program: literals of constants are built once, conversions
of constants and constant patterns are evaluated, `in` over constants becomes a set. Whatever of this fails,
fails the compilation. Macros whose trees are known are planned as loops; what they charge is what their trees
would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_cel.aggregates import build_list, build_map, build_message
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
from kubernetes_cel.attributes import (
    Attribute,
    Binding,
    Hidden,
    Local,
    Presence,
    Qualifier,
    Relative,
    Ternary,
    Variable,
    is_key,
)
from kubernetes_cel.calls import (
    call_by_result,
    call_cost,
    call_many,
    call_one,
    call_two,
    call_with_constant,
    equality,
    weighed,
    with_pattern,
)
from kubernetes_cel.checker import Checked
from kubernetes_cel.construction import CONSTRUCTORS
from kubernetes_cel.declarations import Declarations, Function
from kubernetes_cel.dispatch import Target, target
from kubernetes_cel.errors import CheckError, EvaluationAborted, EvaluationError, Issue
from kubernetes_cel.logic import conjunction, disjunction, membership, not_strictly_false, optional_or
from kubernetes_cel.loops import bind_lazily, plan_loop
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.runtime import Code
from kubernetes_cel.values import MISSING, type_name
from kubernetes_cel.values import build_map as make_map

#: Functions whose calls on constants are evaluated while planning.
_CONVERSIONS = frozenset(
    ("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint")
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned node: a constant, an attribute that can be led on from, or code."""

    constant: Any = MISSING
    attribute: Attribute | None = None
    evaluate: Code | None = None

    @property
    def code(self) -> Code:
        """Code that evaluates the node."""
        if self.attribute is not None:
            return self.attribute.code()
        if self.evaluate is not None:
            return self.evaluate
        value = self.constant
        return lambda _: value

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.constant is not MISSING

    def as_attribute(self) -> Attribute:
        """The attribute, or one that starts at the node's value."""
        return self.attribute if self.attribute is not None else Relative(self.code)


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned program and how many slots its runs need."""

    code: Code
    slots: int


def plan(checked: Checked, declarations: Declarations) -> Plan:
    """Plan a checked tree. Raises `CheckError` for constants that cannot be evaluated."""
    planner = _Planner(checked, declarations)
    planned: Planned = drive(planner.plan(checked.root))
    return Plan(planned.code, planner.slots)


class _Planner:
    def __init__(self, checked: Checked, declarations: Declarations) -> None:
        self._checked = checked
        self._declarations = declarations
        self._scopes: list[Mapping[str, Callable[[], Attribute]]] = []
        self.slots = 0

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _fail(self, node: int, message: str) -> CheckError:
        return CheckError([Issue(*self._checked.source.location(node), message)], self._checked.source.text)

    def plan(self, node: Expr) -> Work[Planned]:
        """Plan a node and all below it."""
        if node.id in self._checked.constants:
            named = self._checked.constants[node.id]
            if named is MISSING:
                raise self._fail(node.id, "this type can be constructed, but is no value")
            return Planned(constant=named)
        name = self._checked.names.get(node.id)
        if name is not None:
            return Planned(attribute=Hidden(name[1:]) if name.startswith(".") else Variable(name))
        if isinstance(node, Literal):
            return Planned(constant=node.value)
        if isinstance(node, Ident):
            return Planned(attribute=self._variable(node.name))
        if isinstance(node, Select):
            return (yield from self._select(node))
        if isinstance(node, Call):
            return (yield from self._call(node))
        if isinstance(node, ListLiteral):
            return (yield from self._list(node))
        if isinstance(node, MapLiteral):
            return (yield from self._map(node))
        if isinstance(node, StructLiteral):
            return (yield from self._message(node))
        return (yield from self._comprehension(node))

    def _variable(self, name: str) -> Attribute:
        if not name.startswith("."):
            for scope in reversed(self._scopes):
                make = scope.get(name)
                if make is not None:
                    return make()
            return Variable(name)
        bare = name[1:]
        return Hidden(bare) if any(bare in scope for scope in self._scopes) else Variable(bare)

    # -- attributes

    def _select(self, node: Select) -> Work[Planned]:
        operand: Planned = yield self.plan(node.operand)
        attribute = operand.as_attribute()
        if node.test_only:
            attribute = Presence(attribute)
        attribute.add(Qualifier(node.field))
        return Planned(attribute=attribute)

    def _index(self, node: Call, *, optional: bool) -> Work[Planned]:
        operand: Planned = yield self.plan(node.args[0])
        index: Planned = yield self.plan(node.args[1])
        attribute = operand.as_attribute()
        if index.is_constant:
            if not is_key(index.constant):
                raise self._fail(node.id, f"invalid qualifier type: {type_name(index.constant)}")
            attribute.add(Qualifier(index.constant, optional=optional))
        elif index.attribute is not None:
            attribute.add(Qualifier(code=index.attribute.resolver(), optional=optional))
        else:
            attribute.add(Qualifier(code=index.code, optional=optional))
        return Planned(attribute=attribute)

    # -- calls

    def _call(self, node: Call) -> Work[Planned]:
        function = node.function
        if function == "_[_]":
            return (yield from self._index(node, optional=False))
        if function in ("_?._", "_[?_]"):
            return (yield from self._index(node, optional=True))
        operands = node.args if node.target is None else [node.target, *node.args]
        args: list[Planned] = []
        for operand in operands:
            args.append((yield self.plan(operand)))
        overloads = self._checked.overloads.get(node.id, ())
        overload = overloads[0] if len(overloads) == 1 else ""
        if function == "_?_:_":
            ternary = Ternary(args[0].code, args[1].as_attribute(), args[2].as_attribute())
            return Planned(attribute=ternary)
        special = self._special(node, overload, args)
        if special is not None:
            return special
        declared = self._declarations.functions[function]
        return self._function(node, declared, overloads, overload, args)

    def _special(self, node: Call, overload: str, args: Sequence[Planned]) -> Planned | None:
        function = node.function
        if function == "_&&_":
            return Planned(evaluate=conjunction(args[0].code, args[1].code))
        if function == "_||_":
            return Planned(evaluate=disjunction(args[0].code, args[1].code))
        if function == "@not_strictly_false":
            return Planned(evaluate=not_strictly_false(args[0].code))
        if function in ("_==_", "_!=_"):
            model = self._declarations.functions[function].cost
            return Planned(
                evaluate=equality(args[0].code, args[1].code, args[1].constant, function == "_==_", model)
            )
        if function == "or" and overload in ("", "optional_or_optional") and len(args) == 2:
            return Planned(evaluate=optional_or(args[0].code, args[1].code, unwrap=False))
        if function == "orValue" and overload in ("", "optional_orValue_value") and len(args) == 2:
            return Planned(evaluate=optional_or(args[0].code, args[1].code, unwrap=True))
        if function == "@in" and overload == "in_list" and args[1].is_constant:
            if not args[1].constant:
                return Planned(constant=False)
            code = membership(args[0].code, args[1].constant)
            return None if code is None else Planned(evaluate=code)
        return None

    def _function(
        self,
        node: Call,
        function: Function,
        overloads: Sequence[str],
        overload: str,
        args: Sequence[Planned],
    ) -> Planned:
        chosen = target(function, overloads, len(args))
        if chosen is None:
            raise self._fail(node.id, f"no such overload: {function.name}")
        constants = [arg.constant for arg in args]
        if function.name in _CONVERSIONS and len(args) == 1 and args[0].is_constant:
            try:
                return Planned(constant=chosen.run(constants[0]))
            except EvaluationError as error:
                raise self._fail(node.id, error.message) from None
        if function.precompile is not None and len(args) > 1 and type(constants[1]) is str:
            try:
                chosen = Target(with_pattern(function.precompile(constants[1])), stops_early=True)
            except EvaluationError as error:
                raise self._fail(node.id, error.message) from None
        fixed, cost, needs_result = call_cost(function.cost, overload)
        codes = [arg.code for arg in args]
        if needs_result:
            code = call_by_result(codes, chosen, cost)
        elif chosen.stops_early or len(codes) == 0 or len(codes) > 2:
            code = call_many(codes, chosen.run, cost)
        elif len(codes) == 1:
            code = call_one(codes[0], chosen.run, fixed, cost)
        elif fixed == 0 and args[1].is_constant and function.name != "_+_":
            code = call_with_constant(codes[0], args[1].constant, chosen.run, cost)
        else:
            code = call_two(codes[0], codes[1], chosen.run, fixed, cost)
        if function.grows or (function.name == "_+_" and overload == ""):
            code = weighed(code)
        return Planned(evaluate=code)

    # -- aggregates

    def _list(self, node: ListLiteral) -> Work[Planned]:
        elements: list[Planned] = []
        for element in node.elements:
            elements.append((yield self.plan(element)))
        if not node.optional and all(element.is_constant for element in elements):
            return Planned(constant=[element.constant for element in elements])
        return Planned(evaluate=build_list([e.code for e in elements], node.optional))

    def _map(self, node: MapLiteral) -> Work[Planned]:
        pairs: list[tuple[Planned, Planned, bool]] = []
        for entry in node.entries:
            key: Planned = yield self.plan(entry.key)
            value: Planned = yield self.plan(entry.value)
            pairs.append((key, value, entry.optional))
        if all(key.is_constant and value.is_constant and not optional for key, value, optional in pairs):
            try:
                return Planned(constant=make_map([(k.constant, v.constant) for k, v, _ in pairs]))
            except EvaluationAborted as error:
                raise self._fail(node.id, error.message) from None
        return Planned(evaluate=build_map([(k.code, v.code, optional) for k, v, optional in pairs]))

    def _message(self, node: StructLiteral) -> Work[Planned]:
        fields: list[tuple[str, Code, bool]] = []
        for entry in node.fields:
            value: Planned = yield self.plan(entry.value)
            fields.append((entry.name, value.code, entry.optional))
        return Planned(evaluate=build_message(CONSTRUCTORS[node.name], fields))

    # -- macros

    def _comprehension(self, node: Comprehension) -> Work[Planned]:
        accumulator = self._slot()
        init: Planned = yield self.plan(node.accu_init)
        if node.macro == "let":
            code = init.code
            self._scopes.append({node.accu_var: lambda: Binding(accumulator, code)})
            body: Planned = yield self.plan(node.result)
            self._scopes.pop()
            return Planned(evaluate=bind_lazily(accumulator, body.code))
        over: Planned = yield self.plan(node.iter_range)
        first, second = self._slot(), self._slot() if node.iter_var2 else -1
        self._scopes.append({node.accu_var: lambda: Local(accumulator)})
        variables: dict[str, Callable[[], Attribute]] = {node.iter_var: lambda: Local(first)}
        if node.iter_var2:
            variables[node.iter_var2] = lambda: Local(second)
        self._scopes.append(variables)
        condition: Planned = yield self.plan(node.condition)
        parts = _known_parts(node)
        planned_parts: list[Planned] = []
        for part in parts:
            planned_parts.append((yield self.plan(part)))
        step: Planned = Planned(constant=None) if parts else (yield self.plan(node.step))
        self._scopes.pop()
        result: Planned = yield self.plan(node.result)
        self._scopes.pop()
        loop = plan_loop(
            node.macro,
            over.code,
            (accumulator, first, second),
            init.constant,
            condition.code,
            step.code,
            result.code,
            [(part.code, part.constant) for part in planned_parts],
        )
        return Planned(evaluate=loop)


def _known_parts(node: Comprehension) -> list[Expr]:
    """The author's expressions inside a macro that is planned as a loop: predicate, or predicate and
    transform.

    Empty for macros that are planned from their trees. For a collecting macro without predicate only its
    transform.
    """
    step = node.step
    if node.macro in ("all", "exists") and isinstance(step, Call):
        return [step.args[1]]
    if node.macro == "exists_one" and isinstance(step, Call):
        return [step.args[0]]
    if node.macro == "collect" and isinstance(step, Call):
        if step.function == "_?_:_":
            return [step.args[0], _collected(step.args[1])]
        return [_collected(step)]
    return []


def _collected(addition: Expr) -> Expr:
    assert isinstance(addition, Call)
    added = addition.args[1]
    assert isinstance(added, ListLiteral)
    return added.elements[0]
