"""The loop that keeps another driver's devices fenced and described.

One rule decides what may be written: metadata stands only while a rule has fenced the driver's devices for
the settle time. From this follows what is safe at every moment:

* no rule: the devices are kube-scheduler's, as they were before; without metadata the operator takes no part;
* a young rule: schedulers are learning of it, the operator withholds the pool; an allocation that still lands
  is a holder like any other;
* generations that differ, a wipe, a publisher in the middle of a change: an incomplete pool under the fence,
  from which nobody allocates;
* the rule deleted by somebody: it is written again, and metadata goes until the fence has settled anew.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from affinity_driver.json_types import JsonObject
from affinity_driver.kube import Api, ApiError
from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES
from affinity_driver.publish.diff import Verb, Write
from affinity_driver.publish.loop import Loop
from affinity_driver.publish.override import carries, stored, without
from sharing_affinity.api import Extractor

from .desired import is_ours, plan, wanted
from .fence import RULES, fenced_since, rule_name, wanted_rule

MANY_FAILURES = 5
SOON = 0.05
"""Seconds until a pass looks whether what was just written is all; what takes several phases goes on then."""


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """Whose slices and where; times in seconds. ``node`` None: slices everywhere, of any node selection.

    ``settle`` is the wait between fence and metadata, ``forget`` how long the metadata of a pool without
    slices is kept: a kubelet's restart takes them away for a moment only.
    """

    driver: str
    node: str | None
    settle: float = 30.0
    resync: float = 30.0
    forget: float = 600.0


class Sidecar:
    """Keeps fence and metadata of one driver. ``extractors`` is asked in each pass.

    ``warn`` is told, once each, what a person has to put right (reason, message). ``clock`` is compared with
    the server's times; what passes is measured by ``steady``, which nobody sets.
    """

    def __init__(
        self,
        api: Api,
        options: SidecarOptions,
        extractors: Callable[[], Sequence[Extractor]],
        warn: Callable[[str, str], None],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._options = options
        self._extractors = extractors
        self._warn = warn
        self._clock = clock
        self._steady = steady
        self._since: float | None = None
        self._settled_at = 0.0
        self._seen: dict[str, float] = {}
        self._told: set[str] = set()
        watched = {**dict.fromkeys((RESOURCE_SLICES, METADATA_SLICES), self._selector), RULES: lambda: ""}
        self.loop = Loop(api, "mirror", self.sync, watched, self._failed)
        self._log = structlog.get_logger("affinity_driver.mirror")

    def sync(self) -> float:
        """One pass; the seconds until the next one is due. Raises ApiError."""
        slices = self._list(RESOURCE_SLICES)
        metadata = self._list(METADATA_SLICES)
        waiting = self._settling()
        by_pool: dict[str, list[JsonObject]] = defaultdict(list)
        for item in metadata:
            by_pool[item["spec"]["pool"]["name"]].append(item)
        pools = {item["spec"]["pool"]["name"] for item in slices}
        now = self._steady()
        known = pools | by_pool.keys()
        self._seen = {pool: now if pool in pools else self._seen.get(pool, now) for pool in known}
        own = tuple(self._extractors())
        described = wanted(slices, {pool: self._for_pool(own, by_pool[pool]) for pool in pools})
        written = False
        for pool in sorted(known):
            existing = sorted(by_pool[pool], key=lambda item: str(item["metadata"]["name"]))
            if others := [item for item in existing if not is_ours(item)]:
                name = others[0]["metadata"]["name"]
                self._tell(
                    "MetadataContested",
                    f"pool {pool} of driver {self._options.driver} has SharingAffinitySlice {name}, which no "
                    "sidecar wrote: a driver that publishes its own metadata needs none",
                )
                continue
            gone = now - self._seen[pool] > self._options.forget
            if waiting > 0 or gone:
                written |= self._perform(plan((), existing))
            elif pool in described:
                written |= self._perform(plan(described[pool], existing))
        if written:
            return SOON
        return waiting if waiting > 0 else self._options.resync

    def _for_pool(self, own: tuple[Extractor, ...], metadata: list[JsonObject]) -> tuple[Extractor, ...]:
        """What was rolled out on the pool, else the file's; ends the former when both are the same."""
        rolled_out = stored(metadata)
        if rolled_out is None:
            return own
        if not rolled_out.over(own):
            return rolled_out.extractors
        for index, item in enumerate(metadata):
            if carries(item) and is_ours(item):
                metadata[index] = self._api.update(
                    f"{METADATA_SLICES}/{item['metadata']['name']}", without(item)
                )
        return own

    def withdraw(self) -> None:
        """Give the devices back to kube-scheduler: metadata first, so that the operator stops, then our rule.

        Raises ApiError; conflicts are looked at again, since the operator writes statuses meanwhile.
        """
        for left in reversed(range(MANY_FAILURES)):
            try:
                self._withdraw()
                return
            except ApiError as error:
                if error.code != 409 or not left:
                    raise

    def _withdraw(self) -> None:
        ours = [item for item in self._list(METADATA_SLICES) if is_ours(item)]
        self._perform([Write(Verb.DELETE, METADATA_SLICES, item) for item in ours])
        rules = self._api.list(RULES, {}).get("items") or []
        name = rule_name(self._options.driver)
        self._perform([Write(Verb.DELETE, RULES, rule) for rule in rules if rule["metadata"]["name"] == name])

    def _settling(self) -> float:
        """Seconds until the fence may be relied on; writes the rule where none covers the driver."""
        driver, now = self._options.driver, self._steady()
        rules = self._api.list(RULES, {}).get("items") or []
        since = fenced_since(rules, driver)
        if since is None:
            self._write_rule(next((r for r in rules if r["metadata"]["name"] == rule_name(driver)), None))
            self._since = None
            self._log.info("fencing all devices of the driver", driver=driver, settle=self._options.settle)
            return self._options.settle
        if since != self._since:
            # Stored times are whole seconds. Never more than the full wait, whatever the server's clock says.
            age = max(0.0, self._clock() - (since + 1.0))
            self._since, self._settled_at = since, now + self._options.settle - age
        return max(0.0, self._settled_at - now)

    def _write_rule(self, there: JsonObject | None) -> None:
        body = wanted_rule(self._options.driver)
        if there is None:
            self._api.create(RULES, body)
        else:
            self._api.update(f"{RULES}/{there['metadata']['name']}", {**body, "metadata": there["metadata"]})

    def _perform(self, writes: Sequence[Write]) -> bool:
        """Carry out ``writes``; whether there were any."""
        for write in writes:
            path = f"{write.collection}/{write.name}"
            if write.verb is Verb.DELETE:
                metadata = write.body["metadata"]
                self._api.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
            elif write.verb is Verb.CREATE:
                self._api.create(write.collection, write.body)
            else:
                self._api.update(path, write.body)
            self._log.info(
                "metadata written", verb=write.verb, name=write.name, pool=write.body["spec"].get("pool")
            )
        return bool(writes)

    def _list(self, collection: str) -> list[JsonObject]:
        items: list[JsonObject] = (
            self._api.list(collection, {"fieldSelector": self._selector()}).get("items") or []
        )
        return items

    def _selector(self) -> str:
        everywhere = f"spec.driver={self._options.driver}"
        return (
            everywhere if self._options.node is None else f"{everywhere},spec.nodeName={self._options.node}"
        )

    def _failed(self, error: Exception, times: int) -> None:
        if times == MANY_FAILURES and isinstance(error, ApiError):
            self._tell("MetadataFailing", f"metadata of driver {self._options.driver}: {error}")

    def _tell(self, reason: str, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._warn(reason, message)
