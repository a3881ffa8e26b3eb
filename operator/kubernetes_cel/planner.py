"""From a checked tree to closures that evaluate it and charge the meter.

Planning does what upstream does when it builds a program: literals of constants are built once, conversions
of constants and constant patterns are evaluated, `in` over constants becomes a set. Whatever of this fails,
fails the compilation. Macros whose trees are known are planned as loops; what they charge is what their trees
would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    LAZY,
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
from kubernetes_cel.checker import Checked, qualified_name
from kubernetes_cel.costs import LIST_COST, MAP_COST, STANDARD_COSTS, TRAVERSAL_FACTOR, CostModel
from kubernetes_cel.declarations import Declarations, Function
from kubernetes_cel.dispatch import Target, target
from kubernetes_cel.errors import (
    CheckError,
    CostLimitExceeded,
    EvaluationAborted,
    EvaluationError,
    Issue,
    no_such_overload,
)
from kubernetes_cel.loops import plan_loop
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import MISSING, Optional, Uint, build_map, equal, not_equal, type_name

#: Functions whose calls on constants are evaluated while planning.
_CONVERSIONS = frozenset(
    ("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint")
)
#: Cost of a call: from arguments and result. A plain number when it is always the same.
CallCost = Callable[[Sequence[Any], Any], int]


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
        named = self._checked.constants.get(node.id)
        if named is not None:
            return Planned(constant=named)
        name = self._checked.names.get(node.id)
        if name is not None:
            return Planned(attribute=Hidden(name[1:]) if name.startswith(".") else Variable(name))
        if isinstance(node, Literal):
            return Planned(constant=node.value)
        if isinstance(node, Ident):
            return Planned(attribute=self._variable(node.name))
        if isinstance(node, Select):
            if node.operand.id not in self._checked.types:  # a variable with dots in its name
                return Planned(attribute=self._variable(qualified_name(node) or ""))
            return (yield from self._select(node))
        if isinstance(node, Call):
            return (yield from self._call(node))
        if isinstance(node, ListLiteral):
            return (yield from self._list(node))
        if isinstance(node, MapLiteral):
            return (yield from self._map(node))
        if isinstance(node, StructLiteral):
            raise self._fail(node.id, f"'{node.name}' cannot be constructed here")
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
            return Planned(evaluate=_and(args[0].code, args[1].code))
        if function == "_||_":
            return Planned(evaluate=_or(args[0].code, args[1].code))
        if function == "@not_strictly_false":
            return Planned(evaluate=_not_strictly_false(args[0].code))
        if function in ("_==_", "_!=_"):
            model = self._declarations.functions[function].cost
            return Planned(evaluate=_equality(args[0], args[1], function == "_==_", model))
        if function == "or" and overload in ("", "optional_or_optional") and len(args) == 2:
            return Planned(evaluate=_optional_or(args[0].code, args[1].code, unwrap=False))
        if function == "orValue" and overload in ("", "optional_orValue_value") and len(args) == 2:
            return Planned(evaluate=_optional_or(args[0].code, args[1].code, unwrap=True))
        if function == "@in" and overload == "in_list" and args[1].is_constant:
            return _membership(args[0], args[1].constant)
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
                chosen = Target(_with_pattern(function.precompile(constants[1])), stops_early=True)
            except EvaluationError as error:
                raise self._fail(node.id, error.message) from None
        fixed, cost, needs_result = _call_cost(function.cost, overload)
        codes = [arg.code for arg in args]
        if needs_result:
            code = _call_by_result(codes, chosen, cost)
        elif chosen.stops_early or len(codes) == 0 or len(codes) > 2:
            code = _call_many(codes, chosen.run, cost)
        elif len(codes) == 1:
            code = _call_one(codes[0], chosen.run, fixed, cost)
        elif fixed == 0 and args[1].is_constant and function.name != "_+_":
            code = _call_with_constant(codes[0], args[1].constant, chosen.run, cost)
        else:
            code = _call_two(codes[0], codes[1], chosen.run, fixed, cost)
        if function.grows or (function.name == "_+_" and overload == ""):
            code = _weighed(code)
        return Planned(evaluate=code)

    # -- aggregates

    def _list(self, node: ListLiteral) -> Work[Planned]:
        elements: list[Planned] = []
        for element in node.elements:
            elements.append((yield self.plan(element)))
        if not node.optional and all(element.is_constant for element in elements):
            return Planned(constant=[element.constant for element in elements])
        return Planned(evaluate=_build_list([e.code for e in elements], node.optional))

    def _map(self, node: MapLiteral) -> Work[Planned]:
        pairs: list[tuple[Planned, Planned, bool]] = []
        for entry in node.entries:
            key: Planned = yield self.plan(entry.key)
            value: Planned = yield self.plan(entry.value)
            pairs.append((key, value, entry.optional))
        if all(key.is_constant and value.is_constant and not optional for key, value, optional in pairs):
            try:
                return Planned(constant=build_map([(k.constant, v.constant) for k, v, _ in pairs]))
            except EvaluationAborted as error:
                raise self._fail(node.id, error.message) from None
        return Planned(evaluate=_build_map([(k.code, v.code, optional) for k, v, optional in pairs]))

    # -- macros

    def _comprehension(self, node: Comprehension) -> Work[Planned]:
        accumulator = self._slot()
        init: Planned = yield self.plan(node.accu_init)
        if node.macro == "let":
            code = init.code
            self._scopes.append({node.accu_var: lambda: Binding(accumulator, code)})
            body: Planned = yield self.plan(node.result)
            self._scopes.pop()
            return Planned(evaluate=_let(accumulator, body.code))
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


# -- costs


def _call_cost(model: CostModel | None, overload: str) -> tuple[int, CallCost, bool]:
    """A call's cost: fixed (0 when it depends on the arguments), as a function, and whether it needs the
    result.
    """
    standard = STANDARD_COSTS.get(overload)
    if model is None or model.actual is None:
        if standard is None:
            return 1, lambda _args, _result: 1, False
        return 0, lambda args, _result: standard(args), False
    actual = model.actual

    def cost(args: Sequence[Any], result: Any) -> int:
        declared = actual(overload, args, result)
        if declared is not None:
            return declared
        return 1 if standard is None else standard(args)

    return 0, cost, model.needs_result


def _with_pattern(impl: Callable[..., Any]) -> Callable[..., Any]:
    return lambda text, _pattern, *rest: impl(text, *rest)


# -- calls


def _call_one(arg: Code, impl: Callable[..., Any], fixed: int, cost: CallCost) -> Code:
    if fixed:

        def call_fixed(run: Run) -> Any:
            try:
                value = arg(run)
            except EvaluationError:
                run.charge(fixed)
                raise
            total = run.cost + fixed
            run.cost = total
            if total > run.limit:
                raise CostLimitExceeded(total)
            return impl(value)

        return call_fixed

    def call(run: Run) -> Any:
        try:
            value = arg(run)
        except EvaluationError as error:
            run.charge(cost((error,), error))
            raise
        total = run.cost + cost((value,), None)
        run.cost = total
        if total > run.limit:
            raise CostLimitExceeded(total)
        return impl(value)

    return call


def _second_after_error(
    run: Run, right: Code, left_error: EvaluationError, cost: CallCost
) -> EvaluationError:
    """The right operand of a call whose left one failed is evaluated and charged all the same."""
    value: Any
    try:
        value = right(run)
    except EvaluationError as error:
        value = error
    run.charge(cost((left_error, value), left_error))
    return left_error


def _call_two(left: Code, right: Code, impl: Callable[..., Any], fixed: int, cost: CallCost) -> Code:
    def call(run: Run) -> Any:
        try:
            a = left(run)
        except EvaluationError as error:
            failed = error
        else:
            try:
                b = right(run)
            except EvaluationError as error:
                run.charge(cost((a, error), error))
                raise
            total = run.cost + (fixed or cost((a, b), None))
            run.cost = total
            if total > run.limit:
                raise CostLimitExceeded(total)
            return impl(a, b)
        raise _second_after_error(run, right, failed, cost)

    return call


def _weighed(code: Code) -> Code:
    """Addition of values of unknown type, and functions that grow: counts large texts they build."""

    def weighed(run: Run) -> Any:
        value = code(run)
        if (type(value) is str or type(value) is bytes) and len(value) > _LARGE:
            run.build(len(value))
        return value

    return weighed


_LARGE = 4096


def _call_with_constant(left: Code, b: Any, impl: Callable[..., Any], cost: CallCost) -> Code:
    def call(run: Run) -> Any:
        try:
            a = left(run)
        except EvaluationError as error:
            run.charge(cost((error, b), error))
            raise
        total = run.cost + cost((a, b), None)
        run.cost = total
        if total > run.limit:
            raise CostLimitExceeded(total)
        return impl(a, b)

    return call


def _call_many(codes: Sequence[Code], impl: Callable[..., Any], cost: CallCost) -> Code:
    """A call that stops at its first failing argument; it is charged only when that was the last one."""
    last = len(codes) - 1

    def call(run: Run) -> Any:
        args: list[Any] = []
        for i, code in enumerate(codes):
            try:
                args.append(code(run))
            except EvaluationError as error:
                if i == last:
                    args.append(error)
                    run.charge(cost(args, error))
                raise
        total = run.cost + cost(args, None)
        run.cost = total
        if total > run.limit:
            raise CostLimitExceeded(total)
        return impl(*args)

    return call


def _call_by_result(codes: Sequence[Code], chosen: Target, cost: CallCost) -> Code:
    """A call whose cost depends on its result."""
    last = len(codes) - 1
    impl, stops_early = chosen.run, chosen.stops_early

    def call(run: Run) -> Any:
        args: list[Any] = []
        failed: EvaluationError | None = None
        for i, code in enumerate(codes):
            try:
                args.append(code(run))
            except EvaluationError as error:
                failed = failed or error
                args.append(error)
                if stops_early and i != last:
                    raise
        if failed is None:
            try:
                result = impl(*args)
            except EvaluationError as error:
                run.charge(cost(args, error))
                raise
            run.charge(cost(args, result))
            return result
        run.charge(cost(args, failed))
        raise failed

    return call


def _equality(left: Planned, right: Planned, wanted: bool, model: CostModel | None) -> Code:
    overload = "equals" if wanted else "not_equals"
    _, cost, _ = _call_cost(model, overload)
    a_code, b_code = left.code, right.code
    if right.is_constant and type(right.constant) is str:
        constant = right.constant
        length = len(constant)
        other = equal if wanted else not_equal

        def equals_text(run: Run) -> bool:
            try:
                value = a_code(run)
            except EvaluationError as error:
                run.charge(cost((error, constant), error))
                raise
            if type(value) is not str:
                run.charge(cost((value, constant), None))
                return other(value, constant)
            size = len(value)
            total = run.cost + math.ceil((size if size < length else length) * TRAVERSAL_FACTOR)
            run.cost = total
            if total > run.limit:
                raise CostLimitExceeded(total)
            return (value == constant) is wanted

        return equals_text
    return _call_two(a_code, b_code, equal if wanted else not_equal, 0, cost)


# -- logic


def _and(left: Code, right: Code) -> Code:
    def conjunction(run: Run) -> bool:
        failed: EvaluationError | None = None
        try:
            a = left(run)
            if a is False:
                return False
            if a is not True:
                failed = no_such_overload()
        except EvaluationError as error:
            failed = error
        if failed is None:
            b = right(run)
            if b is False or b is True:
                return bool(b)
            raise no_such_overload()
        try:
            if right(run) is False:
                return False
        except EvaluationError:
            pass
        raise failed

    return conjunction


def _or(left: Code, right: Code) -> Code:
    def disjunction(run: Run) -> bool:
        failed: EvaluationError | None = None
        try:
            a = left(run)
            if a is True:
                return True
            if a is not False:
                failed = no_such_overload()
        except EvaluationError as error:
            failed = error
        if failed is None:
            b = right(run)
            if b is False or b is True:
                return bool(b)
            raise no_such_overload()
        try:
            if right(run) is True:
                return True
        except EvaluationError:
            pass
        raise failed

    return disjunction


def _not_strictly_false(arg: Code) -> Code:
    def evaluate(run: Run) -> bool:
        try:
            value = arg(run)
        except EvaluationError:
            value = True
        run.charge(1)
        return value is not False

    return evaluate


def _optional_or(left: Code, right: Code, *, unwrap: bool) -> Code:
    def choose(run: Run) -> Any:
        value = left(run)
        if type(value) is not Optional:
            raise no_such_overload()
        if value.has_value:
            return value.value if unwrap else value
        return right(run)

    return choose


# -- membership


def _membership(element: Planned, constants: Any) -> Planned | None:
    """`x in [constants]` as a look-up in a set, which costs nothing; None when a constant does not allow
    it.
    """
    if not constants:
        return Planned(constant=False)
    members: set[tuple[type, Any]] = set()
    for constant in constants:
        kind = type(constant)
        if kind not in (bool, int, Uint, float, str):
            return None
        members.add((kind, constant))
        members.update(_numeric_twins(constant))
    code = element.code

    def contained(run: Run) -> bool:
        value = code(run)
        kind = type(value)
        if kind is bytes:
            raise EvaluationAborted("internal error: bytes cannot be keys of a map")
        return (kind, value) in members if kind in _HASHED else False

    return Planned(evaluate=contained)


_HASHED = frozenset((bool, int, Uint, float, str))


def _numeric_twins(constant: Any) -> Iterable[tuple[type, Any]]:
    """The same number in the other numeric types, where nothing is lost on the way from a double."""
    kind = type(constant)
    if kind is float:
        if constant.is_integer():
            if -(2.0**63) < constant < 2.0**63:
                yield int, int(constant)
            if 0 <= constant < 2.0**64:
                yield Uint, Uint(int(constant))
    elif kind is int:
        yield float, float(constant)
        if constant >= 0:
            yield Uint, Uint(constant)
    elif kind is Uint:
        yield float, float(constant)
        if constant < 2**63:
            yield int, int(constant)


# -- aggregates


def _build_list(codes: Sequence[Code], optional: frozenset[int]) -> Code:
    if not optional:

        def build(run: Run) -> list[Any]:
            try:
                elements = [code(run) for code in codes]
            except EvaluationError:
                run.charge(LIST_COST)
                raise
            run.charge(LIST_COST)
            return elements

        return build

    def build_optional(run: Run) -> list[Any]:
        elements: list[Any] = []
        try:
            for i, code in enumerate(codes):
                element = code(run)
                if i in optional:
                    if type(element) is not Optional:
                        raise EvaluationError(
                            "cannot initialize optional list element from non-optional value"
                        )
                    if not element.has_value:
                        continue
                    element = element.value
                elements.append(element)
        except EvaluationError:
            run.charge(LIST_COST)
            raise
        run.charge(LIST_COST)
        return elements

    return build_optional


def _build_map(pairs: Sequence[tuple[Code, Code, bool]]) -> Code:
    def build(run: Run) -> Any:
        entries: list[tuple[Any, Any]] = []
        try:
            for key_code, value_code, optional in pairs:
                key = key_code(run)
                value = value_code(run)
                if optional:
                    if type(value) is not Optional:
                        raise EvaluationError("cannot initialize optional entry from non-optional value")
                    if not value.has_value:
                        entries = [entry for entry in entries if not _same_key(entry[0], key)]
                        continue
                    value = value.value
                entries.append((key, value))
            built = build_map(entries)
        except EvaluationError:
            run.charge(MAP_COST)
            raise
        run.charge(MAP_COST)
        return built

    return build


def _same_key(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _let(slot: int, body: Code) -> Code:
    def bound(run: Run) -> Any:
        run.slots[slot] = LAZY
        return body(run)

    return bound
