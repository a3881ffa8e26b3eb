"""Restart, takeover, gates and blindness: the operator process is killed, cut off and started anew on
purpose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.faults import FaultProxy, Rule
from harness.operator import (
    ACCOUNT,
    MERGE,
    RECORD,
    SUBNET,
    SYSTEM,
    Site,
    eventually,
    running,
)

from e2e.cluster import Cluster
from e2e.errors import ApiError

pytestmark = [pytest.mark.integration, pytest.mark.faults]

FAST = (
    "--fence-settle",
    "0.2",
    "--grace",
    "2",
    "--cool-down",
    "2",
    "--exclusion",
    "1",
    "--audit-interval",
    "3",
)
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/sharing-affinity-operator"


@pytest.fixture
def proxy(control_plane: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(control_plane.kubeconfig) as running_proxy:
        yield running_proxy


def bound(site: Site, *pods: str) -> None:
    eventually(f"{', '.join(pods)} to be bound", lambda: all(site.node_of(pod) for pod in pods))


def locks(kubeconfig: Path, site: Site) -> dict[str, tuple[str, Any, list[str]]]:
    """The table as ``sharing-affinity locks`` derives it from the claims alone."""
    out = subprocess.run(
        [sys.executable, "-m", "sharing_affinity", "locks", "-o", "json", "--kubeconfig", str(kubeconfig)],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    return {
        f"{pool['pool']}/{device['device']}": (
            device["state"],
            device["lock"],
            sorted(holder["claim"] for holder in device["holders"]),
        )
        for pool in json.loads(out)["pools"]
        if pool["driver"] == site.driver
        for device in pool["devices"]
    }


def shown(site: Site) -> dict[str, tuple[str, Any, list[str]]]:
    """The same from the operator's own view."""
    return {
        name: (row["state"], row.get("lock"), sorted(holder["name"] for holder in row.get("holders", [])))
        for name, row in site.table().items()
    }


def test_a_restart_has_the_same_locks_before_its_first_decision(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    with running(kubeconfig, *FAST) as first:
        site.publish(node)
        for name, subnet in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            site.run(name, subnet)
        bound(site, "a1", "a2", "b1")
        before = eventually(
            "the view", lambda: (s := shown(site)) and sum(len(x[2]) for x in s.values()) == 3 and s
        )
        # The lease was free, so the list of the start is a leader's, and there is no second one.
        assert first.metric("feed_lists", 'kind="ResourceClaim"') == 1
        first.kill()
    site.run("late", "b")
    with running(kubeconfig, *FAST) as second:
        bound(site, "late")
        device = site.allocation("late")
        after = eventually("the view", lambda: (s := shown(site)) != before and s)

    assert before == {
        f"{node}/eth1": ("Locked", {"subnet": "a"}, ["a1", "a2"]),
        f"{node}/eth2": ("Locked", {"subnet": "b"}, ["b1"]),
    }
    assert device == (node, "eth2")
    assert after[f"{node}/eth1"] == before[f"{node}/eth1"]
    assert locks(kubeconfig, site) == after
    assert second.metric("audit_differences_total") == 0


def test_a_standby_takes_over_when_the_leader_is_killed(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    site.publish(node)
    with running(kubeconfig, *FAST) as first, running(kubeconfig, *FAST, wait=False) as second:
        eventually("the standby to be ready", lambda: second.get("/readyz")[0] == 200)
        site.run("a1", "a")
        bound(site, "a1")
        assert second.metric("leader") == 0
        assert not second.said('"event": "allocating"')
        first.kill()
        killed = time.monotonic()
        site.run("a2", "a")
        site.run("b1", "b")
        bound(site, "a2", "b1")
        took = time.monotonic() - killed
        eventually("the view", lambda: shown(site) == locks(kubeconfig, site))

    assert site.allocation("a2") == site.allocation("a1") == (node, "eth1")
    assert site.allocation("b1") == (node, "eth2")
    assert took < 2 + 5, f"takeover took {took:.1f} s"


def test_a_graceful_stop_hands_over_at_once(kubeconfig: Path, control_plane: Cluster, site: Site) -> None:
    site.publish(site.node("n1"))
    patient = (*FAST, "--lease-duration=60", "--renew-deadline=40")
    with running(kubeconfig, *patient) as first, running(kubeconfig, *patient, wait=False) as second:
        eventually("the standby to be ready", lambda: second.get("/readyz")[0] == 200)
        assert first.stop() == 0
        stopped = time.monotonic()
        eventually("the standby to lead", second.allocating)
        took = time.monotonic() - stopped
        site.run("a", "a")
        bound(site, "a")

    assert took < 30, f"a released lease was taken after {took:.1f} s"
    assert control_plane.request("GET", LEASE)["spec"].get("holderIdentity", "") == ""


@pytest.mark.parametrize(
    ("rule", "lands"),
    [
        (Rule("PATCH", "/resourceclaims/", hang=60, times=1), False),
        (Rule("PATCH", "/resourceclaims/", delay_answer=60, times=1), False),
        (Rule("PUT", "/resourceclaims/.*/status", held=threading.Event(), times=1), False),
        (Rule("PUT", "/resourceclaims/.*/status", delay_answer=60, times=1), True),
    ],
    ids=["before-metadata", "after-metadata", "status-arrives-late", "after-status"],
)
def test_a_leader_killed_in_the_middle_of_a_write(
    kubeconfig: Path, proxy: FaultProxy, site: Site, tmp_path: Path, rule: Rule, lands: bool
) -> None:
    """Whatever became of the write, the successor finds out and no device is given twice."""
    node = site.node("n1")
    site.publish(node, ["eth1"], slots=1)
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    with running(through, *FAST) as first:
        proxy.add(rule)
        site.run("a", "a")
        eventually("the write", lambda: rule.hits == 1)
        time.sleep(0.2)
        first.kill()
    site.run("b", "b")
    with running(kubeconfig, *FAST):
        bound(site, "a")
        eventually("the other's reason", lambda: site.events("b", "FailedAffinityAllocation"))
        if rule.held is not None:
            rule.held.set()
        time.sleep(0.5)

        assert site.allocation("a") == (node, "eth1")
        assert site.allocation("b") is None
        if rule.held is not None:
            late = [
                what for _, method, path, what in proxy.log if method == "PUT" and "/resourceclaims/" in path
            ]
            assert late == ["409"], "the dead leader's write landed"
        site.delete_pod("a")
        bound(site, "b")


def test_a_leader_that_is_cut_off_stops_and_another_goes_on(
    kubeconfig: Path, proxy: FaultProxy, site: Site, tmp_path: Path
) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1"])
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    with running(through, *FAST) as first, running(kubeconfig, *FAST, wait=False) as second:
        site.run("a", "a")
        bound(site, "a")
        eventually("the standby to be ready", lambda: second.get("/readyz")[0] == 200)
        proxy.add(Rule(hang=60))
        proxy.drop_all()
        eventually("the first to stop leading", lambda: first.metric("leader") == 0)
        site.run("a2", "a")
        bound(site, "a2")
        assert second.metric("leader") == 1
        proxy.clear()
        proxy.drop_all()
        eventually("the first to follow", lambda: first.get("/readyz")[0] == 200)
        assert first.metric("leader") == 0
        assert first.process.poll() is None


def test_nothing_is_allocated_while_slices_are_unseen(
    kubeconfig: Path, proxy: FaultProxy, site: Site, tmp_path: Path
) -> None:
    """Reference case F-01: only the feed of slices goes blind."""
    site.publish(site.node("n1"))
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    with running(through, *FAST, "--watch-silence", "2", "--stale-after", "3") as operator:
        eventually("readiness", lambda: operator.get("/readyz")[0] == 200)
        proxy.add(Rule(path="/resourceslices", watch=True, hang=60))
        proxy.add(Rule(path="/resourceslices", hang=60))
        proxy.drop_all()
        status, text = eventually("unreadiness", lambda: (r := operator.get("/readyz")) and r[0] == 503 and r)
        site.run("a", "a")
        time.sleep(2)

        assert status == 503
        assert "ResourceSlice" in text
        assert site.allocation("a") is None
        assert operator.get("/healthz")[0] == 200
        proxy.clear()
        proxy.drop_all()
        bound(site, "a")


def test_a_claim_feed_that_falls_silent_recovers(
    kubeconfig: Path, proxy: FaultProxy, site: Site, tmp_path: Path
) -> None:
    site.publish(site.node("n1"))
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    proxy.add(Rule(path="/resourceclaims", watch=True, silent=0, times=1))
    with running(through, *FAST, "--watch-silence", "2", "--stale-after", "5"):
        site.run("a", "a")
        bound(site, "a")


def test_with_the_gate_off_affinity_pools_are_withheld_and_others_work(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    with running(kubeconfig, *FAST, "--feature-gates", "DRASharingAffinity=false"):
        site.publish(node)
        eventually("the condition", lambda: site.condition(node).get("Joined", ("", ""))[0] == "False")
        site.run("fenced", "a", nodeSelector={"kubernetes.io/hostname": node})
        other = site.node("n2")
        site.publish(other, ["eth9"], extractors=None, fenced=False)
        site.run("plain", "a", nodeSelector={"kubernetes.io/hostname": other})
        bound(site, "plain")
        eventually("an Event", lambda: site.events("fenced"))

        assert site.allocation("fenced") is None
        assert site.allocation("plain") == (other, "eth9")


def test_turning_the_gate_on_judges_what_is_in_use_first(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    with running(kubeconfig, *FAST):
        site.publish(node)
        site.run("a", "a")
        bound(site, "a")
    with running(kubeconfig, *FAST, "--feature-gates", "DRASharingAffinity=false"):
        site.run("a2", "a")
        eventually("an Event", lambda: site.events("a2"))
        assert site.allocation("a") == (node, "eth1")
        assert site.allocation("a2") is None
    with running(kubeconfig, *FAST):
        site.run("b", "b")
        bound(site, "a2", "b")

    assert site.allocation("a2") == (node, "eth1")
    assert site.allocation("b") == (node, "eth2")


def test_without_scoring_the_order_is_upstreams(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    with running(kubeconfig, *FAST, "--feature-gates", "DRASharingAffinityScoring=false"):
        site.publish(node)
        site.run("a", "a")
        bound(site, "a")
        site.run("b", "b")
        bound(site, "b")
        site.delete_pod("a")
        eventually("eth1 to be clean", lambda: site.allocation("a") is None)
        site.run("b2", "b")
        bound(site, "b2")

    assert site.allocation("b2") == (node, "eth1")


def test_extractors_that_changed_judge_alike_after_a_restart(kubeconfig: Path, site: Site) -> None:
    node = site.node("n1")
    vlan = {"name": "subnet", "expression": 'has(object.vlan) ? "vlan-" + object.vlan : ""'}
    config = {"kind": "NICConfig", "subnet": "a", "vlan": "1"}
    with running(kubeconfig, *FAST):
        site.publish(node, ["eth1"])
        site.claim("a", config=config)
        site.pod("a")
        bound(site, "a")
        site.publish(node, ["eth1"], extractors=[vlan])
        eventually(
            "the state", lambda: site.table().get(f"{node}/eth1", {}).get("state") == "Unreconstructable"
        )
    with running(kubeconfig, *FAST):
        site.claim("b", config=config)
        site.pod("b")
        eventually("the reason", lambda: site.events("b", "FailedAffinityAllocation"))

        assert locks(kubeconfig, site)[f"{node}/eth1"][0] == "Unreconstructable"
        assert not site.node_of("b")
        site.delete_pod("a")
        bound(site, "b")


def test_two_holders_of_different_values_found_at_a_restart(kubeconfig: Path, site: Site) -> None:
    """Somebody allocated behind the operator's back while it was down."""
    node = site.node("n1")
    site.publish(node, ["eth1"], extractors=None, fenced=False)
    site.run("a", "a")
    site.run("b", "b")
    bound(site, "a", "b")
    site.publish(node, ["eth1"], extractors=[SUBNET])
    with running(kubeconfig, *FAST):
        eventually(
            "the state", lambda: site.table().get(f"{node}/eth1", {}).get("state") == "Unreconstructable"
        )
        site.run("late", "a")
        eventually("the reason", lambda: site.events("late", "FailedAffinityAllocation"))
        assert not site.node_of("late")
        site.delete_pod("a")
        site.delete_pod("b")
        bound(site, "late")


def test_a_record_left_on_an_unallocated_claim_is_taken_off_before_the_first_decision(
    kubeconfig: Path, control_plane: Cluster, site: Site
) -> None:
    """What a predecessor killed between its two writes leaves: a record and a finalizer, but no
    allocation."""
    node = site.node("n1")
    site.publish(node)
    site.claim("orphan", "a")
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    policy = f"{bindings}/sharing-affinity-record-claims"
    binding = control_plane.request("GET", policy)
    control_plane.request("DELETE", policy)
    change = {
        "metadata": {
            "annotations": {RECORD: json.dumps({"attempt": "x", "allocationTimestamp": "", "results": []})},
            "finalizers": ["resource.kubernetes.io/delete-protection"],
        }
    }
    try:
        eventually(
            "the policy to be off", lambda: accepted(control_plane, site.path("claim", "orphan"), change)
        )
    finally:
        binding["metadata"] = {key: binding["metadata"][key] for key in ("name", "labels")}
        control_plane.request("POST", bindings, binding)
    with running(kubeconfig, *FAST) as operator:
        meta = site.get_claim("orphan")["metadata"]

        assert RECORD not in meta.get("annotations", {})
        assert meta.get("finalizers", []) == []
        # At least this one; others' claims on this control plane may carry records too.
        assert re.search(r'"refuted": [1-9]', operator.log)


def accepted(cluster: Cluster, path: str, change: dict[str, Any]) -> bool:
    try:
        cluster.request("PATCH", path, change, content_type=MERGE)
    except ApiError:
        return False
    return True


def test_a_hostile_extractor_holds_up_nobody_else(kubeconfig: Path, site: Site) -> None:
    """As costly as admission lets through, over many configs: its pods abort at the cap for one request,
    with an Event; other pools allocate meanwhile, probes answer, and the lease is kept."""
    node, other = site.node("n1"), site.node("n2")
    inner = ", ".join(map(str, range(1, 13)))
    expression = f'object.list.all(a, [{inner}].all(x, x > 0)) ? object.name : ""'
    site.publish(node, ["eth1"], extractors=[{"name": "subnet", "expression": expression}])
    site.publish(other, ["eth1"])
    with running(kubeconfig, *FAST) as operator:
        lease = site.cluster.request("GET", LEASE)["spec"]["leaseTransitions"]
        eventually("the condition", lambda: site.condition(node).get("Joined", ("", ""))[0] == "True")
        for number in range(2):
            spec = site.claim_spec(None)
            spec["devices"]["config"] = [
                {
                    "opaque": {
                        "driver": site.driver,
                        "parameters": {"name": "a", "pod": number, "config": index, "list": [1] * 5000},
                    }
                }
                for index in range(32)
            ]
            site.add_claim(f"hostile{number}", spec)
            site.pod(f"hostile{number}", nodeSelector={"kubernetes.io/hostname": node})
        eventually("evaluations", lambda: operator.metric("extractor_evaluations_total") > 1)
        started = time.monotonic()
        site.run("good", "a", nodeSelector={"kubernetes.io/hostname": other})
        slowest = 0.0
        while not site.node_of("good"):
            asked = time.monotonic()
            assert operator.get("/healthz")[0] == 200
            slowest = max(slowest, time.monotonic() - asked)
            assert time.monotonic() - started < 60, "the other pool waited for the hostile one"
        took = time.monotonic() - started
        done = operator.metric("extractor_evaluations_total")
        print(f"good pod after {took:.2f} s and {done:.0f} evaluations, slowest probe {slowest:.3f} s")
        assert done < 64, "nothing was hostile any more"
        note = eventually("the abort", lambda: site.events("hostile0", "SharingAffinitySliceError"))[0][
            "note"
        ]

        assert "cost" in note
        assert site.allocation("hostile0") is None
        assert site.cluster.request("GET", LEASE)["spec"]["leaseTransitions"] == lease
        assert operator.metric("leader") == 1
        assert slowest < 3.0


def test_permissions_that_cannot_be_asked_for_are_a_lack_of_access(
    kubeconfig: Path, proxy: FaultProxy, tmp_path: Path
) -> None:
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    command = [sys.executable, "-m", "sharing_affinity", "run", "--kubeconfig", str(through), "--http", ""]
    proxy.add(Rule("POST", "/selfsubjectaccessreviews", answer=(403, "Forbidden")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})

    assert done.returncode == 3
    assert "403" in done.stderr


def test_missing_permissions_are_named_before_anything_starts(control_plane: Cluster, namespace: str) -> None:
    control_plane.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}}
    )
    poor = control_plane.service_account_kubeconfig(namespace, ACCOUNT)
    done = subprocess.run(
        [sys.executable, "-m", "sharing_affinity", "run", "--kubeconfig", str(poor), "--namespace", namespace,
         "--http", ""],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == 3
    assert "update resourceclaims/binding" in done.stderr
    assert "feature gates cannot be checked" in done.stderr


def test_a_refused_write_leaves_no_lock(
    kubeconfig: Path, proxy: FaultProxy, site: Site, tmp_path: Path
) -> None:
    """The KEP's ghost lock: assumed, never written. The next decision sees the device as it is."""
    node = site.node("n1")
    site.publish(node, ["eth1"])
    site.claim("a", "a")
    uid = site.get_claim("a")["metadata"]["uid"]
    refusal = proxy.add(
        Rule("PUT", "/status", where=lambda body: body["metadata"]["uid"] == uid, answer=(422, "Invalid"))
    )
    through = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
    with running(through, *FAST):
        site.pod("a")
        eventually("the refusal", lambda: refusal.hits)
        site.run("b", "b")
        bound(site, "b")

        assert site.allocation("b") == (node, "eth1")
        assert site.allocation("a") is None
        assert eventually("an Event", lambda: site.events("a", "AllocationRejected"))


def test_only_the_last_of_twenty_nodes_fits(kubeconfig: Path, site: Site) -> None:
    """Nineteen nodes reject the pod for a reason the operator can't see, and each time the scheduler takes
    the allocation back; the search converges on the twentieth."""
    names = [site.node(f"n{number:02}") for number in range(20)]
    for name in names:
        site.publish(name, ["eth1"])
    anchor = {"containers": [{"name": "main", "image": "none"}], "nodeName": names[-1]}
    body = {"metadata": {"name": "anchor", "labels": {"beside": site.tag}}, "spec": anchor}
    site.cluster.request("POST", site.path("pod"), body)
    site.claim("seeker", "a")
    site.pod("seeker", affinity=site.beside(site.tag))
    with running(kubeconfig, "--fence-settle", "0", "--cool-down", "0.1", "--exclusion", "1"):
        bound(site, "seeker")

    assert site.node_of("seeker") == names[-1]


def test_claims_are_written_no_faster_than_the_limit(kubeconfig: Path, site: Site) -> None:
    """Two requests for each allocation, ten a second: eight allocations take more than a second."""
    site.publish(site.node("n1"))
    with running(kubeconfig, *FAST, "--kube-api-qps", "10", "--kube-api-burst", "2") as operator:
        for number in range(8):
            site.claim(f"p{number}")
        started = time.monotonic()
        for number in range(8):
            site.pod(f"p{number}")
        bound(site, *(f"p{number}" for number in range(8)))
        took = time.monotonic() - started
        assert operator.metric("claim_writes_total", 'outcome="written"') == 8

    assert took > (2 * 8 - 2) / 10 - 0.1


def test_a_new_leader_takes_away_what_is_not_true_any_more(kubeconfig: Path, site: Site) -> None:
    site.publish(site.node("n1"), ["eth1"])
    with running(kubeconfig, *FAST):
        site.run("holder", "a")
        bound(site, "holder")
        site.run("waits", "b")
        site.run("waits-on", "c")
        eventually("conditions", lambda: site.condition_of("waits") and site.condition_of("waits-on"))
    site.delete_pod("holder")
    with running(kubeconfig, *FAST):
        bound(site, "waits")
        eventually("the condition to go", lambda: site.condition_of("waits") is None)
        assert site.condition_of("waits-on")
    # Told to write none, it removes those that are there.
    with running(kubeconfig, *FAST, "--pod-conditions=false"):
        eventually("the condition to go", lambda: site.condition_of("waits-on") is None)


def test_sigint_is_a_graceful_stop_too(kubeconfig: Path) -> None:
    with running(kubeconfig, *FAST) as operator:
        operator.process.send_signal(signal.SIGINT)
        assert operator.process.wait(60) == 0
        assert operator.said("lease released")


def test_audits_find_nothing(kubeconfig: Path, site: Site) -> None:
    site.publish(site.node("n1"))
    with running(kubeconfig, *FAST, "--audit-interval", "1", "--strict-audit") as operator:
        for number in range(6):
            site.run(f"p{number}", "ab"[number % 2])
        bound(site, *(f"p{number}" for number in range(6)))
        for number in range(3):
            site.delete_pod(f"p{number}")
        eventually("an audit", lambda: operator.metric("audits_total") >= 1)
        assert operator.metric("audit_differences_total") == 0
        assert operator.metric("late_wakeups_total") == 0
