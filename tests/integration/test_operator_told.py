"""What the operator tells people: conditions of pods, Events on pods and claims, and the log that goes with
them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.operator import MERGE, Process, Site, eventually, running

from sharing_affinity.api.names import DECISION_ANNOTATION
from sharing_affinity.api.reasons import Reason
from sharing_affinity.runtime.conditions import FIELD_MANAGER

pytestmark = pytest.mark.integration

FAST = ("--fence-settle", "0.2", "--cool-down", "2", "--exclusion", "1")


@pytest.fixture(scope="module")
def operator(kubeconfig: Path) -> Iterator[Process]:
    with running(kubeconfig, *FAST) as process:
        yield process


def bound(site: Site, *pods: str) -> None:
    eventually(f"{', '.join(pods)} to be bound", lambda: all(map(site.node_of, pods)))


def test_a_pod_that_waits_says_so_in_a_condition_until_it_is_served(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"), ["eth1"])
    site.run("holder", "a")
    bound(site, "holder")
    site.run("waits", "b")
    found = eventually("the condition", lambda: site.condition_of("waits"))
    assert found["status"] == "False"
    assert found["reason"] == Reason.NO_NODE
    assert "locked to incompatible affinity values (claim has subnet=b)" in found["message"]
    assert found["message"].endswith("It waits until a device is free or locked to the same values.")
    assert site.condition_of("waits", "PodScheduled")

    # Another reason, the same condition since the same time.
    since = found["lastTransitionTime"]
    site.cluster.request(
        "PATCH",
        f"/api/v1/nodes/{site.node_of('holder')}",
        {"spec": {"unschedulable": True}},
        content_type=MERGE,
    )
    found = eventually(
        "the other reason",
        lambda: (c := site.condition_of("waits")) and "locked" not in c["message"] and c,
    )
    assert found["lastTransitionTime"] == since
    site.cluster.request(
        "PATCH",
        f"/api/v1/nodes/{site.node_of('holder')}",
        {"spec": {"unschedulable": False}},
        content_type=MERGE,
    )

    site.delete_pod("holder")
    bound(site, "waits")
    eventually("the condition to go", lambda: site.condition_of("waits") is None)
    assert site.condition_of("waits", "PodScheduled")["status"] == "True"
    managers = {entry["manager"] for entry in site.get_pod("waits")["metadata"]["managedFields"]}
    assert FIELD_MANAGER not in managers
    assert site.condition_of("waits") is None, "it came back"


def test_a_pod_that_nothing_is_wrong_with_never_has_the_condition(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    site.run("a", "a")
    bound(site, "a")
    entries = site.get_pod("a")["metadata"]["managedFields"]

    assert FIELD_MANAGER not in {entry["manager"] for entry in entries}


def test_an_event_leads_to_the_decision_in_the_log(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"), ["eth1"])
    site.run("a", "a")
    bound(site, "a")
    site.run("b", "b")
    event = eventually("the Event", lambda: site.events("b", Reason.NO_NODE))[0]
    lines = [json.loads(line) for line in operator.lines if '"decision"' in line]
    decision = event["metadata"]["annotations"][DECISION_ANNOTATION]
    told = [line for line in lines if line["decision"] == decision]
    allocated = [line for line in lines if line["event"] == "allocated"]

    assert [line["event"] for line in told] == ["not allocated"]
    assert told[0]["pod"] == f"{site.namespace}/b"
    assert told[0]["reason"] == Reason.NO_NODE
    assert told[0]["message"] == event["note"]
    mine = [line for line in allocated if line["pod"] == f"{site.namespace}/a"]
    assert len(mine) == 1
    assert mine[0]["devices"] == [f"{site.driver}/{mine[0]['node']}/eth1"]


def test_a_claim_that_has_to_change_gets_the_event_too(operator: Process, site: Site) -> None:
    site.publish(site.node("n1"))
    spec = site.claim_spec("a")
    spec["devices"]["config"] += site.claim_spec("b")["devices"]["config"]
    site.add_claim("torn", spec)
    site.pod("torn")
    events = eventually(
        "both Events",
        lambda: len(found := site.events("torn", Reason.CLAIM_ERROR)) == 2 and found,
    )

    assert {event["regarding"]["kind"] for event in events} == {"Pod", "ResourceClaim"}
    assert len({event["metadata"]["annotations"][DECISION_ANNOTATION] for event in events}) == 1
    assert all("make it anew with one value for each key" in event["note"] for event in events)


def test_an_extended_resource_that_only_fenced_devices_have(operator: Process, site: Site) -> None:
    """kube-scheduler makes such claims itself, and cannot allocate them: one Event says what to do."""
    node = site.node("n1")
    site.publish(node)
    resource = f"{site.tag}.example.com/nic"
    site.cluster.request(
        "PATCH",
        f"/apis/resource.k8s.io/v1/deviceclasses/{site.device_class}",
        {"spec": {"extendedResourceName": resource}},
        content_type=MERGE,
    )
    amounts = {"requests": {resource: "1"}, "limits": {resource: "1"}}
    body = {
        "metadata": {"name": "extended"},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": amounts}]},
    }
    site.cluster.request("POST", site.path("pod"), body)
    events = eventually("the Event", lambda: site.events("extended", Reason.UNSUPPORTED))
    assert len(events) == 1
    assert events[0]["note"].endswith(f"use a ResourceClaim of DeviceClass {site.device_class} instead")
    found = eventually("the condition", lambda: site.condition_of("extended"))
    assert found["message"] == events[0]["note"]
    eventually(
        "the scheduler to say that it cannot either",
        lambda: (c := site.condition_of("extended", "PodScheduled")) and c["reason"] == "Unschedulable",
    )
    assert not site.node_of("extended")


def test_the_view_of_a_pool_shows_state_lock_holders_and_what_is_free(operator: Process, site: Site) -> None:
    node = site.node("n1")
    site.publish(node, ["eth1", "eth2"], slots=4)
    site.run("a1", "a")
    site.run("a2", "a")
    bound(site, "a1", "a2")
    eventually("the view", lambda: (site.table().get(f"{node}/eth1") or {}).get("holderCount") == 2)
    table = site.table()
    held, free = table[f"{node}/eth1"], table[f"{node}/eth2"]

    assert (held["state"], held["lock"]) == ("Locked", {"subnet": "a"})
    assert sorted(holder["name"] for holder in held["holders"]) == ["a1", "a2"]
    assert (held["capacity"], held["freeCapacity"]) == ({"slots": "4"}, {"slots": "2"})
    assert (free["state"], free["freeCapacity"]) == ("Clean", {"slots": "4"})
