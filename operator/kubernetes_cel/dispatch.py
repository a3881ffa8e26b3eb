"""Which implementation a call runs, decided while planning as far as possible.

When the checker left exactly one overload, its implementation runs behind a guard on run-time types.
Otherwise the function's overloads are tried in order of declaration on the run-time types of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_cel import types
from kubernetes_cel.declarations import Function, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.types import Type
from kubernetes_cel.values import Duration, ListView, MapView, Optional, Timestamp, Uint, type_name, type_of

Test = Callable[[Any], bool]

_EXACT: dict[str, type] = {
    types.NULL: type(None),
    types.BOOL: bool,
    types.INT: int,
    types.UINT: Uint,
    types.DOUBLE: float,
    types.STRING: str,
    types.BYTES: bytes,
    types.DURATION: Duration,
    types.TIMESTAMP: Timestamp,
    types.TYPE: Type,
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a call runs. `stops_early`: the first failing argument ends the call, later ones are not
    evaluated.
    """

    run: Callable[..., Any]
    stops_early: bool


def fits(t: Type) -> Test | None:
    """A test whether a value may be passed for a declared type; None when anything may.

    Type parameters are erased; of lists and maps only the first entry is looked at.
    """
    exact = _EXACT.get(t.kind)
    if exact is not None:
        return lambda value: type(value) is exact
    if t.kind == types.LIST:
        element = fits(t.params[0])
        if element is None:
            return _is_list
        return lambda value: _is_list(value) and (not value or element(value[0]))
    if t.kind == types.MAP:
        return _map_test(fits(t.params[0]), fits(t.params[1]))
    if t.kind in (types.OPAQUE, types.STRUCT):
        if t.name == "optional_type":
            return lambda value: type(value) is Optional
        name = t.name
        return lambda value: type_of(value).name == name
    return None


def _is_list(value: Any) -> bool:
    return type(value) is list or type(value) is ListView


def _map_test(key: Test | None, item: Test | None) -> Test:
    def test(value: Any) -> bool:
        if type(value) is not dict and not isinstance(value, MapView):
            return False
        for k, v in value.items():
            return (key is None or key(k)) and (item is None or item(v))
        return True

    return test


def _tests(overload: Overload) -> list[tuple[int, Test]]:
    return [(i, test) for i, t in enumerate(overload.args) if (test := fits(t)) is not None]


def mismatch(function: str, args: Sequence[Any]) -> EvaluationError:
    """No overload of a function takes these arguments."""
    return no_such_overload(function, [type_name(arg) for arg in args])


def _guarded(function: str, overload: Overload) -> Callable[..., Any]:
    impl = overload.impl
    assert impl is not None
    tests = _tests(overload)
    if not tests:
        return impl
    if len(overload.args) == 1:
        only = tests[0][1]

        def guarded_unary(value: Any) -> Any:
            if not only(value):
                raise mismatch(function, (value,))
            return impl(value)

        return guarded_unary

    def guarded(*args: Any) -> Any:
        for i, test in tests:
            if not test(args[i]):
                raise mismatch(function, args)
        return impl(*args)

    return guarded


def _dispatcher(function: Function) -> Callable[..., Any]:
    candidates = [
        (len(overload.args), _tests(overload), overload.impl)
        for overload in function.overloads
        if overload.impl is not None
    ]
    name = function.name

    def dispatch(*args: Any) -> Any:
        count = len(args)
        for arity, tests, impl in candidates:
            if arity == count and all(test(args[i]) for i, test in tests):
                return impl(*args)
        raise mismatch(name, args)

    return dispatch


def target(function: Function, overloads: Sequence[str], arity: int) -> Target | None:
    """What a call of `function` runs when the checker left these overloads; None when nothing is bound."""
    if function.shared is not None:
        return Target(function.shared, stops_early=arity > 2)
    bound = [overload for overload in function.overloads if overload.impl is not None]
    if len(overloads) == 1:
        for overload in bound:
            if overload.id == overloads[0]:
                return _bind(function, overload, arity)
    if not bound:
        return None
    if len(bound) == 1:
        return _bind(function, bound[0], arity)
    return Target(_dispatcher(function), stops_early=True)


def _bind(function: Function, overload: Overload, arity: int) -> Target:
    impl = overload.impl
    assert impl is not None
    run = _guarded(function.name, overload) if function.guarded else impl
    return Target(run, stops_early=overload.variadic or arity > 2)
