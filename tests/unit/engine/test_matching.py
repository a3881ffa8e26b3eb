"""The index of matching devices: a decision evaluates no selector and looks at a bounded number of devices,
whatever has changed; the rest is queued, worked off in small steps, and gives the same answer."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, written

from sharing_affinity.allocator import Selectors
from sharing_affinity.api import Device
from sharing_affinity.engine import Applied, Engine, Options, Placed, Reason, Unplaced, matching
from sharing_affinity.engine.matching import AT_ONCE
from sharing_affinity.engine.openings import Place, place_of
from sharing_affinity.pools import Pool

NODES = 200
JSON = dict[str, Any]


class Counting(Selectors):
    """Selectors that count how often they are asked about a device."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def known(self, expression: str, driver: str, device: Device) -> bool | str | None:
        self.asked += 1
        return super().known(expression, driver, device)


class Large:
    """Two hundred nodes with eight devices each."""

    def __init__(self) -> None:
        self.selectors = Counting()
        self.engine = Engine(Options(fence_settle=0), selectors=self.selectors)
        self.see(o.device_class())
        for number in range(NODES):
            name = f"node-{number:03}"
            self.see(o.node(name), o.metadata_slice(pool=name), self.slice(name))

    def slice(self, name: str, generation: int = 1) -> JSON:
        devices = [o.device(f"eth{index}", slots="64") for index in range(8)]
        return o.device_slice(devices, pool=name, generation=generation)

    def see(self, *raws: JSON) -> None:
        for raw in raws:
            self.engine.observe(Applied(raw), 1.0)

    def pod(self, name: str, selector: str = "") -> None:
        requests = [o.request(selectors=[o.cel(selector)])] if selector else None
        self.see(o.claim(name, "A", requests=requests), o.pod(name))

    def decide(self, name: str) -> Any:
        self.selectors.asked = 0
        evaluations = self.selectors.evaluations
        decision = self.engine.decide(("default", name), 1.0, lambda: "")
        assert self.selectors.evaluations == evaluations
        return decision

    def settle(self) -> int:
        """All steps, each of which has to be small; how many there were."""
        for step in itertools.count():
            self.selectors.asked, evaluations = 0, self.selectors.evaluations
            if not self.engine.extract(1):
                return step
            assert self.selectors.evaluations <= evaluations + 1
            assert self.selectors.asked <= 64
        raise AssertionError

    def placed(self, name: str) -> bool:
        decision = self.decide(name)
        for _ in range(3):
            if not pending(decision):
                break
            self.settle()
            decision = self.decide(name)
        return isinstance(decision, Placed)


def pending(decision: Any) -> bool:
    return isinstance(decision, Unplaced) and decision.reason is Reason.EXTRACTION_PENDING


def test_a_new_kind_of_request_is_looked_up_in_steps() -> None:
    large = Large()
    large.pod("first", "device.driver != 'other'")
    assert pending(large.decide("first"))
    assert large.selectors.asked <= AT_ONCE
    assert large.settle() > NODES
    assert large.placed("first")
    # Known from now on: the next one needs no stage.
    large.pod("second", "device.driver != 'other'")
    assert isinstance(large.decide("second"), Placed)


def test_many_changed_pools_are_looked_at_in_steps() -> None:
    large = Large()
    large.pod("first")
    assert large.placed("first")
    for number in range(NODES):
        name = f"node-{number:03}"
        large.see(o.metadata_slice(pool=name, generation=2), large.slice(name, 2))
    assert pending(large.decide("first"))
    assert large.selectors.asked <= AT_ONCE
    assert large.placed("first")


def test_a_few_changed_pools_need_no_stage() -> None:
    large = Large()
    large.pod("first")
    assert large.placed("first")
    for name in ("node-003", "node-004"):
        large.see(o.metadata_slice(pool=name, generation=2), large.slice(name, 2))
    assert isinstance(large.decide("first"), Placed)


def test_an_allocation_is_booked_where_it_is_made_not_in_the_next_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Large()
    large.pod("first")
    assert large.placed("first")
    decision = large.decide("first")
    located: list[Pool] = []

    def counted(pool: Pool, *rest: Any) -> Place:
        located.append(pool)
        return place_of(pool, *rest)

    monkeypatch.setattr(matching, "place_of", counted)
    large.engine.assume(decision)
    assert [pool.name for pool in located] == [decision.node]
    large.see(written(o.claim("first", "A"), decision.writes[0]))
    large.pod("second")
    assert isinstance(large.decide("second"), Placed)
    assert len(located) == 1


def test_many_touched_pools_are_located_in_steps() -> None:
    large = Large()
    large.pod("first")
    assert large.placed("first")
    for number in range(NODES):
        large.see(o.allocated(o.claim(f"held-{number}", "B"), "eth0", pool=f"node-{number:03}"))
    assert pending(large.decide("first"))
    assert large.placed("first")


def test_a_rule_for_all_pools_is_applied_in_steps_and_nothing_decided_meanwhile() -> None:
    large = Large()
    large.pod("first")
    assert large.placed("first")
    large.see(
        {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": o.meta("broken"),
            "spec": {
                "deviceSelector": {"driver": o.DRIVER},
                "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
            },
        }
    )
    assert len(large.engine._world.published.stale) == NODES
    assert pending(large.decide("first"))
    large.settle()
    assert not large.placed("first")
    assert not large.engine._world.published.stale


def test_a_costly_selector_does_not_keep_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_TURN", 20_000)
    large = Large()
    for number in range(NODES):
        # Every device is another one to a selector.
        device = o.device("eth0", slots="64", attributes={"number": {"int": number}})
        large.see(o.device_slice([device], pool=f"node-{number:03}"))
    inner = ", ".join(map(str, range(100)))
    costly = f"[{inner}].all(x, [{inner}].all(y, x + y >= 0)) && device.driver != ''"
    large.pod("hostile", costly)
    large.pod("honest", "device.driver != ''")
    assert pending(large.decide("hostile"))
    assert pending(large.decide("honest"))
    for _ in range(3 * NODES):
        large.engine.extract(1)
        if large.engine._world.matches.finished:
            break
    assert large.engine._world.matches.busy
    while pending(large.decide("honest")):
        large.engine.extract(1)
    assert isinstance(large.decide("honest"), Placed)
    assert pending(large.decide("hostile"))


def test_more_selectors_than_are_remembered_are_refused_not_looked_up_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "_ENTRIES", 3)
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    kinds = [o.request(f"r{i}", selectors=[o.cel(f"device.driver != '{i}'")]) for i in range(4)]
    refused = w.refuse("four", "A", requests=kinds)
    assert refused.reason is Reason.UNSUPPORTED
    assert "different selectors" in refused.message
    w.release("four")
    assert w.place("three", "A", requests=kinds[:3])
    assert len(w.engine._world.matches._entries) <= 3


def test_signatures_not_asked_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_ENTRIES", 2)
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    for i in range(5):
        assert w.place(f"p{i}", "A", requests=[o.request(selectors=[o.cel(f"device.driver != '{i}'")])])
        assert len(w.engine._world.matches._entries) <= 2
    assert w.place("again", "A", requests=[o.request(selectors=[o.cel("device.driver != '0'")])])


def test_a_pool_that_changes_while_it_is_looked_at_is_judged_by_its_newest_state() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), scoring=False)
    devices = [o.device(f"eth{i}", slots="16", attributes={"index": {"int": i}}) for i in range(4)]
    w.show(o.device_slice(copy.deepcopy(devices)))
    wanted = o.request(selectors=[o.cel(f"device.attributes['{o.DRIVER}'].index >= 2")])
    w.show(o.claim("pod", "A", requests=[wanted]), o.pod("pod"))
    assert pending(w.engine.decide(("default", "pod"), w.now, w.new_uuid))
    w.engine.extract(2)
    # In the middle of it the driver renumbers its devices.
    for i, device in enumerate(devices):
        device["attributes"]["index"] = {"int": 3 - i}
    w.engine.observe(Applied(o.metadata_slice(generation=2)), w.now)
    w.engine.observe(Applied(o.device_slice(devices, generation=2)), w.now)
    decision = w.decide("pod")
    assert isinstance(decision, Placed)
    assert decision.writes[0].allocation["devices"]["results"][0]["device"] == "eth0"


def test_each_node_gets_its_own_devices_of_a_pool_that_spans_nodes() -> None:
    w = World(o.node("node-a"), o.node("node-b"), o.device_class())
    w.show(o.metadata_slice(pool="fabric", count=3))
    for node in ("node-a", "node-b"):
        devices = [o.device(f"port-{node}")]
        w.show(o.device_slice(devices, name=f"{node}-dev", pool="fabric", count=2, nodeName=node))
    for node in ("node-b", "node-a"):
        pinned = {"kubernetes.io/hostname": node}
        w.show(o.claim(f"on-{node}", node), o.pod(f"on-{node}", nodeSelector=pinned))
        decision = w.decide(f"on-{node}")
        assert isinstance(decision, Placed)
        assert decision.node == node
        assert decision.writes[0].allocation["devices"]["results"][0]["device"] == f"port-{node}"


def test_what_nobody_asks_for_does_not_remember_every_pool_there_ever_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes come and go, each with a name of its own, while some kinds of requests are not made any more."""
    monkeypatch.setattr(matching, "AT_ONCE", 16)
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    w.place("pod", "A")
    entries = w.engine._world.matches._entries
    assert entries
    for number in range(100):
        name = f"node-{number:03}"
        w.show(o.device_slice(pool=name), o.metadata_slice(pool=name))
        w.gone("ResourceSlice", f"{name}-dev")
        w.gone("SharingAffinitySlice", f"{name}-meta")
        assert all(len(entry.changed) <= 16 + 2 for entry in entries.values())
    w.add("next", "A")
    w.extract()
    w.decide("next")
    w.extract()
    assert isinstance(w.decide("next"), Placed)
