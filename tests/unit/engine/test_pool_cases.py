"""Area C of the public cases, and the rules of pools: joining, completeness, validity, the fence."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, nics

from sharing_affinity.engine import Applied, DeviceState, Engine, Gone, Options, Placed, PoolLocks, Unplaced

JSON = dict[str, Any]


def pool(w: World, name: str = "node-a") -> PoolLocks:
    return next(p for p in w.engine.lock_table() if p.pool == name)


def test_c01_whole_pool_counts_whatever_node_its_slices_are_for() -> None:
    w = World(
        o.device_class(),
        o.node("node-a"),
        o.node("node-b"),
        o.metadata_slice(pool="fabric", count=3),
        o.device_slice([o.device("a")], "fabric-a", "fabric", count=2, nodeName="node-a"),
        o.device_slice([o.device("b")], "fabric-b", "fabric", count=2, nodeName="node-b"),
    )
    decision = w.try_place("pod", "A")
    assert isinstance(decision, Placed)
    assert decision.node == "node-a"
    assert w.locks() == {"a": "subnet=A"}
    w.gone("ResourceSlice", "fabric-b")
    refused = w.refuse("other", "A")
    assert pool(w, "fabric").reason == "Incomplete"
    assert "Incomplete: 2 of 3 slices of generation 1 are there" in refused.message


def test_c02_no_generation_serves_while_the_new_one_is_half_there() -> None:
    w = nics()
    w.place("holder", "A")
    w.show(o.device_slice(generation=2))
    assert pool(w).reason == "Incomplete"
    w.refuse("pod", "A")
    assert w.lock("eth1").state is DeviceState.UNKNOWN
    renamed = {**o.SUBNET, "name": "net"}
    w.show(o.metadata_slice([renamed], generation=2))
    assert pool(w).reason == "Joined"
    # The holder was recorded under the old key name.
    assert w.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
    assert isinstance(w.decide("pod"), Placed)


def test_c02_state_does_not_depend_on_the_order_of_events() -> None:
    raws = [
        o.metadata_slice(name="old-meta"),
        o.device_slice([o.device("eth1")], name="old-dev"),
        o.metadata_slice([{**o.SUBNET, "name": "net"}], name="new-meta", generation=2),
        o.device_slice(name="new-dev", generation=2),
    ]
    holder = o.allocated(o.claim("holder", "A"), "eth1")
    seen = set()
    for order in itertools.permutations(raws):
        engine = Engine(Options())
        for raw in [o.node(), o.device_class(), holder, *order]:
            engine.observe(Applied(raw), 0.0)
        while engine.extract(10):
            pass
        seen.add(str(engine.fingerprint()))
    assert len(seen) == 1
    assert "net" in seen.pop()


def test_c04_invalid_pool_disqualifies_its_own_node_only() -> None:
    w = World(
        o.device_class(),
        o.node("node-a"),
        o.metadata_slice(name="meta-1", count=3),
        o.metadata_slice(name="meta-2", count=3),
        o.device_slice(),
    )
    refused = w.refuse("pod", "A")
    assert (
        "pool node-a is not usable (Invalid: sharing-affinity key subnet is declared twice" in refused.message
    )
    w.show(o.node("node-b"), o.metadata_slice(pool="node-b"), o.device_slice([o.device("b1")], pool="node-b"))
    decision = w.decide("pod")
    assert isinstance(decision, Placed)
    assert decision.node == "node-b"
    w.show(o.metadata_slice([o.PKEY], name="meta-2", count=3))
    assert w.place("both", configs=[o.config(o.nic("A", ibPKey="1"))]) == ["eth1"]


def unfenced(name: str = "eth1") -> JSON:
    return o.device(name, fence=False)


def slices(*raws: JSON) -> PoolLocks:
    return pool(World(o.node(), o.device_class(), *raws))


@pytest.mark.parametrize(
    ("raws", "reason", "message"),
    [
        ([o.metadata_slice(), o.device_slice()], "Joined", ""),
        ([o.metadata_slice(), o.device_slice(count=2)], "Joined", ""),
        ([o.metadata_slice(count=3), o.device_slice()], "Incomplete", "2 of 3 slices"),
        ([o.metadata_slice()], "Incomplete", "no ResourceSlice of generation 1"),
        ([o.metadata_slice(), o.device_slice(generation=2)], "Incomplete", "no SharingAffinitySlice"),
        ([o.metadata_slice(generation=2), o.device_slice()], "Incomplete", "no ResourceSlice of gen"),
        ([o.metadata_slice(count=1), o.device_slice()], "Invalid", "2 slices are there, but"),
        ([o.metadata_slice(), o.device_slice(count=5)], "Invalid", "resourceSliceCount 5; right is 1"),
        (
            [o.metadata_slice(count=3), o.metadata_slice([o.PKEY], "m2", count=2), o.device_slice()],
            "Invalid",
            "declare resourceSliceCount 2, 3",
        ),
        (
            [o.metadata_slice(count=3), o.metadata_slice(name="m2", count=3), o.device_slice()],
            "Invalid",
            "key subnet is declared twice (slices m2 and node-a-meta)",
        ),
        (
            [
                o.metadata_slice(count=3),
                o.device_slice([o.device("x")], "d1", count=2),
                o.device_slice([o.device("x")], "d2", count=2),
            ],
            "Invalid",
            "device name x is used twice",
        ),
        ([o.device_slice()], "FencedWithoutMetadata", "sharingaffinity.dev/managed"),
        ([o.metadata_slice(), o.device_slice([unfenced()])], "Unfenced", "device eth1 lacks the taint"),
        (
            [o.metadata_slice(), o.device_slice([o.device("eth2"), unfenced()])],
            "Unfenced",
            "device eth1 lacks the taint",
        ),
        ([o.metadata_slice(), o.device_slice([unfenced()], count=2)], "Joined", ""),
        ([o.metadata_slice(), o.device_slice([o.device(future={"a": 1})])], "Unsupported", "[0].future"),
        (
            [o.metadata_slice(), o.device_slice([o.device(attributes={"a": {"strings": ["x"]}})])],
            "Unsupported",
            "attributes.a.strings",
        ),
        (
            [o.device_slice([unfenced()]), {**o.device_slice(sharingAffinity=[o.SUBNET], devices=None)}],
            "Invalid",
            "both devices and sharingAffinity",
        ),
        (
            [
                o.metadata_slice(
                    [{"name": k, "expression": 'object.a.contains(object.b) ? "" : ""'} for k in "abcd"]
                ),
                o.device_slice(),
            ],
            "Invalid",
            "over the shared budget of 1000000",
        ),
    ],
)  # fmt: skip
def test_pool_states(raws: list[JSON], reason: str, message: str) -> None:
    found = slices(*raws)
    assert found.reason == reason
    assert message in found.message
    assert found.status == (reason == "Joined")


def test_native_field_replaces_ours_and_is_the_schedulers_when_unfenced() -> None:
    native = o.device_slice(None, "native", count=2, sharingAffinity=[o.PKEY])
    del native["spec"]["devices"]
    assert slices(native, o.device_slice([unfenced()], count=2)).reason == "ManagedByScheduler"
    fenced = slices(native, o.device_slice(count=2))
    assert (fenced.reason, [name for name, _ in fenced.extractors]) == ("Joined", ["pkey"])


def rule(name: str = "fence", **selector: str) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": o.meta(name),
        "spec": {"deviceSelector": selector, "taint": o.FENCE},
    }


@pytest.mark.parametrize(("flag", "reason"), [(False, "Unfenced"), (True, "Joined")])
def test_taint_rule_is_a_fence_only_with_the_flag(flag: bool, reason: str) -> None:
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([unfenced()]),
        rule(driver=o.DRIVER),
        rule_fences=flag,
    )
    assert pool(w).reason == reason
    if flag:
        assert w.place("pod", "A") == ["eth1"]
        w.gone("DeviceTaintRule", "fence")
        assert pool(w).reason == "Unfenced"


@pytest.mark.parametrize("part", ["deviceSelector", "taint"])
def test_taint_rule_with_fields_of_tomorrow_is_no_fence(part: str) -> None:
    """It may select fewer devices than this version thinks; the others would be open to the scheduler."""
    odd = rule(driver=o.DRIVER)
    odd["spec"][part] = {**odd["spec"][part], "onlyOn": "tuesdays"}
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([unfenced()]),
        odd,
        rule_fences=True,
    )
    assert pool(w).reason == "Unfenced"
    odd["spec"][part] = {k: v for k, v in odd["spec"][part].items() if k != "onlyOn"}
    w.show(odd)
    assert pool(w).reason == "Joined"


def test_taint_rule_of_others_keeps_devices_off() -> None:
    broken = rule("broken", driver=o.DRIVER, device="eth1")
    broken["spec"]["taint"] = {"key": "broken", "effect": "NoExecute"}
    w = nics(broken)
    assert w.place("pod", "A") == ["eth2"]
    tolerant = o.request(tolerations=[{"key": "broken", "operator": "Exists"}])
    assert w.place("brave", "B", requests=[tolerant]) == ["eth1"]


def test_fence_with_another_effect_is_neither_fence_nor_ignored() -> None:
    odd = o.device("eth1", fence=False, taints=[{**o.FENCE, "effect": "NoExecute"}])
    assert slices(o.metadata_slice(), o.device_slice([odd])).reason == "Unfenced"


def test_gate_off_withholds_every_affinity_pool() -> None:
    w = nics(o.allocated(o.claim("holder", "A"), "eth1"), sharing_affinity=False)
    assert pool(w).reason == "GateOff"
    refused = w.refuse("pod", "A")
    assert "DRASharingAffinity is off" in refused.message


def test_young_fence_is_not_relied_on() -> None:
    w = nics(fence_settle=10.0)
    refused = w.refuse("pod", "A")
    assert refused.retry_at == w.now + 10.0
    w.now += 10.0
    assert isinstance(w.decide("pod"), Placed)


@pytest.mark.parametrize("before", [{"pool": "node-b"}, {"driver": "other.example.com"}, {"device": "eth2"}])
def test_a_rule_that_comes_to_select_a_pool_is_a_young_fence(before: JSON) -> None:
    """A rule keeps the time at which it was made when its selector is changed."""
    old = {**o.FENCE, "timeAdded": "2026-01-01T00:00:00Z"}
    moving, moved = rule(**before), rule(driver=o.DRIVER)
    for raw in (moving, moved):
        raw["spec"]["taint"] = old
    pool_of_one = (o.metadata_slice(), o.device_slice([unfenced()]))
    w = World(o.node(), o.device_class(), *pool_of_one, moving, rule_fences=True, fence_settle=10.0)
    w.now += 3600.0
    w.show(moved)
    refused = w.refuse("pod", "A")
    assert refused.retry_at == w.now + 10.0

    w.show({**moved, "metadata": {**moved["metadata"], "annotations": {"seen": "yes"}}})
    assert w.refuse("second", "A").retry_at == w.now + 10.0
    w.now += 10.0
    assert isinstance(w.decide("pod"), Placed)
    # Whoever starts later has nothing else to go by.
    assert isinstance(w.restarted().decide("pod"), Placed)


@pytest.mark.parametrize("at_once", [0, 32])
@pytest.mark.parametrize("gap", ["deleted", "moved"])
def test_a_rule_that_was_away_for_a_moment_is_a_young_fence(
    monkeypatch: pytest.MonkeyPatch, at_once: int, gap: str
) -> None:
    """Also when so many pools follow from it that they are judged later, after it is back."""
    monkeypatch.setattr("sharing_affinity.engine.world._AT_ONCE", at_once)
    there = rule(driver=o.DRIVER)
    there["spec"]["taint"] = {**o.FENCE, "timeAdded": "2026-01-01T00:00:00Z"}
    pool_of_one = (o.metadata_slice(), o.device_slice([unfenced()]))
    w = World(o.node(), o.device_class(), *pool_of_one, there, rule_fences=True, fence_settle=10.0)
    w.now += 3600.0
    again = copy.deepcopy(there)
    if gap == "deleted":
        w.engine.observe(Gone("DeviceTaintRule", "", "fence", there["metadata"]["uid"]), w.now)
        again["metadata"]["uid"] = "another"
        again["spec"]["taint"]["timeAdded"] = "2026-01-01T01:00:00Z"
    else:
        away = copy.deepcopy(there)
        away["metadata"]["resourceVersion"] = "100001"
        away["spec"]["deviceSelector"] = {"driver": "other.example.com"}
        w.engine.observe(Applied(away), w.now)
    again["metadata"]["resourceVersion"] = "100002"
    w.engine.observe(Applied(again), w.now)
    w.extract()
    assert w.refuse("pod", "A").retry_at == w.now + 10.0


@pytest.mark.parametrize("at_once", [0, 32])
@pytest.mark.parametrize("kept_by", ["own taint", "another rule", "the same rule"])
def test_a_rule_that_goes_makes_no_fence_young_that_others_keep_up(
    monkeypatch: pytest.MonkeyPatch, at_once: int, kept_by: str
) -> None:
    monkeypatch.setattr("sharing_affinity.engine.world._AT_ONCE", at_once)
    device = o.device("eth1") if kept_by == "own taint" else unfenced()
    rules = [rule("first", driver=o.DRIVER, pool="node-a")]
    if kept_by == "another rule":
        rules.append(rule("second", driver=o.DRIVER))
    pool_of_one = (o.metadata_slice(), o.device_slice([device]))
    w = World(o.node(), o.device_class(), *pool_of_one, *rules, rule_fences=True, fence_settle=10.0)
    w.now += 3600.0
    if kept_by == "the same rule":  # widened
        w.show(rule("first", driver=o.DRIVER))
    else:
        w.engine.observe(Gone("DeviceTaintRule", "", "first", rules[0]["metadata"]["uid"]), w.now)
        w.extract()
    assert isinstance(w.try_place("pod", "A"), Placed)


def test_a_slice_that_is_not_understood_makes_no_fence_of_its_pool_old() -> None:
    other = o.device_slice([o.device("eth2")], "other", count=2)
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(count=3),
        o.device_slice([o.device("eth1")], count=2),
        other,
        fence_settle=10.0,
    )
    w.show({**other, "spec": {**other["spec"], "devices": "none"}})
    w.show(other)
    assert pool(w).reason == "Joined"
    assert w.refuse("pod", "A").retry_at == w.now + 10.0


def test_republishing_does_not_make_a_fence_young_again() -> None:
    w = nics(fence_settle=10.0)
    w.now += 30.0
    stamped = [o.device(n, taints=[]) for n in ("eth1", "eth2")]
    for d in stamped:
        d["taints"] = [{**o.FENCE, "timeAdded": "2026-01-01T00:00:29Z"}]
    w.show(o.metadata_slice(generation=2), o.device_slice(stamped, name="second", generation=2))
    assert isinstance(w.try_place("pod", "A"), Placed)


def test_pool_gone_for_a_while_loses_no_lock() -> None:
    """A restarting kubelet deletes all slices of its node (H6)."""
    w = nics()
    w.place("holder", "A")
    w.gone("ResourceSlice", "node-a-dev")
    w.gone("SharingAffinitySlice", "node-a-meta")
    gone = pool(w)
    assert (gone.reason, gone.status) == ("Gone", False)
    assert w.lock("eth1").state is DeviceState.UNKNOWN
    assert not isinstance(w.try_place("pod", "A"), Placed)
    again = [o.metadata_slice(), o.device_slice()]
    for raw in again:
        raw["metadata"]["uid"] += "-recreated"
    w.show(*again)
    assert w.locks() == {"eth1": "subnet=A"}
    assert isinstance(w.decide("pod"), Placed)


def test_affinity_added_to_a_pool_in_use() -> None:
    """Settled semantics 3: by the keys of all holders."""
    holders = [
        o.allocated(o.claim(f"h{i}", s), d) for i, (s, d) in enumerate([("A", "eth1"), (None, "eth2")])
    ]
    w = World(o.node(), o.device_class(), o.device_slice([unfenced(), unfenced("eth2")]), *holders)
    w.show(o.device_slice())
    assert pool(w).reason == "FencedWithoutMetadata"
    w.show(o.metadata_slice())
    assert w.locks() == {"eth1": "subnet=A", "eth2": "Unreconstructable"}


def test_allocation_by_another_allocator_is_a_holder_and_is_reported() -> None:
    w = nics(o.claim("foreign", "A"))
    w.show(o.allocated(o.claim("foreign", "A"), "eth1"))
    assert w.locks() == {"eth1": "subnet=A"}
    assert [n.reason for n in w.engine.notices()] == ["FenceBreached"]
    w.place("own", "A")
    assert w.engine.notices() == ()


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "ResourceSlice", "metadata": {"name": "node-a-dev"}, "spec": 5},
        {"kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": {"driver": "d", "pool": {"name": "p"}}},
        {"kind": "SharingAffinitySlice", "metadata": {"name": "x"}, "spec": {"driver": ["d"]}},
        {"kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"devices": {"requests": [7]}}},
        {"kind": "Pod", "metadata": 1},
        {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "much"}}},
        {"kind": "DeviceClass"},
    ],
)
def test_a_bad_object_is_refused_alone(broken: JSON) -> None:
    w = nics()
    problem = w.engine.observe(Applied(broken), w.now).problem
    assert problem is not None
    assert problem.path
    if broken["metadata" if "metadata" in broken else "kind"] != {"name": "node-a-dev"}:
        assert w.place("pod", "A") == ["eth1"]


def test_a_claim_that_is_not_understood_keeps_its_devices() -> None:
    held = o.allocated(o.claim("odd", "A"), "eth1", share=None)
    held["spec"]["devices"]["requests"] = "what"
    w = nics(held)
    assert w.place("pod", "A") == ["eth2"]


def test_slice_status_tells_what_is_wrong_with_expressions() -> None:
    w = World(o.node(), o.metadata_slice([{"name": "k", "expression": "object."}]), o.device_slice())
    status = w.engine.slice_status("node-a-meta")
    assert status is not None
    assert (status.accepted, status.accepted_reason) == (False, "DoesNotCompile")
    assert "does not compile: " in status.accepted_message
    assert "ERROR" in status.accepted_message, "the compiler's own words"
    assert status.estimated_cost is None
    good = nics().engine.slice_status("node-a-meta")
    assert good is not None
    assert (good.accepted, good.joined, good.joined_reason) == (True, True, "Joined")
    assert good.estimated_cost is not None
    assert good.estimated_cost > 0
    assert w.engine.slice_status("none") is None


def test_mixed_claim_is_refused_with_a_way_out() -> None:
    gpu = o.device_slice(
        [o.device("gpu0", fence=False)], pool="node-a-gpu", driver="gpu.example.com", nodeName="node-a"
    )
    w = nics(gpu, o.device_class("gpu", selectors=[o.cel('device.driver == "gpu.example.com"')]))
    refused = w.refuse("pod", "A", requests=[o.request("nic"), o.request("gpu", "gpu")])
    assert "split it into two claims" in refused.message
    assert isinstance(refused, Unplaced)
