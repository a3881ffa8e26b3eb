"""A compiled expression: what it costs at most, what it yields, and running it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kubernetes_cel.costs import Range
from kubernetes_cel.errors import (
    CelError,
    CostLimitExceeded,
    EvaluationAborted,
    EvaluationError,
    NonStringError,
)
from kubernetes_cel.planner import Plan
from kubernetes_cel.runtime import Run
from kubernetes_cel.types import Type
from kubernetes_cel.values import type_name

T = TypeVar("T")

#: The cost at which an evaluation is stopped unless the caller says otherwise (Kubernetes' limit for DRA).
COST_LIMIT = 1_000_000


class CostEstimate(NamedTuple):
    """Least and most an evaluation is estimated to cost; 2**64 - 1 means there is no bound."""

    min: int
    max: int


class Outcome(NamedTuple):
    """How an evaluation ended: a value, or an error (then `value` is None); and what it cost either way."""

    value: Any
    error: CelError | None
    cost: int

    def unwrap(self) -> Any:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression. Safe to run from many threads at once."""

    text: str
    estimate: CostEstimate
    static_type: Type
    plan: Plan
    wants_string: bool = False

    @property
    def output_type(self) -> str:
        """The static type of the result, such as `string`, `dyn` or `list(string)`."""
        return str(self.static_type)

    def evaluate(self, variables: Mapping[str, Any], cost_limit: int = COST_LIMIT) -> Any:
        """The value of the expression.

        `variables` maps names (`object`, `device`) to plain JSON values. Raises `EvaluationError`,
        `CostLimitExceeded`, or, where a string is required, `NonStringError`; each has the `cost` so far.
        """
        return self.run(variables, cost_limit).unwrap()

    def run(self, variables: Mapping[str, Any], cost_limit: int = COST_LIMIT) -> Outcome:
        """Like `evaluate`, but errors are returned and the cost is told in every case."""
        run = Run(variables, cost_limit, self.plan.slots)
        try:
            value = self.plan.code(run)
        except (EvaluationError, EvaluationAborted) as error:
            # A copy: the exception may stand in a slot that other code raises again.
            return _failed(error.message, run.cost)
        except CostLimitExceeded as error:
            return Outcome(None, error.with_traceback(None), error.cost)
        except RecursionError:
            try:
                return on_fresh_stack(lambda: self.run(variables, cost_limit))
            except EvaluationError as error:
                return _failed(error.message, run.cost)
        except Exception as problem:  # a mistake of ours must not stop the work on other expressions
            return _failed(f"internal error: {type(problem).__name__}: {problem}", run.cost)
        if self.wants_string and type(value) is not str:
            message = f"expected a string, but the expression yielded {type_name(value)}"
            return Outcome(None, NonStringError(message, run.cost), run.cost)
        return Outcome(value, None, run.cost)


def _failed(message: str, cost: int) -> Outcome:
    error = EvaluationError(message)
    error.cost = cost
    return Outcome(None, error, cost)


def on_fresh_stack(work: Callable[[], T]) -> T:
    """Do work on a thread of its own, whose stack is empty: the deepest expressions need most of one.

    Work that fails for recursion there, too, fails as an `EvaluationError`.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as problem:
            failure.append(problem)

    if threading.current_thread().name == _FRESH:
        raise EvaluationError("expression or value is nested too deeply")
    thread = threading.Thread(target=body, name=_FRESH)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


_FRESH = "cel-fresh-stack"


def to_estimate(cost: Range) -> CostEstimate:
    """A cost range as callers see it."""
    return CostEstimate(cost.min, cost.max)
