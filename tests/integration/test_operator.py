"""The operator as it ships, on a real control plane: stock scheduler, stock controllers, real RBAC and
policies.

Nodes are made by hand, so pods are bound and never run. Everything up to the kubelet is the real thing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.operator import FINALIZER, MERGE, RECORD, SUBNET, Process, Site, eventually, running

pytestmark = pytest.mark.integration

FAST = ("--fence-settle", "0.2", "--grace", "2", "--cool-down", "2", "--exclusion", "1")


@pytest.fixture(scope="module")
def operator(kubeconfig: Path) -> Iterator[Process]:
    with running(kubeconfig, *FAST) as process:
        yield process


def bound(site: Site, *pods: str) -> None:
    eventually(f"{', '.join(pods)} to be bound", lambda: all(site.node_of(pod) for pod in pods))


def test_two_pods_of_one_subnet_share_and_another_goes_elsewhere(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    site.run("a1", "a")
    bound(site, "a1")
    site.run("a2", "a")
    site.run("b1", "b")
    bound(site, "a2", "b1")

    assert site.allocation("a1") == site.allocation("a2") == (node, "eth1")
    assert site.allocation("b1") == (node, "eth2")
    claims = [site.get_claim(name) for name in ("a1", "a2")]
    shares = {claim["status"]["allocation"]["devices"]["results"][0]["shareID"] for claim in claims}
    assert len(shares) == 2
    for claim in claims:
        assert FINALIZER in claim["metadata"]["finalizers"]
        assert RECORD in claim["metadata"]["annotations"]
        assert claim["status"]["allocation"]["allocationTimestamp"]
        assert claim["status"]["reservedFor"][0]["resource"] == "pods"


def test_the_lock_clears_with_the_last_holder_and_others_may_come(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1"])
    site.run("a1", "a")
    site.run("a2", "a")
    bound(site, "a1", "a2")
    site.run("c", "c")
    eventually("an Event that says why", lambda: site.events("c", "FailedAffinityAllocation"))
    assert not site.node_of("c")
    assert "locked" in site.events("c", "FailedAffinityAllocation")[0]["note"]

    site.delete_pod("a1")
    eventually("the first release", lambda: site.allocation("a1") is None)
    assert not site.node_of("c")
    site.delete_pod("a2")
    bound(site, "c")

    assert site.allocation("c") == (node, "eth1")


def test_a_full_device_and_a_foreign_lock_are_no_place(operator: Process, site: Site) -> None:
    """Capacity and lock work together: neither a matching lock that is full nor room under another lock
    will do."""
    node = site.node("n1")
    site.publish(node, ["eth1", "eth2"], slots=2)
    for name, subnet in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        site.run(name, subnet)
        bound(site, name)
    site.run("a3", "a")
    note = eventually("the reason", lambda: site.events("a3", "FailedAffinityAllocation"))[0]["note"]

    assert not site.node_of("a3")
    assert "capacity" in note or "slots" in note
    site.delete_pod("a1")
    bound(site, "a3")
    assert site.allocation("a3") == (node, "eth1")


def test_a_claim_without_keys_stays_pending_and_says_why(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    site.run("plain", None)
    events = eventually("the reason", lambda: site.events("plain", "FailedAffinityAllocation"))

    assert "produced no value for sharing-affinity key subnet" in events[0]["note"]
    assert events[0]["regarding"]["kind"] == "Pod"
    assert events[0]["regarding"]["uid"] == site.get_pod("plain")["metadata"]["uid"]
    assert events[0]["type"] == "Warning"


PARTITION = {
    "name": "partition",
    "expression": 'object.kind == "NICConfig" && has(object.partition) ? object.partition : ""',
}


def nic_config(**values: str) -> dict[str, str]:
    return {"apiVersion": "nic.sharingaffinity.dev/v1", "kind": "NICConfig", **values}


def run_with(site: Site, name: str, **values: str) -> None:
    site.claim(name, config=nic_config(**values))
    site.pod(name)


def test_every_declared_key_is_needed(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"), extractors=[SUBNET, PARTITION])
    run_with(site, "both", subnet="a", partition="p")
    bound(site, "both")
    run_with(site, "one", subnet="a")
    note = eventually("the reason", lambda: site.events("one", "FailedAffinityAllocation"))[0]["note"]

    assert not site.node_of("one")
    assert "partition" in note
    rows = eventually("the view", lambda: {k: v for k, v in site.table().items() if v.get("lock")})
    assert [row["lock"] for row in rows.values()] == [{"subnet": "a", "partition": "p"}]


def test_two_requests_of_one_claim_lock_a_device_each(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    spec = site.claim_spec(None)
    first = spec["devices"]["requests"][0]
    spec["devices"]["requests"] = [{**first, "name": "left"}, {**first, "name": "right"}]
    spec["devices"]["config"] = [
        {"requests": [name], "opaque": {"driver": site.driver, "parameters": nic_config(subnet=subnet)}}
        for name, subnet in (("left", "a"), ("right", "b"))
    ]
    site.add_claim("two", spec)
    site.pod("two")
    bound(site, "two")

    results = site.get_claim("two")["status"]["allocation"]["devices"]["results"]
    assert {result["request"]: result["device"] for result in results} == {"left": "eth1", "right": "eth2"}
    locks = eventually("the view", lambda: {k: v["lock"] for k, v in site.table().items() if v.get("lock")})
    eventually("both locks", lambda: len([v for v in site.table().values() if v.get("lock")]) == 2)
    locks = {name: row["lock"] for name, row in site.table().items()}
    assert locks == {f"{node}/eth1": {"subnet": "a"}, f"{node}/eth2": {"subnet": "b"}}


def test_two_pods_with_different_values_for_one_device(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"), ["eth1"])
    for name, subnet in (("a", "a"), ("b", "b")):
        site.claim(name, subnet)
    for name in ("a", "b"):
        site.pod(name)
    winner = eventually("one to be bound", lambda: [pod for pod in ("a", "b") if site.node_of(pod)])[0]
    loser = "b" if winner == "a" else "a"
    eventually("the other's reason", lambda: site.events(loser, "FailedAffinityAllocation"))
    assert not site.node_of(loser)

    site.delete_pod(winner)
    bound(site, loser)


def test_an_error_in_an_extractor_aborts_this_pod_and_nobody_else(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    site.claim("bad", config={"kind": "NICConfig", "subnet": 7})
    site.pod("bad")
    note = eventually("the reason", lambda: site.events("bad", "SharingAffinitySliceError"))[0]["note"]
    site.run("good", "a")
    bound(site, "good")

    assert not site.node_of("bad")
    assert "subnet" in note
    assert len(site.events("bad", "SharingAffinitySliceError")) == 1


def test_a_claim_that_contradicts_itself(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    spec = site.claim_spec("a")
    spec["devices"]["config"] += site.claim_spec("b")["devices"]["config"]
    site.add_claim("both", spec)
    site.pod("both")
    eventually("the reason", lambda: site.events("both", "SharingAffinityClaimError"))

    assert site.allocation("both") is None


def test_one_key_in_two_slices_makes_the_pool_invalid_until_it_is_renamed(
    operator: Process, site: Site
) -> None:
    node = site.node("n1")
    site.publish(node, more=[[SUBNET]])
    site.run("a", "a")
    eventually("the condition", lambda: site.condition(node).get("Joined") == ("False", "Invalid"))
    assert not site.node_of("a")
    site.publish(node)
    bound(site, "a")

    eventually("the condition", lambda: site.condition(node).get("Joined", ("", ""))[0] == "True")
    assert site.condition(node)["Accepted"][0] == "True"


def test_a_pool_without_its_fence_is_never_allocated_from(operator: Process, site: Site) -> None:
    """Stock kube-scheduler takes it: nobody else may."""
    node = site.node("n1")
    site.publish(node, fenced=False)
    eventually("the condition", lambda: site.condition(node).get("Joined") == ("False", "Unfenced"))
    site.run("a", "a")
    bound(site, "a")

    assert RECORD not in site.get_claim("a")["metadata"].get("annotations", {})


def test_a_fenced_pool_without_metadata_is_withheld(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"), extractors=None)
    site.run("a", "a")
    eventually("an Event", lambda: site.events("a"))

    assert site.allocation("a") is None


def test_permissive_pools_are_the_schedulers(operator: Process, site: Site) -> None:
    """Without extractors and fence any opaque config may share a device, and the operator leaves it alone."""
    node = site.node("n1")
    site.publish(node, ["eth1"], extractors=None, fenced=False)
    for name in ("a", "b"):
        site.run(name, name)
        bound(site, name)

    assert site.allocation("a") == site.allocation("b") == (node, "eth1")
    assert RECORD not in site.get_claim("a")["metadata"].get("annotations", {})
    assert site.table() == {}


def test_a_failed_prepare_does_not_clear_the_lock(operator: Process, site: Site) -> None:
    """To the operator a pod whose prepare fails is a bound pod that does not run: its claim holds on."""
    site.publish(site.node("n1"), ["eth1"])
    site.run("a", "a")
    bound(site, "a")
    status = {
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
        }
    }
    site.cluster.request("PATCH", site.path("pod", "a", "status"), status, content_type=MERGE)
    site.run("b", "b")
    eventually("the reason", lambda: site.events("b", "FailedAffinityAllocation"))

    assert site.allocation("a")
    assert not site.node_of("b")


def test_holders_that_agree_are_a_lock_after_extractors_are_added(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1"], extractors=None, fenced=False)
    for number in range(5):
        site.run(f"old{number}", "a")
    bound(site, *(f"old{number}" for number in range(5)))
    site.publish(node, ["eth1"])
    site.run("other", "b")
    site.run("sixth", "a")
    bound(site, "sixth")

    assert site.allocation("sixth") == (node, "eth1")
    assert not site.node_of("other")


def test_holders_that_disagree_block_their_device_until_drained(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1"], extractors=None, fenced=False)
    site.run("a", "a")
    site.run("b", "b")
    bound(site, "a", "b")
    site.publish(node, ["eth1"])
    site.run("late", "a")
    eventually("the reason", lambda: site.events("late", "FailedAffinityAllocation"))
    eventually("the state", lambda: site.table().get(f"{node}/eth1", {}).get("state") == "Unreconstructable")
    site.delete_pod("b")
    eventually("one left", lambda: site.allocation("b") is None)
    bound(site, "late")

    assert site.allocation("late") == (node, "eth1")


def test_extractors_that_change_under_holders_block_the_device(
    kubeconfig: Path, operator: Process, site: Site
) -> None:
    """By the record: the keys today are not the ones of the allocation; a restart changes nothing about
    that."""
    node = site.node("n1")
    site.publish(node, ["eth1"])
    run_with(site, "a", subnet="a", vlan="1")
    bound(site, "a")
    vlan = {"name": "subnet", "expression": 'has(object.vlan) ? "vlan-" + object.vlan : ""'}
    site.publish(node, ["eth1"], extractors=[vlan])
    eventually("the state", lambda: site.table().get(f"{node}/eth1", {}).get("state") == "Unreconstructable")
    run_with(site, "b", subnet="a", vlan="1")
    eventually("the reason", lambda: site.events("b", "FailedAffinityAllocation"))
    assert not site.node_of("b")

    site.delete_pod("a")
    bound(site, "b")


def test_expression_limits(operator: Process, site: Site) -> None:
    node = site.node("n1")
    nested = "object.list.all(a, object.list.all(b, object.list.all(c, a == b && b == c)))"
    costly = {"name": "subnet", "expression": f'{nested} ? "x" : "y"'}
    site.publish(node, extractors=[costly])
    eventually("the condition", lambda: site.condition(node).get("Accepted", ("", ""))[0] == "False")
    site.run("a", "a")
    eventually("an Event", lambda: site.events("a"))

    assert site.allocation("a") is None


def test_an_expression_that_is_no_cel_is_refused_by_lint_and_never_accepted(
    operator: Process, site: Site, tmp_path: Path
) -> None:
    node = site.node("n1")
    site.publish(node, extractors=[{"name": "subnet", "expression": "object.("}])
    eventually("the condition", lambda: site.condition(node).get("Accepted", ("", ""))[0] == "False")
    site.run("a", "a")
    eventually("an Event", lambda: site.events("a"))
    path = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
    items = [
        item for item in site.cluster.request("GET", path)["items"] if item["spec"]["driver"] == site.driver
    ]
    file = tmp_path / "slice.json"
    file.write_text(json.dumps(items[0]))
    lint = [sys.executable, "-m", "sharing_affinity", "lint", "-f", str(file)]

    assert site.allocation("a") is None
    assert subprocess.run(lint, capture_output=True, timeout=30).returncode == 1


def test_the_locked_device_is_preferred_and_the_order_is_upstreams_without_scoring(
    operator: Process, site: Site
) -> None:
    """eth2 is locked to b, eth1 is clean: scoring packs onto eth2."""
    node = site.node("n1")
    site.publish(node)
    site.run("a", "a")
    bound(site, "a")
    site.run("b", "b")
    bound(site, "b")
    site.delete_pod("a")
    eventually("eth1 to be clean", lambda: site.allocation("a") is None)
    site.run("b2", "b")
    bound(site, "b2")

    assert site.allocation("b2") == (node, "eth2")


# -- queue and release ----------------------------------------------------------------------------------


def test_an_allocation_nobody_came_to_use_is_freed(operator: Process, site: Site) -> None:
    """The pod goes before it was bound: what was allocated for it is given back, record and finalizer
    included."""
    node = site.node("n1", allocatable={"cpu": "1"})
    site.publish(node)
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "c0"}]}}
    site.claim("a", "a")
    # The scheduler never binds it: a gate would hide it from the operator, a volume of a driver that waits
    # does not.
    site.pod(
        "a",
        schedulerName="default-scheduler",
        containers=[container],
        nodeSelector={"kubernetes.io/hostname": node},
    )
    eventually("the allocation", lambda: site.allocation("a"))
    site.delete_pod("a")
    eventually("the release", lambda: site.allocation("a") is None)
    meta = eventually(
        "record and finalizer to go",
        lambda: (m := site.get_claim("a")["metadata"]) and RECORD not in m.get("annotations", {}) and m,
    )

    assert FINALIZER not in meta.get("finalizers", [])


def test_a_deallocated_claim_is_tidied_and_can_be_used_again(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    site.run("a", "a")
    bound(site, "a")
    site.delete_pod("a")
    eventually("the release", lambda: site.allocation("a") is None)
    eventually(
        "the record to go", lambda: RECORD not in site.get_claim("a")["metadata"].get("annotations", {}), 15
    )
    site.pod("again", "a")
    bound(site, "again")

    assert site.allocation("a") == (node, "eth1")


def test_a_pod_with_two_claims_gets_both_on_one_node(operator: Process, site: Site) -> None:
    for name in ("n1", "n2"):
        site.publish(site.node(name), ["eth1"], slots=1)
    site.claim("x", "a")
    site.claim("y", "a")
    site.pod("pair", "x", "y")
    eventually("the reason", lambda: site.events("pair", "FailedAffinityAllocation"))
    assert site.allocation("x") is None
    assert site.allocation("y") is None

    site.publish(site.node("n3"), ["eth1"], slots=2)
    bound(site, "pair")
    assert site.allocation("x") == site.allocation("y") == (site.node_of("pair"), "eth1")


def test_claims_of_templates(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    site.cluster.request(
        "POST",
        f"/apis/resource.k8s.io/v1/namespaces/{site.namespace}/resourceclaimtemplates",
        {"metadata": {"name": "t"}, "spec": {"spec": site.claim_spec("a")}},
    )
    entry = [{"name": "c0", "resourceClaimTemplateName": "t"}]
    site.pod("p", resourceClaims=entry)
    bound(site, "p")
    name = site.get_pod("p")["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    assert site.allocation(name)

    site.delete_pod("p")
    eventually(
        "the claim to go with its pod", lambda: not site.cluster.request("GET", site.path("claim"))["items"]
    )


def test_a_template_claim_of_another_pod_is_not_touched(operator: Process, site: Site) -> None:
    """A claim named like the pod's, owned by somebody else: neither the scheduler nor the operator may use
    it."""
    site.publish(site.node("n1"))
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "uid": "11111111-1111-1111-1111-111111111111",
        "controller": True,
    }
    body = {"metadata": {"name": "stolen", "ownerReferences": [owner]}, "spec": site.claim_spec("a")}
    site.cluster.request("POST", site.path("claim"), body)
    site.pod(
        "p",
        schedulingGates=[{"name": "example.com/wait"}],
        resourceClaims=[{"name": "c0", "resourceClaimTemplateName": "t"}],
    )
    status = {"status": {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "stolen"}]}}
    site.cluster.request("PATCH", site.path("pod", "p", "status"), status, content_type=MERGE)
    site.cluster.request(
        "PATCH", site.path("pod", "p"), {"spec": {"schedulingGates": None}}, content_type=MERGE
    )
    site.run("other", "a")
    bound(site, "other")

    claim = site.cluster.request("GET", site.path("claim"))["items"]
    stolen = [c for c in claim if c["metadata"]["name"] == "stolen"]
    assert not stolen or not (stolen[0].get("status") or {}).get("allocation")


def test_pods_of_another_scheduler_are_not_served(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    site.run("other", "a", schedulerName="somebody-else")
    site.run("ours", "a")
    bound(site, "ours")

    assert site.allocation("other") is None


def test_higher_priority_goes_first(kubeconfig: Path, operator: Process, site: Site) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        site.create_cluster(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"{name}-{site.tag}"}, "value": value, "preemptionPolicy": "Never"},
        )
    node = site.node("n1")
    site.publish(node, ["eth1"])
    site.run("holder", "x")
    bound(site, "holder")
    site.run("low", "a", priorityClassName=f"low-{site.tag}")
    site.run("high", "b", priorityClassName=f"high-{site.tag}")
    eventually("both to wait", lambda: site.events("low") and site.events("high"))
    site.delete_pod("holder")
    bound(site, "high")

    assert not site.node_of("low")


def test_a_pod_that_preempts_gets_its_devices_on_the_node_it_is_nominated_to(
    operator: Process, site: Site
) -> None:
    """Both nodes are full: the claim is allocated where preemption can make room, and the scheduler evicts
    and binds there. What it first failed for was the cpu, so it looks again when some pod ends, not when
    the claim is allocated (docs/limitations.md)."""
    for name, value in (("low", 1), ("high", 1000)):
        site.create_cluster(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"{name}-{site.tag}"}, "value": value},
        )
    nodes = [site.node(name, allocatable={"cpu": "2"}) for name in ("n1", "n2")]
    for node in nodes:
        site.publish(node, ["eth1", "eth2"])
    container = {"name": "main", "image": "none"}
    body = {"containers": [container], "nodeName": nodes[0], "terminationGracePeriodSeconds": 0}
    site.cluster.request("POST", site.path("pod"), {"metadata": {"name": "bystander"}, "spec": body})

    def run(name: str, subnet: str, priority: str, node: str = "") -> None:
        site.claim(name, subnet)
        site.pod(
            name,
            priorityClassName=f"{priority}-{site.tag}",
            containers=[{**container, "resources": {"requests": {"cpu": "2"}, "claims": [{"name": "c0"}]}}],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        )

    run("low-1", "a", "low", nodes[0])
    run("low-2", "b", "low", nodes[1])
    bound(site, "low-1", "low-2")
    run("high", "b", "high")
    eventually("the allocation", lambda: site.allocation("high"))
    assert not site.node_of("high")
    site.delete_pod("bystander")
    bound(site, "high")

    # Packing: the node of the same lock, and the other's pod was left alone.
    assert site.node_of("high") == nodes[1]
    assert site.node_of("low-1") == nodes[0]
    assert site.gone("low-2")
    assert site.allocation("high") is not None
    eventually("the victim's claim to be free", lambda: site.allocation("low-2") is None)
    assert operator.metric("late_wakeups_total") == 0


def test_a_pod_whose_claims_are_still_to_come_is_counted_as_waiting(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    site.pod("early")
    eventually("the metric", lambda: operator.metric("parked_pods", 'reason="WaitingForClaims"') == 1)
    site.claim("early")
    bound(site, "early")
    eventually("the metric", lambda: operator.metric("parked_pods", 'reason="WaitingForClaims"') == 0)


def test_a_pool_that_is_away_keeps_its_holders(operator: Process, site: Site) -> None:
    """Slices vanish when the kubelet restarts: held devices take nothing, and come back as they were."""
    node = site.node("n1")
    site.publish(node, ["eth1"])
    site.run("a", "a")
    bound(site, "a")
    site.withdraw(node)
    eventually("the state", lambda: site.table().get(f"{node}/eth1", {}).get("state") == "Unknown")
    site.run("b", "b")
    site.publish(node, ["eth1"])
    eventually("the state", lambda: site.table().get(f"{node}/eth1", {}).get("lock") == {"subnet": "a"})
    site.run("a2", "a")
    bound(site, "a2")

    assert not site.node_of("b")


def never_bound(site: Site, name: str, subnet: str) -> None:
    """A pod the operator serves and the stock scheduler can't bind anywhere."""
    site.claim(name, subnet)
    site.pod(name, affinity=site.beside("nobody"))


def test_an_allocation_on_a_node_that_is_gone_is_freed(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    never_bound(site, "a", "a")
    eventually("the allocation", lambda: site.allocation("a"))
    site.cluster.request("DELETE", f"/api/v1/nodes/{node}")
    eventually("the release", lambda: site.allocation("a") is None)


def test_a_pod_that_is_never_bound_makes_room_for_another_after_the_grace_time(
    operator: Process, site: Site
) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1"])
    never_bound(site, "a", "a")
    eventually("the allocation", lambda: site.allocation("a"))
    time.sleep(3)
    assert site.allocation("a"), "freed though nobody else wants the device"
    site.run("b", "b")
    bound(site, "b")

    assert site.allocation("b") == (node, "eth1")


def test_objects_as_big_as_the_api_allows(operator: Process, site: Site) -> None:
    """Reference case F-04: nothing is written to slices, to claims only what is ours."""
    node = site.node("n1")
    site.publish(node, [f"eth{number}" for number in range(64)])
    padding = "x" * 9_900
    spec = site.claim_spec("a")
    config = spec["devices"]["config"][0]["opaque"]["parameters"]
    spec["devices"]["config"] = [
        {"opaque": {"driver": site.driver, "parameters": {**config, "padding": padding, "number": number}}}
        for number in range(32)
    ]
    site.add_claim("big", spec)
    site.pod("big")
    bound(site, "big")

    claim = site.get_claim("big")
    assert set(claim["metadata"]["annotations"]) == {RECORD}
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert len(claim["status"]["allocation"]["devices"]["config"]) == 32
    for item in site.cluster.request("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]:
        if item["spec"]["driver"] == site.driver:
            assert "annotations" not in item["metadata"]
            assert "finalizers" not in item["metadata"]
    path = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
    for item in site.cluster.request("GET", path)["items"]:
        if item["spec"]["driver"] == site.driver:
            assert "annotations" not in item["metadata"]
            assert "finalizers" not in item["metadata"]
