"""Code of calls: evaluate the arguments, charge, run the implementation.

A call is charged by its arguments before it runs, so that what exceeds the limit is never computed; only
where the cost depends on the result it runs first. Failed arguments are charged as upstream charges them:
functions of two arguments evaluate both, others stop at the first that fails, and are charged only when that
was the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes_cel.costs import STANDARD_COSTS, TRAVERSAL_FACTOR, CostModel
from kubernetes_cel.dispatch import Target
from kubernetes_cel.errors import CostLimitExceeded, EvaluationError
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import equal, not_equal

#: Cost of a call: from arguments and result.
CallCost = Callable[[Sequence[Any], Any], int]


def call_cost(model: CostModel | None, overload: str) -> tuple[int, CallCost, bool]:
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


def with_pattern(impl: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation that was given its pattern already, as one that is passed it again."""
    return lambda text, _pattern, *rest: impl(text, *rest)


def call_one(arg: Code, impl: Callable[..., Any], fixed: int, cost: CallCost) -> Code:
    """A call with one argument."""
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


def call_two(left: Code, right: Code, impl: Callable[..., Any], fixed: int, cost: CallCost) -> Code:
    """A call with two arguments, both of which are evaluated whatever comes of the first."""

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


def weighed(code: Code) -> Code:
    """Addition of values of unknown type, and functions that grow: counts large texts they build."""

    def weighed(run: Run) -> Any:
        value = code(run)
        if (type(value) is str or type(value) is bytes) and len(value) > _LARGE:
            run.build(len(value))
        return value

    return weighed


_LARGE = 4096


def call_with_constant(left: Code, b: Any, impl: Callable[..., Any], cost: CallCost) -> Code:
    """A call whose second argument is a constant."""

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


def call_many(codes: Sequence[Code], impl: Callable[..., Any], cost: CallCost) -> Code:
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


def call_by_result(codes: Sequence[Code], chosen: Target, cost: CallCost) -> Code:
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


def equality(left: Code, right: Code, constant: Any, wanted: bool, model: CostModel | None) -> Code:
    """`==` (wanted: True) or `!=`; `constant` is the right operand's value where it is known, or MISSING."""
    overload = "equals" if wanted else "not_equals"
    _, cost, _ = call_cost(model, overload)
    if type(constant) is str:
        length = len(constant)
        other = equal if wanted else not_equal

        def equals_text(run: Run) -> bool:
            try:
                value = left(run)
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
    return call_two(left, right, equal if wanted else not_equal, 0, cost)
