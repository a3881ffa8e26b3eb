"""The operator as it ships, on a real control plane: stock scheduler, stock controllers, real RBAC and
policies.

Nodes are made by hand, so pods are bound and never run. Everything up to the kubelet is the real thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.operator import FINALIZER, RECORD, Process, Site, eventually, install, running

from e2e.cluster import Cluster

pytestmark = pytest.mark.integration

FAST = ("--fence-settle", "0.2", "--grace", "2", "--cool-down", "2", "--exclusion", "1")


@pytest.fixture(scope="module")
def kubeconfig(control_plane: Cluster) -> Path:
    return install(control_plane)


@pytest.fixture(scope="module")
def operator(kubeconfig: Path) -> Iterator[Process]:
    with running(kubeconfig, *FAST) as process:
        yield process


@pytest.fixture
def site(control_plane: Cluster, namespace: str) -> Iterator[Site]:
    made = Site(control_plane, namespace)
    yield made
    made.close()


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
