"""Code of what evaluates its operands in its own way: logic, optionals' `or`, and `in` over constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubernetes_cel.errors import EvaluationAborted, EvaluationError, no_such_overload
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import Optional, Uint


def conjunction(left: Code, right: Code) -> Code:
    """`&&`: false if either side is, even when the other fails."""

    def both(run: Run) -> bool:
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

    return both


def disjunction(left: Code, right: Code) -> Code:
    """`||`: true if either side is, even when the other fails."""

    def either(run: Run) -> bool:
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

    return either


def not_strictly_false(arg: Code) -> Code:
    """What loops go on by: anything but false, errors included."""

    def evaluate(run: Run) -> bool:
        try:
            value = arg(run)
        except EvaluationError:
            value = True
        run.charge(1)
        return value is not False

    return evaluate


def optional_or(left: Code, right: Code, *, unwrap: bool) -> Code:
    """`or` and (unwrap) `orValue` of optionals; cost nothing themselves."""

    def choose(run: Run) -> Any:
        value = left(run)
        if type(value) is not Optional:
            raise no_such_overload()
        if value.has_value:
            return value.value if unwrap else value
        return right(run)

    return choose


def membership(code: Code, constants: Any) -> Code | None:
    """`x in [constants]` as a look-up in a set, which costs nothing; None when a constant does not allow
    it.
    """
    members: set[tuple[type, Any]] = set()
    for constant in constants:
        kind = type(constant)
        if kind not in (bool, int, Uint, float, str):
            return None
        if constant != constant:
            continue  # NaN equals nothing, but a set finds the object it holds
        members.add((kind, constant))
        members.update(_numeric_twins(constant))

    def contained(run: Run) -> bool:
        value = code(run)
        kind = type(value)
        if kind is bytes:
            raise EvaluationAborted("internal error: bytes cannot be keys of a map")
        return (kind, value) in members if kind in _HASHED else False

    return contained


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
