"""CEL selectors of classes and requests on devices, each evaluated once per content.

Many devices differ in nothing a selector can see, so results are memoised by (expression, device content),
errors like values.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kubernetes_cel import CelError, Environment
from kubernetes_cel.device import device_variable
from sharing_affinity.api import Device, names

_CAPACITY: Final = 262_144


class Selectors:
    """Evaluates device selectors in the device environment, memoised."""

    def __init__(self) -> None:
        self._environment = Environment.device()
        self._memo: OrderedDict[tuple[str, str, str], bool | str] = OrderedDict()
        self.evaluations = 0

    def known(self, expression: str, driver: str, device: Device) -> bool | str | None:
        """As :meth:`matches`, but ``None`` instead of an evaluation."""
        return self._memo.get((expression, driver, device.content))

    def evaluate(self, expression: str, driver: str, device: Device) -> int:
        """Evaluate, so that it is known; returns what it cost."""
        verdict, cost = self._run(expression, driver, device)
        self.evaluations += 1
        self._memo[(expression, driver, device.content)] = verdict
        if len(self._memo) > _CAPACITY:
            self._memo.popitem(last=False)
        return cost

    def matches(self, expression: str, driver: str, device: Device) -> bool | str:
        """Whether the device is selected, or the text of an error (compile, run time, cost, or not a
        bool)."""
        found = self.known(expression, driver, device)
        if found is None:
            self.evaluate(expression, driver, device)
            found = self._memo[(expression, driver, device.content)]
        return found

    def _run(self, expression: str, driver: str, device: Device) -> tuple[bool | str, int]:
        try:
            program = self._environment.compile(expression, output="bool")
        except CelError as error:
            return f"CEL compile error: {error}", 0
        try:
            variable = device_variable(driver, device.attributes, device.capacity_json, device.allow_multiple)
        except CelError as error:
            return f"CEL runtime error: {error}", 0
        outcome = program.run({"device": variable}, cost_limit=names.POOL_COST_BUDGET)
        if outcome.error is not None:
            return f"CEL runtime error: {outcome.error}", outcome.cost
        if not isinstance(outcome.value, bool):
            return "CEL result is not a bool", outcome.cost
        return outcome.value, outcome.cost
