"""Upgrade from the previous revision under load, uninstalling in both orders: running pods never notice."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.background import Background
from harness.history import History, subnet_of
from harness.pods import Pods

from e2e import product, revisions
from e2e.cluster import Cluster, wait_for
from e2e.fixtures import CRDS
from e2e.installation import AsPods
from e2e.product import DRIVER_NAMESPACE, MANIFESTS, NAMESPACE

pytestmark = pytest.mark.e2e

LEASE = 15.0
"""Seconds, the default."""
FLAGS = ("--lease-duration=15", "--renew-deadline=10", "--retry-period=2", "--fence-settle=1")
SETTLE = "--fence-settle=1"


def load(pods: Pods) -> Background[float]:
    """One pod after the other, each for a moment; the seconds from a pod to its allocation."""

    def one(number: int) -> float:
        name = f"load-{number}"
        begun = time.monotonic()
        pods.start(name, "ab"[number % 2])
        wait_for(f"{name} is allocated", functools.partial(pods.device, name), 60, 0.1)
        took = time.monotonic() - begun
        pods.delete(name)
        return took

    return Background("load", one, patience=90)


@pytest.fixture(scope="module")
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    """The session's, with the custom resources afterwards that other tests expect."""
    yield two_nodes
    two_nodes.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))


def test_upgrade_under_load_then_uninstall_in_both_orders(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    node = cluster.node("node-a")
    tree = revisions.extract(revisions.previous(), tmp_path)
    pods = Pods(cluster, namespace)
    old = AsPods(cluster, node, tree, "previous")
    try:
        old.driver(SETTLE)
        old.operators(*FLAGS)
        pods.start("keep-a", "a")
        pods.start("keep-b", "b")
        pods.running("keep-a", "keep-b")

        upgrade(cluster, pods)
        operator_first(cluster, pods)
        driver_first(cluster, pods)
    finally:
        # Only a driver lets pods end, in whatever state the cluster is.
        last = AsPods(cluster, node)
        last.driver("--no-affinity")
        pods.end(*pods.names())
        last.stop()


def upgrade(cluster: Cluster, pods: Pods) -> None:
    """Operators and driver are replaced while pods come and go."""
    with History(cluster.kubeconfig, pods.namespace) as history, load(pods) as coming:
        coming.more(3, 90)
        assert running_images(cluster) == {"previous"}
        new = AsPods(cluster, cluster.node("node-a"))
        new.operators(*FLAGS)
        new.driver(SETTLE)
        # A roll-out is through when new pods are ready; old ones are told to go after that.
        wait_for("old pods to go", lambda: "previous" not in running_images(cluster))
        coming.more(3, 90)
    assert coming.problem is None
    assert history.violations(product.NIC_DRIVER, 16, subnet_of) == []
    assert max(coming.results) < LEASE, coming.results
    pods.undisturbed("keep-a", "keep-b")


def operator_first(cluster: Cluster, pods: Pods) -> None:
    """Operator, policies, webhook and custom resources, then the leftovers, then the driver."""
    uninstall(cluster, "overlays/default")
    pods.undisturbed("keep-a", "keep-b")
    assert "sharingaffinity.dev/allocation" in (pods.claim("keep-b") or {})["metadata"]["annotations"]
    product.command(cluster, "cleanup", "--yes")
    assert "nothing is left" in product.command(cluster, "cleanup")
    assert "sharingaffinity.dev/allocation" not in (pods.claim("keep-b") or {})["metadata"]["annotations"]
    pods.end("keep-a")
    uninstall(cluster, "driver-nic")
    pods.undisturbed("keep-b")


def driver_first(cluster: Cluster, pods: Pods) -> None:
    """Installed again, it knows the holder from before; then driver, custom resources, operator."""
    again = AsPods(cluster, cluster.node("node-a"))
    again.driver(SETTLE)
    again.operators(*FLAGS)
    wait_for("the pod from before holds its NIC", lambda: locks(cluster) == {"eth2": {"subnet": "b"}})
    pods.start("keep-a2", "a")
    pods.running("keep-a2")

    uninstall(cluster, "driver-nic")
    pods.undisturbed("keep-a2", "keep-b")
    uninstall(cluster, "../crds")
    pods.undisturbed("keep-a2", "keep-b")
    uninstall(cluster, "overlays/default")
    pods.undisturbed("keep-a2", "keep-b")
    # Other tests of the session may have installed it.
    uninstall(cluster, "driver-fpga")
    assert left(cluster) == []


def uninstall(cluster: Cluster, folder: str) -> None:
    """As an administrator does it; it has to end by itself."""
    cluster.kubectl("delete", "--ignore-not-found", "-k", str(MANIFESTS / folder), timeout=90)


def left(cluster: Cluster) -> list[str]:
    """Objects of the product that are still there."""
    kinds = (
        "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,deviceclasses,"
        "validatingadmissionpolicybindings,validatingwebhookconfigurations,customresourcedefinitions"
    )
    label = "app.kubernetes.io/part-of=sharing-affinity"
    return cluster.kubectl("get", kinds, "--selector", label, "--output", "name").split()


def running_images(cluster: Cluster) -> set[str]:
    """Tags of the images that the operator's and the driver's pods run."""
    found = set()
    for namespace in (NAMESPACE, DRIVER_NAMESPACE):
        for pod in cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            if "deletionTimestamp" not in pod["metadata"]:
                found |= {container["image"].rpartition(":")[2] for container in pod["spec"]["containers"]}
    return found


def locks(cluster: Cluster) -> dict[str, Any]:
    pools = json.loads(product.command(cluster, "locks", "-o", "json"))["pools"]
    return {d["device"]: d["lock"] for p in pools for d in p["devices"] if d["state"] == "Locked"}
