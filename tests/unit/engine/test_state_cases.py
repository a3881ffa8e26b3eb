"""Area B of the public cases: capacity, shares, locks, assumptions, and what is left after failures."""

from __future__ import annotations

from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, devices, nics

from sharing_affinity.engine import Applied, DeviceState, Gone, Placed, Unplaced

JSON = dict[str, Any]


def used(w: World, device: str) -> str:
    return w.lock(device).capacity[0][1]


def test_b02_shares_count_after_a_restart() -> None:
    w = nics(o.allocated(o.claim("c1", "A"), "eth1", slots="10")).restarted()
    assert w.locks() == {"eth1": "subnet=A"}
    assert used(w, "eth1") == "10"
    assert w.place("c2", "B") == ["eth2"]
    w.refuse("c3", "A", requests=[o.request(slots="7")])
    assert w.place("c4", "A", requests=[o.request(slots="6")]) == ["eth1"]


def test_b02_dedicated_holder_takes_the_whole_device() -> None:
    w = nics(o.allocated(o.claim("c1", "A"), "eth1", share=None))
    assert w.place("c2", "A") == ["eth2"]


def test_b02_shares_block_a_device_that_is_not_shareable_any_more() -> None:
    w = nics(o.allocated(o.claim("c1", "A"), "eth1"))
    w.show(o.device_slice([o.device("eth1", allowMultipleAllocations=False, default=None), o.device("eth2")]))
    assert w.place("c2", "A") == ["eth2"]


def zoned(name: str, zone: str) -> JSON:
    return o.device(name, "1", attributes={f"{o.DRIVER}/zone": {"string": zone}})


@pytest.mark.parametrize("scoring", [False, True])
def test_b03_backtracking_leaves_nothing_behind(scoring: bool) -> None:
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([zoned("eth1", "z1"), zoned("eth2", "z2"), zoned("eth3", "z2")]),
        scoring=scoring,
    )
    got = w.place(
        "c1",
        "A",
        requests=[o.request("r0"), o.request("r1")],
        constraints=[{"matchAttribute": f"{o.DRIVER}/zone"}],
    )
    assert got == ["eth2", "eth3"]
    assert w.lock("eth1").state is DeviceState.CLEAN
    assert w.place("c2", "B") == ["eth1"]


def test_b03_taint_refusal_leaves_no_lock() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", taints=[taint]), o.device("eth2")]),
    )
    assert w.place("c1", "A") == ["eth2"]
    assert w.locks() == {"eth2": "subnet=A"}


def test_b03_a_refused_candidate_keeps_no_tentative_lock() -> None:
    """The taint is looked at after affinity: what the first request tried must not lock out the second."""
    taint = {"key": "odd", "effect": "NoSchedule"}
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", taints=[taint]), o.device("eth2")]),
    )
    tolerant = o.request("r1", tolerations=[{"key": "odd", "operator": "Exists"}])
    configs = [o.config(o.nic("A"), ["r0"]), o.config(o.nic("B"), ["r1"])]
    assert w.place("pod", requests=[o.request("r0"), tolerant], configs=configs) == ["eth2", "eth1"]


@pytest.mark.parametrize(
    ("slots", "default", "second", "left"),
    [("16", None, "eth2", "16"), ("16", "1", "eth1", "2"), ("16", "0", "eth1", "0")],
)
def test_b06_default_of_the_policy_decides_about_sharing(
    slots: str, default: str | None, second: str, left: str
) -> None:
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", slots, default), o.device("eth2", slots, default)]),
    )
    assert w.place("c1", "A") == ["eth1"]
    assert w.place("c2", "A") == [second]
    assert used(w, "eth1") == left
    consumed = w.objects[("ResourceClaim", "default", "c1")]["status"]["allocation"]["devices"]["results"][0]
    assert consumed["consumedCapacity"] == {o.SLOTS: default or "16"}


def test_b06_default_of_nothing_still_locks() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device("eth1", default="0")]))
    for index in range(50):
        assert w.place(f"c{index}", "A") == ["eth1"]
    w.refuse("other", "B")


def test_b06_request_for_an_undeclared_capacity() -> None:
    w = nics()
    refused = w.refuse("c1", "A", requests=[o.request(capacity={"requests": {"speed": "1"}})])
    assert "device has no capacity speed" in refused.message


def test_b07_full_device_gives_way_to_the_next() -> None:
    w = nics(o.allocated(o.claim("full", "A"), "eth1", slots="16"))
    assert w.place("c1", "A") == ["eth2"]


def test_b07_two_devices_for_one_request() -> None:
    w = nics(o.allocated(o.claim("most", "A"), "eth1", slots="15"))
    w.refuse("three", "A", requests=[o.request(count=3)])
    assert w.place("two", "A", requests=[o.request(count=2)]) == ["eth1", "eth2"]
    raw = w.objects[("ResourceClaim", "default", "two")]
    shares = {r["shareID"] for r in raw["status"]["allocation"]["devices"]["results"]}
    assert len(shares) == 2
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=A"}


def test_b07_three_requests_share_what_one_may_not() -> None:
    w = nics(o.allocated(o.claim("most", "A"), "eth1", slots="15"))
    got = w.place("three", "A", requests=[o.request(f"r{i}") for i in range(3)])
    assert got == ["eth1", "eth2", "eth2"]


def test_requests_of_one_claim_add_up() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device("eth1", "3")]))
    w.refuse("four", "A", requests=[o.request(f"r{i}") for i in range(4)])
    assert w.place("three", "A", requests=[o.request(f"r{i}") for i in range(3)]) == ["eth1"] * 3


@pytest.mark.parametrize(
    ("amount", "consumed"), [("1", "1"), ("2", "3"), ("1100m", "3"), ("0", "1"), ("5", "5")]
)
def test_requests_are_rounded_up_to_a_step(amount: str, consumed: str) -> None:
    policy = {"default": "1", "validRange": {"min": "1", "max": "5", "step": "2"}}
    eth1 = o.device("eth1", None, capacity={o.SLOTS: {"value": "16", "requestPolicy": policy}})
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([eth1]))
    w.place("pod", "A", requests=[o.request(slots=amount)])
    assert used(w, "eth1") == consumed
    w.refuse("too-much", "A", requests=[o.request(slots="6")])


def assumed(w: World, name: str, subnet: str) -> str:
    return w.assume(name, subnet).writes[0].uid


def test_b09_a_failed_write_forgotten_twice_does_not_free_the_others_lock() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device("eth1")]))
    first, second = assumed(w, "c1", "A"), assumed(w, "c2", "A")
    w.engine.forget(first)
    w.engine.forget(first)
    assert w.locks() == {"eth1": "subnet=A"}
    w.refuse("b", "B")
    w.engine.forget(second)
    assert w.locks() == {}
    assert isinstance(w.decide("b"), Placed)


@pytest.mark.parametrize("amount", ["9223372036854775807", "9223372036854775808", "1E", "99999999999Ei"])
def test_b11_amounts_at_the_edge_of_int64_are_refused(amount: str) -> None:
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    eth1 = o.device("eth1", None, capacity={o.SLOTS: {"value": "16", "requestPolicy": policy}})
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([eth1]))
    w.refuse("c1", "A", requests=[o.request(slots=amount)])
    assert w.locks() == {}


def test_b11_negative_consumption_is_never_credit() -> None:
    w = nics(o.allocated(o.claim("odd", "A"), "eth1", slots="-5"))
    w.refuse("c1", "A", requests=[o.request(slots="17")])
    assert w.place("c2", "A", requests=[o.request(slots="16")]) == ["eth1"]


@pytest.mark.parametrize(
    ("amount", "fits"), [("1k", True), ("1Ki", False), ("500m", True), ("1e3", True), ("1001", False)]
)
def test_b11_quantities_compare_exactly(amount: str, fits: bool) -> None:
    eth1 = o.device("eth1", None, capacity={o.SLOTS: {"value": "1000"}})
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([eth1]))
    decision = w.try_place("c1", "A", requests=[o.request(slots=amount)])
    assert isinstance(decision, Placed if fits else Unplaced)


def test_recreated_claim_inherits_nothing() -> None:
    """D-05: the name is the same, the UID is another, and deletion is heard late or not at all."""
    w = nics(o.allocated(o.claim("nic", "A", uid="u1"), "eth1"))
    assert w.locks() == {"eth1": "subnet=A"}
    w.show(o.claim("nic", "B", uid="u2"), o.pod("pod", ["nic"]))
    assert w.locks() == {}
    decision = w.assume_for("pod")
    w.write(decision)
    assert devices(decision) == ["eth1"]
    w.engine.observe(Gone("ResourceClaim", "default", "nic", "u1"), w.now)
    assert w.locks() == {"eth1": "subnet=B"}


@pytest.mark.parametrize("where", ["spec", "allocation", "both"])
def test_a_claim_that_is_not_understood_keeps_what_it_holds(where: str) -> None:
    """A device somebody holds is never free, not after a restart either."""
    held = o.allocated(o.claim("odd", "A"), "eth1")
    if where != "allocation":
        held["spec"]["devices"]["config"] = [{"opaque": "not an object"}]
    if where != "spec":
        held["status"]["allocation"]["devices"]["config"] = [{"opaque": "not an object"}]
    w = nics(held)
    assert w.locks() == {"eth1": "subnet=A" if where == "spec" else "Unreconstructable"}
    assert w.engine.audit([held]) == ()
    assert w.place("other", "B") == ["eth2"]
    assert w.restarted().locks() == w.locks()


def test_late_events_change_nothing() -> None:
    w = nics()
    w.add("c1", "A")
    before = w.objects[("ResourceClaim", "default", "c1")]
    w.write(w.assume_for("c1"))
    state = w.engine.fingerprint()
    assert w.engine.observe(Applied(before), w.now).pools == frozenset()
    assert w.engine.fingerprint() == state
    w.gone("ResourceClaim", "c1", "default")
    w.engine.observe(Applied(before), w.now)
    assert w.locks() == {}


def test_confirmed_assumption_is_not_forgotten() -> None:
    w = nics()
    uid = assumed(w, "c1", "A")
    w.engine.confirm(uid)
    w.engine.confirm(uid)
    w.engine.forget(uid)
    assert w.locks() == {"eth1": "subnet=A"}


def test_a_claim_seen_as_it_was_assumed_is_told_of() -> None:
    """The holders are the same, but nothing is assumed any more, and people look at that."""
    w = nics()
    decision = w.assume("c1", "A")
    assert [h.assumed for h in w.lock("eth1").holders] == [True]
    changes = w.write(decision)
    assert changes.pools == {(o.DRIVER, decision.writes[0].record.results[0].pool)}
    assert [h.assumed for h in w.lock("eth1").holders] == [False]


def test_write_that_was_cleared_before_it_was_seen() -> None:
    """The watch may show only the last of several states: after our write the claim was deallocated."""
    w = nics()
    uid = assumed(w, "c1", "A")
    w.engine.confirm(uid, "50000000")
    raw = w.objects[("ResourceClaim", "default", "c1")]
    older = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "49999999"}}
    w.engine.observe(Applied(older), w.now)
    assert w.locks() == {"eth1": "subnet=A"}
    newer = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "50000001"}}
    w.engine.observe(Applied(newer), w.now)
    assert w.locks() == {}


def test_confirmation_that_comes_after_the_claim_was_cleared() -> None:
    """The watch was quicker than the answer of the write; what that frees is told."""
    w = nics()
    uid = assumed(w, "c1", "A")
    raw = w.objects[("ResourceClaim", "default", "c1")]
    newer = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "50000001"}}
    w.engine.observe(Applied(newer), w.now)
    assert w.locks() == {"eth1": "subnet=A"}
    changes = w.engine.confirm(uid, "50000000")
    assert w.locks() == {}
    assert changes.pools == {(o.DRIVER, "node-a")}


def test_extractors_changed_under_a_live_claim() -> None:
    """Settled semantics 13: by the record, before and after a restart alike, until drained."""
    w = nics()
    w.place("c1", "A")
    other = {"name": "subnet", "expression": 'has(object.subnetID) ? object.subnetID + "!" : ""'}
    w.show(o.metadata_slice([other], generation=2), o.device_slice(generation=2))
    for world in (w, w.restarted()):
        assert world.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
        assert "extractors changed" in world.lock("eth1").reason
    w.gone("ResourceClaim", "c1", "default")
    assert w.lock("eth1").state is DeviceState.CLEAN


def test_record_that_does_not_fit_its_allocation_counts_for_nothing() -> None:
    w = nics()
    w.place("c1", "A")
    raw = w.objects[("ResourceClaim", "default", "c1")]
    annotation = raw["metadata"]["annotations"]["sharingaffinity.dev/allocation"]
    stale = annotation.replace('"subnet":"A"', '"subnet":"Z"')
    w.show({**raw, "metadata": {**raw["metadata"], "annotations": {"sharingaffinity.dev/allocation": stale}}})
    assert w.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
    moved = stale.replace("2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z")
    for text in (moved, "not json", '{"results": 5}'):
        w.show(
            {**raw, "metadata": {**raw["metadata"], "annotations": {"sharingaffinity.dev/allocation": text}}}
        )
        assert w.locks() == {"eth1": "subnet=A"}


def test_admin_access_takes_no_part() -> None:
    w = nics(o.allocated(o.claim("full", "A"), "eth1", slots="16"), o.allocated(o.claim("odd"), "eth2"))
    got = w.place("watch", requests=[o.request(allocationMode="All", adminAccess=True)])
    assert got == ["eth1", "eth2"]
    assert w.locks() == {"eth1": "subnet=A", "eth2": "Unreconstructable"}
    assert len(w.lock("eth1").holders) == 1


def test_dedicated_device_of_an_affinity_pool_is_gated_too() -> None:
    eth1 = o.device("eth1", None, allowMultipleAllocations=False)
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([eth1]))
    w.refuse("none")
    assert w.place("one", "A") == ["eth1"]
    assert w.locks() == {"eth1": "subnet=A"}
    w.refuse("two", "A")
