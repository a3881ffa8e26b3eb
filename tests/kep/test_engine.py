"""The engine's items of the KEP's test plan, one test or a few for each."""

from __future__ import annotations

from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, devices, nics

from sharing_affinity.engine import DeviceState, NotServed, Placed, Reason

JSON = dict[str, Any]


def test_device_with_matching_lock_is_chosen() -> None:
    w = nics()
    w.place("first", "A")
    assert w.place("second", "A") == ["eth1"]
    assert w.locks() == {"eth1": "subnet=A"}
    assert len(w.lock("eth1").holders) == 2


def test_device_with_other_lock_is_passed_over() -> None:
    w = nics()
    w.place("first", "A")
    assert w.place("other", "B") == ["eth2"]


def test_pod_that_fits_no_lock_stays_pending() -> None:
    w = nics()
    w.place("first", "A")
    w.place("other", "B")
    refused = w.refuse("third", "C")
    assert refused.reason is Reason.NO_NODE
    assert "locked to incompatible affinity values (claim has subnet=C)" in refused.message
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=B"}


def test_another_node_serves_what_this_one_cannot() -> None:
    w = nics(
        o.node("node-b"),
        o.metadata_slice(pool="node-b"),
        o.device_slice([o.device("eth9")], pool="node-b"),
    )
    w.place("first", "A")
    w.place("other", "B")
    assert w.place("third", "C") == ["eth9"]


def test_clean_device_is_chosen_and_locked() -> None:
    w = nics()
    assert w.place("first", "A") == ["eth1"]
    assert w.lock("eth1").state is DeviceState.LOCKED
    assert w.lock("eth2").state is DeviceState.CLEAN


def test_claim_without_keys_gets_no_device_of_the_pool() -> None:
    w = nics()
    refused = w.refuse("plain")
    assert "produced no value for sharing-affinity key subnet" in refused.message
    assert w.locks() == {}


def test_other_affinity_pool_serves_a_claim_without_keys_of_the_first() -> None:
    vlan = {"name": "vlan", "expression": 'has(object.vlan) ? object.vlan : ""'}
    w = nics(
        o.node("node-b"),
        o.metadata_slice([vlan], pool="node-b"),
        o.device_slice([o.device("eth9")], pool="node-b"),
    )
    assert w.place("plain", configs=[o.config({"vlan": "7"})]) == ["eth9"]


def test_fields_that_no_extractor_reads_have_no_influence() -> None:
    w = nics()
    w.place("first", configs=[o.config(o.nic("A", mtu=9000, vlan=100))])
    assert w.place("second", configs=[o.config(o.nic("A", mtu=1500))]) == ["eth1"]
    assert w.locks() == {"eth1": "subnet=A"}


def test_conflicting_values_make_the_pod_unschedulable() -> None:
    w = nics()
    refused = w.refuse("torn", configs=[o.config(o.nic("A")), o.config(o.nic("B"))])
    assert refused.reason is Reason.CLAIM_ERROR
    assert "subnet" in refused.message
    assert refused.retry_at is None
    assert w.locks() == {}


# Within the budget for any config the API server accepts; the config below is larger than it would accept.
COSTLY = 'object.big.all(n, [1, 2, 3].all(x, x > 0) && [1, 2, 3].all(x, x > 0)) ? "x" : ""'


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("object.absent", "runtime"), ("object.mtu", "non-string"), (COSTLY, "cost"), ("object.", "parse")],
    ids=lambda value: value[:12],
)
@pytest.mark.parametrize("broken", ["node-a", "node-z"])
def test_evaluation_error_aborts_whatever_the_order(expression: str, kind: str, broken: str) -> None:
    """The broken pool's node sorts before or after the healthy one's: the answer is the same."""
    healthy = "node-m"
    w = World(
        o.device_class(),
        o.node(broken),
        o.node(healthy),
        o.metadata_slice([{"name": "broken", "expression": expression}], pool=broken),
        o.device_slice(pool=broken),
        o.metadata_slice(pool=healthy),
        o.device_slice(pool=healthy),
    )
    refused = w.refuse("pod", configs=[o.config(o.nic("A", mtu=9000, big=[1] * 50_000))])
    assert refused.reason is Reason.SLICE_ERROR
    assert f"({kind})" in refused.message
    assert w.locks() == {}


def test_evaluation_error_on_a_node_the_pod_cannot_use_does_not_matter() -> None:
    w = nics(
        o.node("node-z", unschedulable=True),
        o.metadata_slice([{"name": "broken", "expression": "object.absent"}], pool="node-z"),
        o.device_slice(pool="node-z"),
    )
    assert w.place("pod", "A") == ["eth1"]


def test_unreconstructable_device_is_passed_over_until_drained() -> None:
    w = nics(o.allocated(o.claim("legacy"), "eth1"))
    assert w.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
    assert w.place("pod", "A") == ["eth2"]
    refused = w.refuse("pod2", "B")
    assert "unknown affinity state due to legacy or invalid active claims" in str(refused.diagnosis)
    w.gone("ResourceClaim", "legacy", "default")
    assert w.lock("eth1").state is DeviceState.CLEAN
    assert isinstance(w.decide("pod2"), Placed)


@pytest.mark.parametrize(("scoring", "expected"), [(False, "eth1"), (True, "eth2")])
def test_first_fit_without_scoring_and_the_locked_device_with_it(scoring: bool, expected: str) -> None:
    w = nics(o.allocated(o.claim("held", "A"), "eth2"), scoring=scoring)
    assert w.place("pod", "A") == [expected]


def test_second_claim_of_same_values_joins_the_assumed_lock() -> None:
    w = nics()
    for name in ("one", "two"):
        assert devices(w.assume(name, "A")) == ["eth1"]
    holders = w.lock("eth1").holders
    assert [h.assumed for h in holders] == [True, True]


def test_second_claim_of_other_values_is_kept_off_by_the_assumed_lock() -> None:
    w = nics()
    w.assume("one", "A")
    w.add("two", "B")
    other = w.decide("two")
    assert isinstance(other, Placed)
    assert devices(other) == ["eth2"]


def test_forgetting_rolls_the_lock_back() -> None:
    w = nics()
    changes = w.engine.forget(w.assume("one", "A").writes[0].uid)
    assert ("default", "one") in changes.pods
    assert w.locks() == {}
    assert w.engine.fingerprint() == w.restarted().engine.fingerprint()


@pytest.mark.parametrize("configs", [None, [o.config({"something": "else"})], [o.config(o.nic())]])
def test_legacy_holder_makes_the_device_unknown_and_aborts_no_pod(configs: list[JSON] | None) -> None:
    broken = {"name": "subnet", "expression": "object.subnetID"}
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice([broken]),
        o.device_slice(),
        o.allocated(o.claim("legacy", configs=configs), "eth1"),
    )
    assert w.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
    # The holder's evaluation error is the holder's; a pod with a good config goes to the other device.
    assert w.place("pod", "A") == ["eth2"]


def legacy(*claims: JSON) -> World:
    """Only ``eth1``, held by the claims."""
    return World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device("eth1")]), *claims)


def test_legacy_table() -> None:
    unknown = [o.allocated(o.claim(f"old{i}"), "eth1", subnet=None) for i in range(5)]
    w = legacy(*unknown)
    w.refuse("with-keys", "A")
    w.refuse("without-keys")
    for i in range(5):
        assert w.lock("eth1").state is DeviceState.UNRECONSTRUCTABLE
        w.gone("ResourceClaim", f"old{i}", "default")
    assert w.lock("eth1").state is DeviceState.CLEAN
    assert w.place("locks", "A") == ["eth1"]
    assert w.place("joins", "A") == ["eth1"]
    w.refuse("other", "B")
    w.release("locks")
    w.release("joins")
    assert w.lock("eth1").state is DeviceState.CLEAN


def test_legacy_holders_of_one_key_map_are_a_lock() -> None:
    w = legacy(*[o.allocated(o.claim(f"old{i}", "A"), "eth1") for i in range(3)])
    assert w.locks() == {"eth1": "subnet=A"}
    assert w.place("joins", "A") == ["eth1"]


def test_pools_without_extractors_are_left_to_the_scheduler() -> None:
    w = World(
        o.node(),
        o.device_class(),
        o.device_slice([o.device("eth1", fence=False)], count=1),
        o.allocated(o.claim("holder", "A"), "eth1"),
    )
    for name, subnet in (("with", "B"), ("without", None)):
        decision = w.try_place(name, subnet)
        assert isinstance(decision, NotServed)
        assert decision.message == ""
    assert w.engine.lock_table() == ()


def test_strict_gating_needs_every_extractor() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice([o.SUBNET, o.PKEY]), o.device_slice())
    refused = w.refuse("partial", "A")
    assert "no value for sharing-affinity key pkey" in refused.message
    assert w.place("full", configs=[o.config(o.nic("A", ibPKey="0x8001"))]) == ["eth1"]
    assert w.locks() == {"eth1": "pkey=0x8001,subnet=A"}


def test_requests_of_one_claim_are_judged_independently() -> None:
    w = nics()
    got = w.place(
        "pod",
        requests=[o.request("mgmt"), o.request("data")],
        configs=[o.config(o.nic("A"), ["mgmt"]), o.config(o.nic("B"), ["data"])],
    )
    assert got == ["eth1", "eth2"]
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=B"}
    assert w.restarted().locks() == w.locks()
