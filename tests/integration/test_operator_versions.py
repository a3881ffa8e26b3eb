"""The operator on the oldest Kubernetes it supports, and on one that lacks what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness.operator import FINALIZER, RECORD, SYSTEM, Site, eventually, install, running

from e2e import local
from e2e.cluster import Cluster

pytestmark = pytest.mark.integration


@pytest.fixture
def old_site(control_plane_1_36: Cluster, namespace: str) -> Iterator[Site]:
    made = Site(control_plane_1_36, namespace)
    yield made
    made.close()


def test_allocated_shared_and_released_on_1_36(control_plane_1_36: Cluster, old_site: Site) -> None:
    site, kubeconfig = old_site, install(control_plane_1_36)
    node = site.node("n1")
    site.publish(node)
    with running(kubeconfig, "--fence-settle", "0") as operator:
        for name, subnet in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            site.run(name, subnet)
        eventually("all to be bound", lambda: all(map(site.node_of, ("a1", "a2", "b1"))), process=operator)
        assert site.allocation("a1") == site.allocation("a2") != site.allocation("b1")

        for name in ("a1", "a2", "b1"):
            site.delete_pod(name)
        eventually(
            "all to be free", lambda: not any(map(site.allocation, ("a1", "a2", "b1"))), process=operator
        )

        def tidy() -> bool:
            claims = [site.get_claim(name)["metadata"] for name in ("a1", "a2", "b1")]
            return not any(
                FINALIZER in claim.get("finalizers", ()) or RECORD in claim.get("annotations", {})
                for claim in claims
            )

        eventually("records and finalizers to go", tidy, process=operator)


def test_a_server_with_its_gates_off_is_refused_by_name() -> None:
    """Exit code 3, every gate named, nothing started: fields that the server drops cannot be relied on."""
    gates = "DRAConsumableCapacity=false,DRADeviceTaints=false"
    cluster = local.up(
        local.Options(name=f"pytest-gates-{os.getpid()}", kubernetes="1.36", nodes=0, feature_gates=gates)
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sharing_affinity", "run", "--kubeconfig", str(install(cluster)),
             "--namespace", SYSTEM, "--http", ""],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        cluster.down()

    assert done.returncode == 3
    assert "feature gate DRAConsumableCapacity is off in the API server" in done.stderr
    assert "feature gate DRADeviceTaints is off in the API server" in done.stderr
