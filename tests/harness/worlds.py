"""An engine with a small world around it, and the steps a test tells its story in."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from harness import objects as o
from sharing_affinity.api import record as records
from sharing_affinity.engine import (
    Applied,
    Changes,
    ClaimWrite,
    Decision,
    DeviceLock,
    Engine,
    Gone,
    Options,
    Placed,
    PodKey,
    Reason,
    Unplaced,
)

JSON = dict[str, Any]


def decide(engine: Engine, key: PodKey, now: float, new_uuid: Callable[[], str]) -> Decision:
    """A decision with everything extracted and looked up that it needs; it has to come to an end."""
    for _ in range(8):
        while engine.extract(100):
            pass
        decision = engine.decide(key, now, new_uuid)
        if not (isinstance(decision, Unplaced) and decision.reason is Reason.EXTRACTION_PENDING):
            return decision
    raise AssertionError(f"{key} stays pending: {decision.message}")


def written(claim: JSON, write: ClaimWrite) -> JSON:
    """The claim as it is stored after a write."""
    note = {"sharingaffinity.dev/allocation": records.encode(write.record.with_attempt("a1"))}
    metadata = {**claim["metadata"], "annotations": note}
    return {**claim, "metadata": metadata, "status": {"allocation": write.allocation}}


START = 1_767_225_600.0


class World:
    """An engine and the objects it has been shown; time moves only when told to."""

    def __init__(self, *raws: JSON, scoring: bool = False, **options: Any) -> None:
        options.setdefault("fence_settle", 0.0)
        self.options = Options(scoring=scoring, **options)
        self.engine = Engine(self.options)
        self.objects: dict[tuple[str, str, str], JSON] = {}
        self.now = START
        self._uuids = itertools.count(1)
        self.show(*raws)

    def show(self, *raws: JSON) -> Changes:
        """Apply objects, each with a fresh resourceVersion, and finish extraction."""
        changes = Changes()
        for raw in raws:
            key = (raw["kind"], raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
            raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(o._versions))}}
            self.objects[key] = raw
            changes = self.engine.observe(Applied(raw), self.now)
        self.extract()
        return changes

    def gone(self, kind: str, name: str, namespace: str = "") -> Changes:
        raw = self.objects.pop((kind, namespace, name))
        changes = self.engine.observe(Gone(kind, namespace, name, raw["metadata"]["uid"]), self.now)
        self.extract()
        return changes

    def extract(self) -> None:
        while self.engine.extract(100):
            pass
        self.engine.settle()

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=next(self._uuids), version=4))

    def decide(self, name: str, namespace: str = "default") -> Decision:
        return decide(self.engine, (namespace, name), self.now, self.new_uuid)

    def add(self, name: str, subnet: str | None = None, **claim: Any) -> None:
        """A claim and a pod of the same name that uses it."""
        self.show(o.claim(name, subnet, **claim), o.pod(name))

    def assume(self, name: str, subnet: str | None = None, **claim: Any) -> Placed:
        """Add claim and pod, decide, and assume what must be a placement; nothing is written yet."""
        self.add(name, subnet, **claim)
        return self.assume_for(name)

    def assume_for(self, pod: str) -> Placed:
        """As :meth:`assume`, for a pod that is there."""
        decision = self.decide(pod)
        assert isinstance(decision, Placed), decision
        self.engine.assume(decision)
        return decision

    def try_place(self, name: str, subnet: str | None = None, **claim: Any) -> Decision:
        """Add claim and pod, decide, and write the allocation when placed."""
        self.add(name, subnet, **claim)
        decision = self.decide(name)
        if isinstance(decision, Placed):
            self.engine.assume(decision)
            self.write(decision)
        return decision

    def place(self, name: str, subnet: str | None = None, **claim: Any) -> list[str]:
        """As :meth:`try_place`, and it must be placed. Returns ``device`` of every result, in order."""
        decision = self.try_place(name, subnet, **claim)
        assert isinstance(decision, Placed), decision
        return devices(decision)

    def refuse(self, name: str, subnet: str | None = None, **claim: Any) -> Unplaced:
        decision = self.try_place(name, subnet, **claim)
        assert isinstance(decision, Unplaced), decision
        return decision

    def write(self, placed: Placed, only: Iterable[str] | None = None) -> Changes:
        """Let the placement's writes succeed and be seen; the changes of the last one."""
        return self.show(
            *(
                written(self.objects[("ResourceClaim", write.namespace, write.name)], write)
                for write in placed.writes
                if only is None or write.name in only
            )
        )

    def release(self, name: str, namespace: str = "default") -> None:
        """Delete pod and claim."""
        for kind in ("Pod", "ResourceClaim"):
            if (kind, namespace, name) in self.objects:
                self.gone(kind, name, namespace)

    def restarted(self) -> World:
        """A new engine that has seen only the objects, in the order of their names."""
        fresh = World(scoring=self.options.scoring)
        fresh.options = self.options
        fresh.engine = Engine(self.options)
        fresh.now = self.now
        fresh.objects = dict(self.objects)
        for _, raw in sorted(self.objects.items()):
            fresh.engine.observe(Applied(raw), self.now)
        fresh.extract()
        return fresh

    def lock(self, device: str, pool: str = "node-a") -> DeviceLock:
        for table in self.engine.lock_table():
            for row in table.devices:
                if (table.pool, row.device) == (pool, device):
                    return row
        raise AssertionError(f"no device {pool}/{device} in the lock table")

    def locks(self) -> dict[str, str]:
        """``device: state`` or ``device: keys`` of every device that is not clean."""
        return {
            row.device: ",".join(f"{k}={v}" for k, v in row.keys) or row.state.value
            for table in self.engine.lock_table()
            for row in table.devices
            if row.state.value != "Clean"
        }


def devices(placed: Placed) -> list[str]:
    return [r["device"] for w in placed.writes for r in w.allocation["devices"]["results"]]


def nics(*more: JSON, **options: Any) -> World:
    """Node ``node-a`` with ``eth1`` and ``eth2`` in an affinity pool keyed by subnet."""
    return World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice(), *more, **options)
