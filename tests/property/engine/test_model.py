"""The engine against a model: random life of a small cluster, with writes that fail and events that come
late.

The machine keeps the truth of the API server and a queue of watch events per object, delivered in any order
between objects, late, and twice. After every step: no device holds claims of ours with different keys, no
capacity is exceeded, numbers kept of the pools that changes name equal a recount of all, and where nothing is
under way the engine's memory and its indexes equal those rebuilt from the objects.
A pod is refused only when brute force finds no place for it either.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness import objects as o
from harness.worlds import decide, written
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharing_affinity.allocator import Selectors
from sharing_affinity.engine import (
    Applied,
    Changes,
    ClaimWrite,
    DeviceState,
    Engine,
    Gone,
    NotServed,
    Options,
    Placed,
    PoolId,
    PoolLocks,
    Unplaced,
)
from sharing_affinity.engine.extracting import Extractions
from sharing_affinity.engine.matching import MatchIndex, NotIndexed

JSON = dict[str, Any]
NODES = ("n0", "n1")
DEVICES = ("d0", "d1")
SLOTS = 2
# Two ways to write the same key: after a switch, what was allocated under the other one is unknown.
VARIANTS = (
    'has(object.subnetID) ? object.subnetID : ""',
    'has(object.subnetID) ? object.subnetID + "!" : ""',
)
EXTRACTIONS = Extractions()
SELECTORS = Selectors()


@dataclass
class Hold:
    """What the model knows of one claim on one device: its value, and the extractor it was allocated
    under."""

    device: tuple[str, str]
    subnet: str | None
    slots: int
    variant: int | None


def numbers(table: Iterable[PoolLocks]) -> dict[PoolId, tuple[int, int]]:
    """Locked and unreconstructable devices of each pool."""
    found = {}
    for locks in table:
        states = [device.state for device in locks.devices]
        found[locks.driver, locks.pool] = (
            states.count(DeviceState.LOCKED),
            states.count(DeviceState.UNRECONSTRUCTABLE),
        )
    return found


class ClusterLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.version = itertools.count(1)
        self.serial = itertools.count(1)
        self.uuids = itertools.count(1)
        self.now = 1_767_225_600.0
        self.stored: dict[tuple[str, str], JSON] = {}
        self.queues: dict[tuple[str, str], list[Applied | Gone]] = {}
        self.delivered: dict[tuple[str, str], JSON] = {}
        self.history: list[Applied | Gone] = []
        self.writes: dict[str, tuple[ClaimWrite, Placed]] = {}
        self.unconfirmed_gone: set[str] = set()
        self.variant = dict.fromkeys(NODES, 0)
        self.generation = dict.fromkeys(NODES, 0)
        self.ours: set[str] = set()
        self.numbers: dict[PoolId, tuple[int, int]] = {}

    @initialize(scoring=st.booleans())
    def start(self, scoring: bool) -> None:
        self.options = Options(scoring=scoring, fence_settle=0, cool_down=0, exclusion=0)
        self.engine = Engine(self.options, EXTRACTIONS, SELECTORS)
        self.store(o.device_class())
        for name in NODES:
            self.store(o.node(name))
            self.publish(name, 0)
        self.deliver_all()

    # --- the API server ---

    def store(self, raw: JSON) -> None:
        key = (raw["kind"], raw["metadata"]["name"])
        raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self.version))}}
        self.stored[key] = raw
        self.queues.setdefault(key, []).append(Applied(raw))

    def remove(self, key: tuple[str, str]) -> None:
        raw = self.stored.pop(key)
        meta = raw["metadata"]
        self.queues.setdefault(key, []).append(Gone(key[0], meta.get("namespace", ""), key[1], meta["uid"]))

    def publish(self, node: str, variant: int) -> None:
        self.generation[node] += 1
        self.variant[node] = variant
        generation = self.generation[node]
        extractor = {"name": "subnet", "expression": VARIANTS[variant]}
        devices = [o.device(d, str(SLOTS)) for d in DEVICES]
        for raw in (
            o.metadata_slice([extractor], pool=node, generation=generation),
            o.device_slice(devices, pool=node, generation=generation),
        ):
            key = (raw["kind"], raw["metadata"]["name"])
            known = self.stored.get(key)
            raw["metadata"]["uid"] = known["metadata"]["uid"] if known else f"uid-{next(self.serial)}"
            self.store(raw)

    def deliver(self, key: tuple[str, str]) -> None:
        event = self.queues[key].pop(0)
        if not self.queues[key]:
            del self.queues[key]
        if isinstance(event, Applied):
            self.delivered[key] = dict(event.raw)
        else:
            self.delivered.pop(key, None)
        self.history.append(event)
        self.take(self.engine.observe(event, self.now))

    def deliver_all(self) -> None:
        while self.queues:
            self.deliver(next(iter(self.queues)))
        self.extract()

    def extract(self) -> None:
        while self.engine.extract(100):
            pass

    def take(self, changes: Changes) -> None:
        """As the operator keeps its gauges: only pools that changes name are counted again."""
        for pool in changes.pools:
            self.numbers.pop(pool, None)
            self.numbers.update(numbers(self.engine.lock_table([pool])))

    # --- what happens ---

    @rule(
        subnet=st.sampled_from(["A", "B", None]),
        slots=st.integers(1, 2),
        count=st.integers(1, 2),
        requests=st.integers(1, 2),
        node=st.sampled_from([None, None, *NODES]),
    )
    def create(self, subnet: str | None, slots: int, count: int, requests: int, node: str | None) -> None:
        name = f"p{next(self.serial)}"
        wanted = [o.request(f"r{i}", slots=str(slots), count=count) for i in range(requests)]
        self.store(o.claim(name, subnet, requests=wanted, uid=f"u-{name}"))
        spec = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        self.store(o.pod(name, uid=f"p-{name}", **spec))

    @rule(subnet=st.sampled_from(["A", "B"]), slots=st.integers(1, 2), assume=st.booleans())
    def run_a_pod(self, subnet: str, slots: int, assume: bool) -> None:
        """The everyday case in one step, so that devices fill up: created, seen, decided, and often
        written."""
        self.create(subnet, slots, 1, 1, None)
        self.deliver_all()
        name = next(reversed(self.stored))[1]
        self.decide_on(("default", name))
        if not assume and f"u-{name}" in self.writes:
            self.finish_write(f"u-{name}", False)

    @rule(subnet=st.sampled_from(["A", "B"]))
    def run_a_small_pod(self, subnet: str) -> None:
        """Once more, since rules are picked alike: what shares devices is what has to happen often."""
        self.run_a_pod(subnet, 1, False)

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def deliver_one(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from(sorted(self.queues))))

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """Watches restart and lists race: an old event comes once more."""
        self.take(self.engine.observe(data.draw(st.sampled_from(self.history)), self.now))

    @rule()
    def catch_up(self) -> None:
        self.deliver_all()

    @precondition(lambda self: self.engine.pods())
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        self.decide_on(data.draw(st.sampled_from(self.engine.pods())))

    def decide_on(self, key: tuple[str, str]) -> None:
        decision = decide(self.engine, key, self.now, self.new_uuid)
        if isinstance(decision, Placed):
            self.take(self.engine.assume(decision))
            for write in decision.writes:
                self.writes[write.uid] = (write, decision)
        elif isinstance(decision, Unplaced):
            assert not self.feasible(key[1]), f"{key} was refused: {decision.message}"
        else:
            assert isinstance(decision, NotServed)

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=next(self.uuids)))

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), lost=st.booleans())
    def write(self, data: st.DataObject, lost: bool) -> None:
        """The write reaches the server, or does not; a conflict is a certain no."""
        self.finish_write(data.draw(st.sampled_from(sorted(self.writes))), lost)

    def finish_write(self, uid: str, lost: bool) -> None:
        write, _ = self.writes.pop(uid)
        raw = self.stored.get(("ResourceClaim", write.name))
        stale = raw is None or raw["metadata"]["uid"] != uid or "status" in raw
        if lost or stale or raw["metadata"]["resourceVersion"] != write.resource_version:
            self.take(self.engine.forget(uid))
            self.take(self.engine.forget(uid))
            return
        self.store(written(raw, write))
        self.ours.add(uid)
        version = self.stored[("ResourceClaim", write.name)]["metadata"]["resourceVersion"]
        self.take(self.engine.confirm(uid, version))

    @precondition(lambda self: self.claims())
    @rule(data=st.data(), pod_too=st.booleans())
    def delete(self, data: st.DataObject, pod_too: bool) -> None:
        name = data.draw(st.sampled_from(self.claims()))
        self.remove(("ResourceClaim", name))
        if pod_too and ("Pod", name) in self.stored:
            self.remove(("Pod", name))

    @precondition(lambda self: self.allocated())
    @rule(data=st.data())
    def deallocate(self, data: st.DataObject) -> None:
        """Somebody else takes an allocation back (controller or scheduler)."""
        name = data.draw(st.sampled_from(self.allocated()))
        raw = {k: v for k, v in self.stored[("ResourceClaim", name)].items() if k != "status"}
        self.store(raw)

    @rule(
        node=st.sampled_from(NODES), device=st.sampled_from(DEVICES), subnet=st.sampled_from(["A", "A", None])
    )
    def allocate_by_someone_else(self, node: str, device: str, subnet: str | None) -> None:
        """A foreign holder, seen at once: what is not seen cannot be kept apart."""
        self.deliver_all()
        if self.writes or any(h.device == (node, device) for h in self.holds(self.stored)):
            return
        name = f"f{next(self.serial)}"
        raw = o.allocated(o.claim(name, subnet, uid=f"u-{name}"), device, pool=node)
        self.store(raw)
        self.deliver_all()

    @rule(node=st.sampled_from(NODES), what=st.sampled_from(["same", "same", "other", "restart"]))
    def disturb(self, node: str, what: str) -> None:
        """The driver publishes again, also with other extractors; or a kubelet starts and wipes its
        slices."""
        if what == "restart":
            for key in (("ResourceSlice", f"{node}-dev"), ("SharingAffinitySlice", f"{node}-meta")):
                if key in self.stored:
                    self.remove(key)
        self.publish(node, 1 - self.variant[node] if what == "other" else self.variant[node])

    # --- the truth ---

    def claims(self) -> list[str]:
        return sorted(name for kind, name in self.stored if kind == "ResourceClaim")

    def allocated(self) -> list[str]:
        return [n for n in self.claims() if "status" in self.stored[("ResourceClaim", n)]]

    def holds(self, objects: dict[tuple[str, str], JSON]) -> Iterator[Hold]:
        for (kind, _), raw in objects.items():
            if kind == "ResourceClaim" and "status" in raw:
                yield from self._holds_of(raw, raw["status"]["allocation"])

    def _holds_of(self, raw: JSON, allocation: JSON) -> Iterator[Hold]:
        configs = allocation["devices"].get("config", [])
        subnet = configs[0]["opaque"]["parameters"].get("subnetID") if configs else None
        note = raw["metadata"].get("annotations", {}).get("sharingaffinity.dev/allocation", "")
        variant = None if not note else (1 if '!"' in note else 0)
        for result in allocation["devices"]["results"]:
            slots = int(result["consumedCapacity"][o.SLOTS])
            yield Hold((result["pool"], result["device"]), subnet, slots, variant)

    @invariant()
    def devices_are_never_torn(self) -> None:
        keys: dict[tuple[str, str], set[str | None]] = {}
        used: dict[tuple[str, str], int] = {}
        for (kind, _), raw in self.stored.items():
            if kind != "ResourceClaim" or "status" not in raw:
                continue
            for hold in self._holds_of(raw, raw["status"]["allocation"]):
                used[hold.device] = used.get(hold.device, 0) + hold.slots
                if raw["metadata"]["uid"] in self.ours:
                    keys.setdefault(hold.device, set()).add(hold.subnet)
        assert all(len(found) == 1 for found in keys.values()), keys
        assert all(amount <= SLOTS for amount in used.values()), used

    @invariant()
    def memory_is_what_the_objects_say(self) -> None:
        if self.queues or self.writes or not hasattr(self, "engine"):
            return
        self.extract()
        assert not self.engine.assumed()
        fresh = Engine(self.options, EXTRACTIONS, SELECTORS)
        for raw in self.stored.values():
            fresh.observe(Applied(raw), self.now)
        while fresh.extract(100):
            pass
        assert self.engine.fingerprint() == fresh.fingerprint()
        claims = [raw for (kind, _), raw in self.stored.items() if kind == "ResourceClaim"]
        assert self.engine.audit(claims) == ()

    @invariant()
    def numbers_equal_a_recount(self) -> None:
        if hasattr(self, "engine"):
            self.take(self.engine.settle())
            assert self.numbers == numbers(self.engine.lock_table())

    @invariant()
    def indexes_are_what_the_pools_say(self) -> None:
        if not hasattr(self, "engine"):
            return
        world = self.engine._world
        for key, entry in world.matches._entries.items():
            fresh = MatchIndex(world.pools, world.ledger, SELECTORS)
            for index in (world.matches, fresh):
                while not index._is_current(key):
                    with suppress(NotIndexed):
                        index.require([key])
                    index.work()
            for name in ("verdicts", "affinity", "stock", "sets", "elsewhere"):
                assert getattr(entry, name) == getattr(fresh._entries[key], name), name
            assert entry.where == fresh._entries[key].where

    # --- brute force ---

    def feasible(self, name: str) -> bool:
        """Whether any assignment exists, by what has been delivered and what is assumed."""
        raw = self.delivered.get(("ResourceClaim", name))
        pod = self.delivered.get(("Pod", name))
        if raw is None or pod is None:
            return False
        configs = raw["spec"]["devices"].get("config")
        if not configs:
            return False
        subnet = configs[0]["opaque"]["parameters"]["subnetID"]
        wanted = pod["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname")
        holds = list(self.holds(self.delivered))
        waiting = set(self.engine.assumed())
        seen = {
            r["metadata"]["uid"]
            for (k, _), r in self.delivered.items()
            if k == "ResourceClaim" and "status" in r
        }
        for uid in waiting - seen:
            holds += self._assumed_holds(uid)
        return any(
            self._fits(node, raw, subnet, holds)
            for node in NODES
            if wanted in (None, node) and self._joined(node)
        )

    def _assumed_holds(self, uid: str) -> list[Hold]:
        assumption = self.engine._world.assumed[uid]
        found = []
        for result, entry in zip(assumption.allocation.results, assumption.record.results, strict=True):
            value = dict(entry.keys)["subnet"]
            slots = int(result.consumed[o.SLOTS].amount)
            found.append(
                Hold((result.pool, result.device), value.rstrip("!"), slots, int(value.endswith("!")))
            )
        return found

    def _joined(self, node: str) -> bool:
        generations = [
            self.delivered[key]["spec"]["pool"]["generation"]
            for key in (("ResourceSlice", f"{node}-dev"), ("SharingAffinitySlice", f"{node}-meta"))
            if key in self.delivered
        ]
        return len(generations) == 2 and generations[0] == generations[1]

    def _fits(self, node: str, raw: JSON, subnet: str, holds: list[Hold]) -> bool:
        metadata = self.delivered[("SharingAffinitySlice", f"{node}-meta")]
        variant = VARIANTS.index(metadata["spec"]["sharingAffinity"][0]["expression"])
        free: dict[str, int] = {}
        for device in DEVICES:
            mine = [h for h in holds if h.device == (node, device)]
            known = all(h.subnet is not None and h.variant in (None, variant) for h in mine)
            if known and all(h.subnet == subnet for h in mine):
                free[device] = SLOTS - sum(h.slots for h in mine)
        requests = [r["exactly"] for r in raw["spec"]["devices"]["requests"]]
        options = [
            [
                [(device, int(r["capacity"]["requests"][o.SLOTS])) for device in chosen]
                for chosen in itertools.combinations(sorted(free), r["count"])
            ]
            for r in requests
        ]
        for assignment in itertools.product(*options):
            need: dict[str, int] = {}
            for device, slots in itertools.chain.from_iterable(assignment):
                need[device] = need.get(device, 0) + slots
            if all(free[device] >= slots for device, slots in need.items()):
                return True
        return False


TestClusterLife = ClusterLife.TestCase
TestClusterLife.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
