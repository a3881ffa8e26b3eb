"""Extraction as a stage of its own (H10): outcomes are looked up here, and evaluated in bounded slices
elsewhere.

Decisions and lock derivation ask for the outcome of an extractor set on a list of configs. What is not known
yet is queued and comes back as ``None``; :meth:`Extractions.run` works the queue off, one evaluation at a
time. Outcomes are kept per (set, configs), so equal claims cost one lookup. The queue goes round
by expression and order of size, so that a hundred big configs for a slow extractor hold up neither another
pool nor the small config of somebody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sharing_affinity.api import DeviceConfig, Extractor
from sharing_affinity.extraction import CelEvaluator, Evaluation, Extraction, extract

_OUTCOMES: Final = 65_536
Extractors = tuple[Extractor, ...]


class _Unknown(Exception):  # noqa: N818 - not an error, an answer
    """An evaluation that has not been made."""


class _OnlyKnown:
    """An evaluator that never evaluates."""

    def __init__(self, evaluator: CelEvaluator) -> None:
        self._evaluator = evaluator

    def evaluate(self, expression: str, config: DeviceConfig) -> Evaluation:
        found = self._evaluator.known(expression, config)
        if found is None:
            raise _Unknown
        return found


class Extractions:
    """Outcomes by extractor set and configs, and the queue of evaluations they wait for."""

    def __init__(self, evaluator: CelEvaluator | None = None) -> None:
        self.evaluator = evaluator or CelEvaluator()
        self._known = _OnlyKnown(self.evaluator)
        self._outcomes: OrderedDict[tuple[Extractors, tuple[DeviceConfig, ...]], Extraction] = OrderedDict()
        self._queue: OrderedDict[tuple[str, int], OrderedDict[DeviceConfig, None]] = OrderedDict()
        self.evaluations = 0

    def outcome(self, extractors: Extractors, configs: Sequence[DeviceConfig]) -> Extraction | None:
        """The outcome, or ``None`` when evaluations are still to be made; these are queued."""
        # Scope has been applied already, and which requests a config names does not change its keys.
        key = (extractors, tuple(replace(c, requests=()) if c.requests else c for c in configs))
        found = self._outcomes.get(key)
        if found is not None:
            return found
        try:
            found = extract(extractors, key[1], self._known)
        except _Unknown:
            for extractor in extractors:
                for config in key[1]:
                    if self.evaluator.known(extractor.expression, config) is None:
                        turn = (extractor.expression, len(config.text).bit_length())
                        self._queue.setdefault(turn, OrderedDict())[config] = None
            return None
        self._outcomes[key] = found
        if len(self._outcomes) > _OUTCOMES:
            self._outcomes.popitem(last=False)
        return found

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queue.values()))

    def run(self, budget: int) -> int:
        """Make at most ``budget`` evaluations; returns how many were made."""
        made = 0
        while self._queue and made < budget:
            turn, configs = self._queue.popitem(last=False)
            config, _ = configs.popitem(last=False)
            if configs:
                self._queue[turn] = configs
            self.evaluator.evaluate(turn[0], config)
            made += 1
        self.evaluations += made
        return made
