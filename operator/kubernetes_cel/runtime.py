"""One evaluation: its variables, the slots of its macros, and its meter.

Every step of a program charges the meter as upstream's cost tracker does, and the meter stops the evaluation
the moment the limit is passed. `CostLimitExceeded` is no `EvaluationError`, so `||` cannot absorb it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kubernetes_cel.errors import CostLimitExceeded, EvaluationAborted

#: Characters an evaluation may build by adding values of unknown type, which upstream charges 1 whatever
#: their size: doubled a few dozen times, a text would fill any memory.
MAX_BUILT = 1 << 26


class Run:
    """State of one evaluation. `slots` hold loop variables and accumulators, numbered while planning."""

    __slots__ = ("built", "cost", "limit", "slots", "vars")

    def __init__(self, variables: Mapping[str, Any], limit: int, slots: int) -> None:
        self.vars = variables
        self.limit = limit
        self.cost = 0
        self.built = 0
        self.slots: list[Any] = [None] * slots

    def charge(self, cost: int) -> None:
        """Charge one step."""
        total = self.cost + cost
        self.cost = total
        if total > self.limit:
            raise CostLimitExceeded(total)

    def build(self, size: int) -> None:
        """Count text that was built at a cost that does not depend on its size."""
        self.built += size
        if self.built > MAX_BUILT:
            raise EvaluationAborted("the evaluation builds texts that are too large")

    def charge_units(self, count: int) -> None:
        """Charge `count` steps of cost 1; when the limit lies among them, the meter stops right behind it."""
        total = self.cost + count
        self.cost = total
        if total > self.limit:
            self.cost = self.limit + 1
            raise CostLimitExceeded(self.limit + 1)


#: A planned expression: evaluates to a value, or raises `EvaluationError` or `CostLimitExceeded`.
Code: TypeAlias = Callable[[Run], Any]
