"""Attributes: a variable or computed value, and the selections and indexes that lead on from it.

Upstream evaluates `a.b["c"][0]` as one step with qualifiers, and charges it so: 1 for the attribute and 1 for
each qualifier that was looked at. A branch of a ternary and an index that is itself an attribute do not pay
the leading 1. `Attribute.resolver()` is the code without that 1, `Attribute.code()` the code with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubernetes_cel.errors import CostLimitExceeded, EvaluationError, no_such_overload
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import (
    EMPTY,
    MISSING,
    NONE,
    ListView,
    MapView,
    Optional,
    Uint,
    size_of_list,
    type_name,
)


def key_text(key: Any) -> str:
    """A key as messages show it."""
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(int(key)) if type(key) is Uint else str(key)


def _index(key: Any) -> int:
    kind = type(key)
    if kind is int or kind is Uint:
        if key < 2**63:
            return int(key)
    elif kind is float:
        if key.is_integer() and -(2.0**63) < key < 2.0**63:
            return int(key)
    else:
        raise EvaluationError(f"unsupported index type '{type_name(key)}' in list")
    raise EvaluationError(f"unsupported index value {key_text(key)} in list")


def lookup(value: Any, key: Any) -> Any:
    """What is at a key or index of a value, or MISSING. Keys of the wrong type for a list are errors."""
    kind = type(value)
    if kind is dict:
        return value.get(key, MISSING) if type(key) is str else MISSING
    if kind is list or kind is ListView:
        index = _index(key)
        return value[index] if 0 <= index < size_of_list(value) else MISSING
    if isinstance(value, MapView):
        return value.find(key)
    if value is EMPTY:  # upstream asks the message for a field, also for its presence
        raise EvaluationError(f"no such field '{key_text(key)}'")
    return MISSING


def _absent(value: Any, key: Any) -> EvaluationError:
    if type(value) is list or type(value) is ListView:
        return EvaluationError(f"index out of bounds: {key_text(key)}")
    return EvaluationError(f"no such key: {key_text(key)}")


class Qualifier:
    """One step on: by a constant key, or by what `code` computes. `present` when only presence is asked."""

    __slots__ = ("code", "key", "optional", "present")

    def __init__(
        self, key: Any = MISSING, code: Code | None = None, *, optional: bool = False, present: bool = False
    ) -> None:
        self.key = key
        self.code = code
        self.optional = optional
        self.present = present


def _valid_key(key: Any) -> Any:
    if is_key(key):
        return key
    raise EvaluationError(f"invalid qualifier type: {type_name(key)}")


def is_key(key: Any) -> bool:
    """Whether a value can be a key or index."""
    kind = type(key)
    return kind is str or kind is int or kind is Uint or kind is bool or kind is float


def apply_qualifiers(run: Run, value: Any, qualifiers: Sequence[Qualifier]) -> Any:
    """Follow qualifiers. Once one is optional (or the value is), the result is an `Optional`.

    A qualifier is charged 1 whatever comes of it; an optional one only for what is there.
    """
    optional = type(value) is Optional
    if optional:
        if not value.has_value:
            return value
        value = value.value
    for qualifier in qualifiers:
        optional = optional or qualifier.optional
        code = qualifier.code
        if optional:
            found = lookup(value, qualifier.key if code is None else _valid_key(code(run)))
            if found is MISSING:
                return NONE
            run.charge(1)
            value = found
            continue
        try:
            key = qualifier.key if code is None else _valid_key(code(run))
            found = lookup(value, key)
        except EvaluationError:
            run.charge(1)
            raise
        run.charge(1)
        if qualifier.present:
            value = found is not MISSING
        elif found is MISSING:
            raise _absent(value, key)
        else:
            value = found
    return Optional(value) if optional else value


class Attribute:
    """Base: something qualifiers can be added to while planning."""

    __slots__ = ()

    def add(self, qualifier: Qualifier) -> None:
        """Lead one step on."""
        raise NotImplementedError

    def resolver(self) -> Code:
        """Code for the value without the attribute's own charge."""
        raise NotImplementedError

    def code(self) -> Code:
        """Code for the value with the attribute's own charge of 1, which is due on errors too."""
        resolve = self.resolver()

        def run_attribute(run: Run) -> Any:
            try:
                value = resolve(run)
            except EvaluationError:
                run.charge(1)
                raise
            run.charge(1)
            return value

        return run_attribute


class Variable(Attribute):
    """A declared variable."""

    __slots__ = ("name", "qualifiers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self.qualifiers.append(qualifier)

    def _plain_keys(self) -> list[str] | None:
        """The keys, when all qualifiers are constant field names."""
        keys = [q.key for q in self.qualifiers]
        plain = all(type(q.key) is str and not q.optional and not q.present for q in self.qualifiers)
        return keys if plain else None

    def resolver(self) -> Code:
        keys = self._plain_keys()
        if keys is not None:
            return _field_code(self.name, keys, lead=0)
        name, qualifiers = self.name, self.qualifiers

        def resolve(run: Run) -> Any:
            try:
                value = run.vars[name]
            except KeyError:
                raise EvaluationError(f"no such attribute(s): {name}") from None
            return apply_qualifiers(run, value, qualifiers)

        return resolve

    def code(self) -> Code:
        keys = self._plain_keys()
        return super().code() if keys is None else _field_code(self.name, keys, lead=1)


class Hidden(Attribute):
    """A declared variable that a loop variable hides, written with a leading dot.

    Upstream resolves what follows it outside of the evaluation: steps are not charged, and loop variables in
    indexes are not there.
    """

    __slots__ = ("name", "qualifiers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self.qualifiers.append(qualifier)

    def resolver(self) -> Code:
        name, qualifiers = self.name, self.qualifiers

        def resolve(run: Run) -> Any:
            if name not in run.vars:
                raise EvaluationError(f"no such attribute(s): {name}")
            outside = Run(run.vars, run.limit, 0)
            outside.slots = [EvaluationError("no such attribute(s)")] * len(run.slots)
            return apply_qualifiers(outside, run.vars[name], qualifiers)

        return resolve


class Local(Attribute):
    """A loop variable or accumulator. The slot holds its value, or the error it stands for."""

    __slots__ = ("qualifiers", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self.qualifiers.append(qualifier)

    def resolver(self) -> Code:
        slot, qualifiers = self.slot, self.qualifiers

        def resolve(run: Run) -> Any:
            value = run.slots[slot]
            if isinstance(value, EvaluationError):
                raise value
            return apply_qualifiers(run, value, qualifiers)

        return resolve

    def code(self) -> Code:
        keys = [q.key for q in self.qualifiers]
        if any(type(q.key) is not str or q.optional or q.present for q in self.qualifiers):
            return super().code()
        return _local_field_code(self.slot, keys, super().code())


class Lazy:
    """The one value `LAZY`: a binding that nobody has asked for yet."""

    __slots__ = ()


LAZY = Lazy()


class Binding(Attribute):
    """A variable of `optMap` or `cel.bind`: computed when first asked for, and only then charged."""

    __slots__ = ("init", "qualifiers", "slot")

    def __init__(self, slot: int, init: Code) -> None:
        self.slot = slot
        self.init = init
        self.qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self.qualifiers.append(qualifier)

    def resolver(self) -> Code:
        slot, init, qualifiers = self.slot, self.init, self.qualifiers

        def resolve(run: Run) -> Any:
            value = run.slots[slot]
            if value is LAZY:
                try:
                    value = init(run)
                except EvaluationError as error:
                    value = error
                run.slots[slot] = value
            if isinstance(value, EvaluationError):
                raise value
            return apply_qualifiers(run, value, qualifiers)

        return resolve


class Relative(Attribute):
    """A computed value that is led on from."""

    __slots__ = ("operand", "qualifiers")

    def __init__(self, operand: Code) -> None:
        self.operand = operand
        self.qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self.qualifiers.append(qualifier)

    def resolver(self) -> Code:
        operand, qualifiers = self.operand, self.qualifiers
        if not qualifiers:
            return operand

        def resolve(run: Run) -> Any:
            return apply_qualifiers(run, operand(run), qualifiers)

        return resolve


class Ternary(Attribute):
    """`condition ? yes : no`; costs nothing itself, and leads on through both branches."""

    __slots__ = ("condition", "no", "yes")

    def __init__(self, condition: Code, yes: Attribute, no: Attribute) -> None:
        self.condition = condition
        self.yes = yes
        self.no = no

    def add(self, qualifier: Qualifier) -> None:
        self.yes.add(qualifier)
        self.no.add(qualifier)

    def resolver(self) -> Code:
        condition, yes, no = self.condition, self.yes.resolver(), self.no.resolver()

        def choose(run: Run) -> Any:
            chosen = condition(run)
            if chosen is True:
                return yes(run)
            if chosen is False:
                return no(run)
            raise no_such_overload()

        return choose

    def code(self) -> Code:
        return self.resolver()


class Presence(Attribute):
    """`has(attribute.field)`: the last qualifier asks for presence; the attribute's own 1 is not charged."""

    __slots__ = ("attribute", "free")

    def __init__(self, attribute: Attribute) -> None:
        self.attribute = attribute
        # A ternary pays no leading 1, but upstream takes it off all the same.
        self.free = isinstance(attribute, Ternary)

    def add(self, qualifier: Qualifier) -> None:
        qualifier.present = True
        self.attribute.add(qualifier)

    def resolver(self) -> Code:
        # As a branch or index upstream resolves what is below the test: an optional chain yields an optional.
        return self.attribute.resolver()

    def code(self) -> Code:
        attribute = self.attribute
        if isinstance(attribute, Variable):
            keys = [q.key for q in attribute.qualifiers]
            if all(type(q.key) is str and not q.optional for q in attribute.qualifiers):
                return _presence_code(attribute.name, keys[:-1], keys[-1])
        resolve = attribute.resolver()
        if not self.free:

            def present(run: Run) -> Any:
                value = resolve(run)
                return value.has_value if type(value) is Optional else value

            return present

        def present_after_ternary(run: Run) -> Any:
            try:
                value = resolve(run)
            finally:
                run.cost -= 1
                if run.cost < 0:
                    raise CostLimitExceeded(run.cost % 2**64)
            return value.has_value if type(value) is Optional else value

        return present_after_ternary


def _presence_code(name: str, path: list[str], last: str) -> Code:
    """`has(name.a.b)`: the fields up to the last must be there; each field is charged 1, the variable
    nothing.
    """
    follow = _field_code(name, path, lead=0)

    def present(run: Run) -> bool:
        value = run.vars.get(name) if not path else follow(run)
        if type(value) is dict:
            found = last in value
        elif not path and name not in run.vars:
            found = follow(run)
        else:
            try:
                found = lookup(value, last) is not MISSING
            except EvaluationError:
                run.charge(1)
                raise
        total = run.cost + 1
        run.cost = total
        if total > run.limit:
            raise CostLimitExceeded(total)
        return found

    return present


def _fail_at(run: Run, value: Any, keys: Sequence[str], at: int, lead: int) -> EvaluationError:
    """The error of a field that is not there: the fields looked at are charged, and the attribute."""
    run.charge_units(at + 1 + lead)
    try:
        lookup(value, keys[at])
    except EvaluationError as error:
        return error
    return _absent(value, keys[at])


def _field_code(name: str, keys: list[str], lead: int) -> Code:
    """`name.a.b.c`, the most frequent expression of all, without a call per step."""
    cost = len(keys) + lead

    def follow(run: Run) -> Any:
        try:
            value = run.vars[name]
        except KeyError:
            run.charge_units(lead)
            raise EvaluationError(f"no such attribute(s): {name}") from None
        for at, key in enumerate(keys):
            if type(value) is dict:
                found = value.get(key, MISSING)
            else:
                found = lookup(value, key) if isinstance(value, MapView) else MISSING
            if found is MISSING:
                raise _fail_at(run, value, keys, at, lead)
            value = found
        total = run.cost + cost
        run.cost = total
        if total > run.limit:
            run.cost = run.limit + 1
            raise CostLimitExceeded(run.limit + 1)
        return value

    if len(keys) != 1:
        return follow
    only = keys[0]

    def field(run: Run) -> Any:
        value = run.vars.get(name)
        if type(value) is not dict:
            return follow(run)
        found = value.get(only, MISSING)
        if found is MISSING:
            raise _fail_at(run, value, keys, 0, lead)
        total = run.cost + cost
        run.cost = total
        if total > run.limit:
            run.cost = run.limit + 1
            raise CostLimitExceeded(run.limit + 1)
        return found

    return field


def _local_field_code(slot: int, keys: list[str], optional: Code) -> Code:
    """The same for a loop variable; `optional` is the code for a value that is an `Optional`."""
    cost = len(keys) + 1

    def follow(run: Run) -> Any:
        value = run.slots[slot]
        if isinstance(value, EvaluationError):
            run.charge(1)
            raise value
        if type(value) is Optional:
            return optional(run)
        for at, key in enumerate(keys):
            if type(value) is dict:
                found = value.get(key, MISSING)
            else:
                found = lookup(value, key) if isinstance(value, MapView) else MISSING
            if found is MISSING:
                raise _fail_at(run, value, keys, at, 1)
            value = found
        total = run.cost + cost
        run.cost = total
        if total > run.limit:
            run.cost = run.limit + 1
            raise CostLimitExceeded(run.limit + 1)
        return value

    return follow
