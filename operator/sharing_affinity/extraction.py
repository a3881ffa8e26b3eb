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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sharing_affinity.api import DeviceConfig, Extractor
from sharing_affinity.api.keys import KeyMap, shorten


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

    Errors are memoised like values, so an expression that ran out of its cost on a config is not run on it
    again.
    """

    def evaluate(self, expression: str, config: DeviceConfig) -> Evaluation:
        raise NotImplementedError


def in_scope_configs(configs: Iterable[DeviceConfig], driver: str, request: str) -> tuple[DeviceConfig, ...]:
    """The opaque configs that apply to ``request`` (``main`` or ``main/sub``) on a device of ``driver``, in
    order."""
    raise NotImplementedError


def extract(
    extractors: Sequence[Extractor], configs: Sequence[DeviceConfig], evaluator: Evaluator
) -> Extraction:
    """Run ``extractors`` over ``configs`` (already in scope) and merge.

    The outcome does not depend on the order of extractors or configs; errors of the slice come before errors
    of the claim, and those before strict gating. The total cost is capped by
    :data:`api.names.REQUEST_COST_CAP`.
    """
    raise NotImplementedError
