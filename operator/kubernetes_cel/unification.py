"""Which types fit which: assignability with type variables that are bound as the checker goes.

Bindings are undone when an attempt fails, so that trying an overload leaves no trace. The rules are
upstream's, including where they are looser than one would think (null fits opaque and object types).
"""

from __future__ import annotations

from collections.abc import Sequence

from kubernetes_cel import types
from kubernetes_cel.types import Type, is_dyn, is_dyn_or_error

_NULLABLE = frozenset((types.OPAQUE, types.STRUCT, types.ANY, types.DURATION, types.TIMESTAMP))
_PARAMETERIZED = frozenset((types.OPAQUE, types.LIST, types.MAP))


class Bindings:
    """What each type variable stands for so far."""

    __slots__ = ("_bound", "_fresh", "_trail")

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._trail: list[tuple[str, Type | None]] = []
        self._fresh = 0

    def fresh(self) -> Type:
        """A type variable nobody has seen."""
        variable = types.param(f"_var{self._fresh}")
        self._fresh += 1
        return variable

    def _bind(self, variable: str, t: Type) -> None:
        self._trail.append((variable, self._bound.get(variable)))
        self._bound[variable] = t

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            variable, before = self._trail.pop()
            if before is None:
                del self._bound[variable]
            else:
                self._bound[variable] = before

    def assignable(self, t1: Type, t2: Type) -> bool:
        """Whether a value of type `t1` may stand where `t2` is wanted; binds variables if so."""
        mark = len(self._trail)
        if self._assignable(t1, t2):
            return True
        self._undo(mark)
        return False

    def all_assignable(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """`assignable` for each pair, all or nothing; lists of different lengths never are."""
        mark = len(self._trail)
        if self._all(given, wanted):
            return True
        self._undo(mark)
        return False

    def resolve(self, t: Type, *, unbound_to_dyn: bool = False) -> Type:
        """The type with variables replaced by what they are bound to."""
        while t.kind == types.TYPE_PARAM:
            bound = self._bound.get(t.name)
            if bound is None:
                return types.dyn if unbound_to_dyn else t
            t = bound
        if not t.generic:
            return t
        params = tuple(self.resolve(p, unbound_to_dyn=unbound_to_dyn) for p in t.params)
        return t if params == t.params else Type(t.kind, t.name, params)

    def _all(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        if len(given) != len(wanted):
            return False
        for g, w in zip(given, wanted, strict=True):  # noqa: SIM110 - a generator is one more frame a level
            if not self._assignable(g, w):
                return False
        return True

    def _assignable(self, t1: Type, t2: Type) -> bool:
        if t2.kind == types.TYPE_PARAM:
            valid, bound = self._substitutes(t1, t2)
            if valid:
                return True
            if bound:
                return False
        if t1.kind == types.TYPE_PARAM:
            return self._substitutes(t2, t1)[0]
        if is_dyn_or_error(t1) or is_dyn_or_error(t2):
            return True
        if t1.kind == types.NULL:
            return t2.nullable or t2.kind in _NULLABLE or t2.kind == types.NULL
        if t2.kind == types.NULL:
            return t1.nullable or t1.kind in _NULLABLE
        if t1.kind == types.TYPE:
            return t2.kind == types.TYPE
        if t1.kind in _PARAMETERIZED:
            return t1.kind == t2.kind and t1.name == t2.name and self._all(t1.params, t2.params)
        return t1.kind == t2.kind and t1.name == t2.name

    def _substitutes(self, t: Type, variable: Type) -> tuple[bool, bool]:
        """Whether the variable can stand for `t`, and whether it was bound before."""
        if t == variable:
            return True, True
        bound = self._bound.get(variable.name)
        if bound is not None:
            if t == bound:
                return True, True
            if self._assignable(t, bound):
                general = t if equal_or_less_specific(t, bound) else bound
                if self._absent(variable, general):
                    self._bind(variable.name, general)
                return True, True
            return False, True
        if self._absent(variable, t):
            self._bind(variable.name, t)
            return True, False
        return False, False

    def _absent(self, variable: Type, within: Type) -> bool:
        """The occurs check: the variable is not part of the type it would be bound to."""
        if variable == within:
            return False
        if within.kind == types.TYPE_PARAM:
            bound = self._bound.get(within.name)
            return bound is None or self._absent(variable, bound)
        return not within.generic or all(self._absent(variable, p) for p in within.params)


def equal_or_less_specific(t1: Type, t2: Type) -> bool:
    """Whether `t1` says no more than `t2`."""
    if is_dyn(t1) or t1.kind == types.TYPE_PARAM:
        return True
    if is_dyn(t2) or t2.kind == types.TYPE_PARAM:
        return False
    if t1.kind != t2.kind:
        return False
    if t1.kind in _PARAMETERIZED:
        return (
            t1.name == t2.name
            and len(t1.params) == len(t2.params)
            and all(equal_or_less_specific(p, q) for p, q in zip(t1.params, t2.params, strict=True))
        )
    return t1.kind == types.TYPE or t1 == t2
