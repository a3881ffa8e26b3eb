"""Own allocations that nobody uses are freed (H8), and what must not be."""

from __future__ import annotations

from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, nics

from sharing_affinity.api import Allocation, Claim

JSON = dict[str, Any]


def reasons(w: World) -> list[str]:
    return [release.reason for release in w.engine.releases(w.now)]


def placed(**options: Any) -> World:
    w = nics(**options)
    w.place("pod", "A")
    return w


def change(w: World, kind: str, name: str, **edits: JSON) -> None:
    raw = w.objects[(kind, "default" if kind in ("Pod", "ResourceClaim") else "", name)]
    w.show({**raw, **{k: {**raw.get(k, {}), **v} for k, v in edits.items()}})


def test_nothing_to_free_while_the_pod_waits() -> None:
    assert reasons(placed()) == []


def test_pod_is_gone() -> None:
    w = placed()
    w.gone("Pod", "pod", "default")
    assert reasons(w) == ["no live pod references the claim"]


@pytest.mark.parametrize(
    "edit", [{"status": {"phase": "Failed"}}, {"metadata": {"deletionTimestamp": o.EPOCH}}]
)
def test_pod_is_over(edit: JSON) -> None:
    w = placed()
    change(w, "Pod", "pod", **edit)
    assert reasons(w) == ["no live pod references the claim"]


def test_reserved_claims_are_the_controllers() -> None:
    w = placed()
    w.gone("Pod", "pod", "default")
    change(
        w, "ResourceClaim", "pod", status={"reservedFor": [{"resource": "pods", "name": "pod", "uid": "u"}]}
    )
    assert reasons(w) == []


def test_allocations_of_others_are_not_touched() -> None:
    w = nics(o.allocated(o.claim("foreign", "A"), "eth1"))
    assert reasons(w) == []


def test_record_of_an_older_allocation_claims_nothing() -> None:
    """Another allocator took the claim after ours was cleared; our record is still there."""
    w = placed()
    w.gone("Pod", "pod", "default")
    allocation = w.objects[("ResourceClaim", "default", "pod")]["status"]["allocation"]
    later = {**allocation, "allocationTimestamp": "2026-02-01T00:00:00Z"}
    change(w, "ResourceClaim", "pod", status={"allocation": later})
    assert reasons(w) == []


def test_a_record_as_long_as_annotations_may_be_is_a_record() -> None:
    """Thirty-two devices with eight keys of 850 characters each: the API server takes that."""
    keys = [{"name": f"key{number}", "expression": "object.subnetID"} for number in range(8)]
    devices = [o.device(f"eth{number}") for number in range(32)]
    w = World(o.node(), o.device_class(), o.metadata_slice(keys), o.device_slice(devices))
    w.place("pod", "x" * 850, requests=[o.request(count=32)])
    [record] = w.objects[("ResourceClaim", "default", "pod")]["metadata"]["annotations"].values()
    assert 200 * 1024 < len(record) < 256 * 1024
    w.gone("Pod", "pod", "default")
    assert reasons(w) == ["no live pod references the claim"]


def test_node_is_gone_or_drained() -> None:
    w = placed()
    w.show(o.node(taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]))
    assert reasons(w) == ["node node-a is tainted NoExecute"]
    w.gone("Node", "node-a")
    assert reasons(w) == ["node node-a is gone"]


def test_one_pod_that_tolerates_the_nodes_taint_keeps_a_shared_claim() -> None:
    taint = {"key": "maintenance", "effect": "NoExecute"}
    w = World(o.node(taints=[taint]), o.device_class(), o.metadata_slice(), o.device_slice())
    w.show(o.claim("shared", "A"))
    w.show(o.pod("brave", ["shared"], tolerations=[{"key": "maintenance", "operator": "Exists"}]))
    w.write(w.assume_for("brave"))
    w.show(o.pod("other", ["shared"]))
    assert reasons(w) == []
    w.gone("Pod", "brave", "default")
    assert reasons(w) == ["node node-a is tainted NoExecute"]


def test_bound_pods_keep_theirs() -> None:
    w = placed()
    change(w, "Pod", "pod", spec={"nodeName": "node-a"})
    w.gone("Node", "node-a")
    assert reasons(w) == []


def test_device_is_gone_or_drained() -> None:
    w = placed()
    broken = o.device("eth1", taints=[{"key": "broken", "effect": "NoExecute"}])
    w.show(o.device_slice([broken, o.device("eth2")]))
    assert reasons(w) == ["device node-a/eth1 is tainted NoExecute"]
    w.show(o.device_slice([o.device("eth2")]))
    assert reasons(w) == ["device node-a/eth1 is gone"]


def test_a_tolerated_taint_of_a_device_frees_nothing() -> None:
    """The request was allowed to have the device in spite of it."""
    broken = o.device("eth1", taints=[{"key": "broken", "effect": "NoExecute"}])
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([broken]))
    tolerant = o.request(tolerations=[{"key": "broken", "operator": "Exists", "effect": "NoExecute"}])
    assert w.place("brave", "A", requests=[tolerant]) == ["eth1"]
    assert reasons(w) == []
    burning = o.device("eth1", taints=[{"key": "burning", "effect": "NoExecute"}])
    w.show(o.device_slice([burning]))
    assert reasons(w) == ["device node-a/eth1 is tainted NoExecute"]


def test_pool_under_way_frees_nothing() -> None:
    w = placed()
    w.gone("ResourceSlice", "node-a-dev")
    assert reasons(w) == []


def test_waiting_too_long_only_while_others_want_the_device() -> None:
    w = placed(grace=120.0)
    w.now += 121.0
    assert reasons(w) == []
    w.show(o.claim("other", "B"), o.pod("other"))
    assert reasons(w) == ["its pod stayed unscheduled while another pod waits for the device"]
    w.now -= 2.0
    assert reasons(w) == []


def test_what_the_operator_itself_has_freed_is_not_blamed_on_the_scheduler() -> None:
    w = placed(grace=120.0)
    w.now += 121.0
    w.show(o.claim("other", "B"), o.pod("other"))
    (release,) = w.engine.releases(w.now)
    freed = {k: v for k, v in w.objects["ResourceClaim", "default", release.name].items() if k != "status"}
    w.show(freed)
    message = w.decide("pod").message
    assert message.startswith(
        "0/1 nodes are available: 1 node(s) where the claim's allocation was taken back."
    )


def test_what_another_pod_wants_may_have_to_be_looked_up_first() -> None:
    """Nothing has been decided about it: one of its claims is still to come. After a restart that is true of
    every pod."""
    w = placed(grace=120.0)
    w.now += 121.0
    request = o.request(selectors=[o.cel("device.driver != 'x'")])
    w.show(o.claim("other", "B", requests=[request]), o.pod("other", ["other", "to-come"]))
    for world in (w, w.restarted()):
        assert reasons(world) == []
        world.extract()
        assert reasons(world) == ["its pod stayed unscheduled while another pod waits for the device"]


def test_the_rest_of_the_pods_claims_cannot_follow() -> None:
    """One of two writes was lost, and meanwhile the node has no room for the second."""
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", "1")]),
        o.claim("one", "A"),
        o.claim("two", "A"),
    )
    w.show(o.pod("pod", ["one"]))
    w.write(w.assume_for("pod"))
    w.show(o.pod("pod", ["one", "two"]))
    assert reasons(w) == ["the pod's other claims cannot be allocated on that node"]


def test_a_shared_claim_stays_for_the_pod_that_can_use_it() -> None:
    """Another pod that shares it lacks a claim that cannot follow; the first is about to be bound."""
    w = World(
        o.node(),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", "1")]),
        o.claim("shared", "A"),
        o.claim("more", "A"),
    )
    w.show(o.pod("first", ["shared"]))
    w.write(w.assume_for("first"))
    w.show(o.pod("second", ["shared", "more"]))
    assert reasons(w) == []
    w.gone("Pod", "first", "default")
    assert reasons(w) == ["the pod's other claims cannot be allocated on that node"]


def test_misplaced_pods_are_reported() -> None:
    w = placed()
    w.show(o.node("node-b"))
    change(w, "Pod", "pod", spec={"nodeName": "node-b"})
    assert [(n.reason, n.name) for n in w.engine.misplaced()] == [("Misplaced", "pod")]


def test_audit_names_what_differs() -> None:
    w = placed()
    claims = [raw for (kind, _, _), raw in w.objects.items() if kind == "ResourceClaim"]
    assert w.engine.audit(claims) == ()
    assert len(w.engine.audit([])) == 1
    foreign = o.allocated(o.claim("unseen", "A"), "eth2")
    assert len(w.engine.audit([*claims, foreign])) == 1
    w.engine.rebuild([foreign], w.now)
    assert w.engine.audit([foreign]) == ()
    assert w.locks() == {"eth2": "subnet=A"}


def test_audit_leaves_assumptions_alone_and_rebuild_keeps_them() -> None:
    w = nics()
    w.assume("pod", "A")
    claims = [raw for (kind, _, _), raw in w.objects.items() if kind == "ResourceClaim"]
    assert w.engine.audit(claims) == ()
    w.engine.rebuild(claims, w.now)
    assert w.locks() == {"eth1": "subnet=A"}
    assert len(w.engine.assumed()) == 1


def test_a_look_at_many_that_wait_does_not_grow_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is away: pods are allocated, and none is bound."""
    pods = 100
    w = World(
        o.node(allocatable={"pods": str(pods)}),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice([o.device("eth1", slots=str(pods))]),
        grace=120.0,
    )
    for number in range(pods):
        w.place(f"pod-{number}", "A")
    w.now += 121.0
    world, looks = w.engine._world, 0
    look = world.allocation_of

    def counted(claim: Claim) -> Allocation | None:
        nonlocal looks
        looks += 1
        return look(claim)

    monkeypatch.setattr(world, "allocation_of", counted)
    assert reasons(w) == []
    assert looks <= 4 * pods
