"""What a claim wants of our devices: scoping, decoding and affinity keys of every result; pure.

Which configs apply to a request and which keys they give is answered by the operator's own code
(``sharing_affinity.extraction``), so that prepare and allocation never disagree. The driver's part is to
decode its own opaque configs strictly: a misspelt field that is silently ignored costs somebody a day.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from affinity_driver.json_types import Json, JsonObject
from affinity_driver.state.model import Phase, PreparedClaim, Share
from sharing_affinity.api import AllocationResult, BadObject, DeviceConfig, Extractor, parse_allocation
from sharing_affinity.api.objects import FROM_CLAIM
from sharing_affinity.extraction import (
    CelEvaluator,
    Evaluator,
    Extracted,
    Extraction,
    Unsatisfied,
    extract,
    in_scope_configs,
)

from .errors import ClaimChangedError, ConfigError

MEMO = 1024
"""Results of (expression, config) that are kept; a node has few configs."""


class Decoder(Protocol):
    """The part of a profile that resolving needs."""

    def extractors(self) -> Sequence[Extractor]:
        """The affinity keys of the pool."""
        ...

    def decode(self, parameters: Json) -> JsonObject:
        """One opaque config as normalised settings. Raises ConfigError."""
        ...


class Resolver:
    """Resolves claims for one pool. ``device_names`` are the devices that are there."""

    def __init__(self, driver: str, pool: str, decoder: Decoder, evaluator: Evaluator | None = None) -> None:
        self._driver = driver
        self._pool = pool
        self._decoder = decoder
        self._evaluator = evaluator
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Compile the extractors now; the first claim need not wait for it."""
        self._extract(self._decoder.extractors(), [DeviceConfig(FROM_CLAIM, (), self._driver, "{}")])

    def resolve(
        self,
        claim: JsonObject,
        device_names: frozenset[str],
        extractors: Callable[[], Sequence[Extractor]] = tuple,
        known: PreparedClaim | None = None,
    ) -> PreparedClaim:
        """The claim's shares of our devices. Raises ClaimChangedError or ConfigError.

        ``extractors`` gives those that are published, where they are not the profile's own. ``known`` is what
        the checkpoint has of the claim; while it is allocated so, that stands, whatever configs mean by now,
        and nobody is asked for extractors.
        """
        metadata = claim["metadata"]
        try:
            allocation = parse_allocation(claim["status"]["allocation"], metadata["name"])
        except BadObject as error:
            raise ClaimChangedError(str(error)) from error
        ours = [result for result in allocation.results if result.driver == self._driver]
        if not ours:
            raise ClaimChangedError(f"the claim has no device of driver {self._driver}")
        for result in ours:
            if result.pool != self._pool:
                raise ClaimChangedError(f"device {result.pool}/{result.device} is not on this node")
            if result.device not in device_names:
                raise ClaimChangedError(f"device {result.device} does not exist (any more)")
        results = {(result.request, result.pool, result.device, result.share_id or None) for result in ours}
        if known is not None and {share.result for share in known.shares} == results:
            return known
        published = extractors() or self._decoder.extractors()
        consumed = _consumed(claim)
        shares = []
        for result in ours:
            configs = in_scope_configs(allocation.configs, self._driver, result.request)
            settings = self._settings(configs, result.request)
            keys = self._keys(published, configs, result)
            shares.append(
                Share(
                    request=result.request,
                    pool=result.pool,
                    device=result.device,
                    share_id=result.share_id or None,
                    keys=keys,
                    settings=settings,
                    consumed=consumed.get(result.identity, {}),
                    admin=result.admin,
                )
            )
        return PreparedClaim(
            metadata["uid"], metadata["namespace"], metadata["name"], Phase.STARTED, tuple(shares)
        )

    def _settings(self, configs: Sequence[DeviceConfig], request: str) -> JsonObject:
        """All configs in scope are decoded; of private settings the last one of the claim, else of the
        class, wins.
        """
        settings: JsonObject = {}
        for config in sorted(configs, key=lambda config: config.source == FROM_CLAIM):
            try:
                settings = self._decoder.decode(config.parameters)
            except ConfigError as error:
                whose = "the claim" if config.source == FROM_CLAIM else "the DeviceClass"
                raise ConfigError(f"config of {whose} for request {request}: {error}") from error
        return settings

    def _keys(
        self, extractors: Sequence[Extractor], configs: Sequence[DeviceConfig], result: AllocationResult
    ) -> Mapping[str, str]:
        outcome = self._extract(extractors, configs)
        if isinstance(outcome, Extracted):
            return dict(outcome.keys)
        if isinstance(outcome, Unsatisfied):
            if result.admin:
                return {}
            missing = ", ".join(outcome.missing)
            raise ConfigError(
                f"device {result.device}: no config for request {result.request} gives {missing}"
            )
        raise ConfigError(f"request {result.request}: {outcome.message}")

    def _extract(self, extractors: Sequence[Extractor], configs: Sequence[DeviceConfig]) -> Extraction:
        with self._lock:  # the evaluator's memo belongs to one thread at a time
            if self._evaluator is None:
                self._evaluator = CelEvaluator(MEMO)
            return extract(extractors, configs, self._evaluator)


def _consumed(claim: JsonObject) -> dict[tuple[str, str, str, str, str], Mapping[str, str]]:
    """Each result's consumed capacity as the strings that are stored."""
    return {
        (item.get("request", ""), item["driver"], item["pool"], item["device"], item.get("shareID") or ""): {
            str(name): str(amount) for name, amount in (item.get("consumedCapacity") or {}).items()
        }
        for item in claim["status"]["allocation"]["devices"].get("results") or ()
    }
