"""From opaque configs to affinity keys: the scoping rule and the extraction contract, once for everybody.

The operator uses it on live claims and on allocations it finds; the driver uses it again at prepare time.
Both must answer alike, so neither has a rule of its own.

Scope (settled semantics 6): the configs of a request are those whose opaque ``driver`` is the pool's driver
and whose ``requests`` are empty or name the request, its parent, or ``parent/sub``. Of these, values from the
claim win over values from the DeviceClass key by key; a class config alone may supply a key.

Extraction (KEP "Extractor evaluation contract"): every extractor runs over every config in scope. A non-empty
string contributes, the empty string does not apply, everything else is the slice author's error and ends it.
Two different values for one key (of the same rank) are the claim author's error. A key nobody supplied fails
strict gating.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubernetes_cel import CelError, CompileError, Environment
from sharing_affinity.api import DeviceConfig, Extractor, names
from sharing_affinity.api.keys import KeyMap, key_map, shorten
from sharing_affinity.api.objects import FROM_CLAIM, FROM_CLASS


@dataclass(frozen=True, slots=True)
class Extracted:
    """Every extractor is satisfied: the request's effective key map."""

    keys: KeyMap


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """Strict gating: no config in scope supplies these keys. Not an error; the device is not viable."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimError:
    """The claim contradicts itself: ``key`` has two different values within one request."""

    key: str
    values: tuple[str, str]

    @property
    def message(self) -> str:
        first, second = (shorten(value) for value in self.values)
        return f"its configs give the sharing-affinity key {self.key} two values, {first!r} and {second!r}"


@dataclass(frozen=True, slots=True)
class SliceError:
    """The slice author's error: ``kind`` is one of parse, type, length, runtime, cost, non-string."""

    key: str
    kind: str
    problem: str

    @property
    def message(self) -> str:
        problem = shorten(self.problem, 200)
        return f"the extractor of sharing-affinity key {self.key} failed ({self.kind}): {problem}"


Extraction = Extracted | Unsatisfied | ClaimError | SliceError


class Evaluator(Protocol):
    """Evaluates one extractor on one config; :class:`CelEvaluator` is the one to use."""

    def evaluate(self, expression: str, config: DeviceConfig) -> Evaluation: ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one expression made of one config: a string, or an error with its kind. ``cost`` is what was
    spent."""

    value: str | None
    error_kind: str = ""
    error: str = ""
    cost: int = 0


class CelEvaluator:
    """``kubernetes_cel`` in the admission environment, programs cached by text, results memoised by content.

    Errors are memoised like values. Those of exhausted cost are kept apart and longest, so that what has once
    eaten its whole budget is not run again on the same config while the memo lives.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._environment = Environment.admission()
        self._capacity = capacity
        self._memo: OrderedDict[tuple[str, str], Evaluation] = OrderedDict()
        self._exhausted: OrderedDict[tuple[str, str], Evaluation] = OrderedDict()

    def known(self, expression: str, config: DeviceConfig) -> Evaluation | None:
        """The memoised result, without evaluating anything."""
        key = (expression, config.text)
        found = self._memo.get(key)
        if found is not None:
            self._memo.move_to_end(key)
            return found
        return self._exhausted.get(key)

    def evaluate(self, expression: str, config: DeviceConfig) -> Evaluation:
        found = self.known(expression, config)
        if found is None:
            found = self._run(expression, config.parameters)
            memo = self._exhausted if found.error_kind == "cost" else self._memo
            memo[(expression, config.text)] = found
            while len(memo) > self._capacity:
                memo.popitem(last=False)
        return found

    def estimate(self, expression: str) -> int | None:
        """The worst-case cost of one evaluation, every size under ``object`` bounded by the config limit.

        ``None`` when the expression does not compile.
        """
        try:
            return self._environment.compile(expression, output="string").estimate.max
        except CelError:
            return None

    def problem(self, expression: str) -> str:
        """Why the expression does not compile, in the compiler's words; empty when it does."""
        try:
            self._environment.compile(expression, output="string")
        except CompileError as error:
            return error.message
        except CelError as error:
            return str(error)
        return ""

    def _run(self, expression: str, parameters: Any) -> Evaluation:
        try:
            program = self._environment.compile(expression, output="string")
        except CelError as error:
            return Evaluation(None, error.kind, str(error))
        outcome = program.run({"object": parameters}, cost_limit=names.POOL_COST_BUDGET)
        if outcome.error is not None:
            return Evaluation(None, outcome.error.kind, str(outcome.error), outcome.cost)
        return Evaluation(sys.intern(str(outcome.value)), cost=outcome.cost)


def in_scope_configs(configs: Iterable[DeviceConfig], driver: str, request: str) -> tuple[DeviceConfig, ...]:
    """The opaque configs that apply to ``request`` (``main`` or ``main/sub``) on a device of ``driver``, in
    order."""
    parent = request.partition("/")[0]
    return tuple(
        config
        for config in configs
        if config.driver == driver
        and (not config.requests or request in config.requests or parent in config.requests)
    )


def extract(
    extractors: Sequence[Extractor], configs: Sequence[DeviceConfig], evaluator: Evaluator
) -> Extraction:
    """Run ``extractors`` over ``configs`` (already in scope) and merge.

    The outcome does not depend on the order of extractors or configs; errors of the slice come before errors
    of the claim, and those before strict gating. The total cost is capped by
    :data:`sharing_affinity.api.names.REQUEST_COST_CAP`.
    """
    slice_errors: list[SliceError] = []
    claim_errors: list[ClaimError] = []
    keys: dict[str, str] = {}
    missing: list[str] = []
    cost = 0
    for extractor in sorted(extractors, key=lambda e: e.name):
        values: dict[str, set[str]] = {FROM_CLAIM: set(), FROM_CLASS: set()}
        for config in configs:
            evaluation = evaluator.evaluate(extractor.expression, config)
            cost += evaluation.cost
            if cost > names.REQUEST_COST_CAP:
                problem = f"all configs of the request together cost more than {names.REQUEST_COST_CAP}"
                return SliceError(extractor.name, "cost", problem)
            if evaluation.value is None:
                slice_errors.append(SliceError(extractor.name, evaluation.error_kind, evaluation.error))
            elif evaluation.value:
                values[config.source].add(evaluation.value)
        # The claim's values win over the class's, key by key.
        chosen = sorted(values[FROM_CLAIM] or values[FROM_CLASS])
        if len(chosen) > 1:
            claim_errors.append(ClaimError(extractor.name, (chosen[0], chosen[1])))
        elif chosen:
            keys[extractor.name] = chosen[0]
        else:
            missing.append(extractor.name)
    if slice_errors:
        return min(slice_errors, key=lambda e: (e.key, e.kind, e.problem))
    if claim_errors:
        return claim_errors[0]
    if missing:
        return Unsatisfied(tuple(missing))
    return Extracted(key_map(keys))
