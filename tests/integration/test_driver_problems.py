"""What a driver cannot put right by itself becomes an Event on its Node and a number in its metrics."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.nic import DRIVER, SLICES, RunningDriver, driver_options, nic_claim, pool_objects, running

from affinity_driver.publish.controller import CALM_RENEWALS
from affinity_driver.state.model import Phase
from e2e import local
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError
from e2e.fixtures import CRDS
from e2e.options import Options
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.integration


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        yield Path(folder)


def set_up(cluster: Cluster) -> tuple[str, Path]:
    """A node and the driver's kubeconfig for it."""
    Product(cluster).install("driver-nic")
    node = f"n-{uuid.uuid4().hex[:8]}"
    cluster.add_node(node)
    return node, cluster.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic", node)


def node_event(cluster: Cluster, node: str, reason: str) -> str:
    def probe() -> str | None:
        for event in cluster.request("GET", "/api/v1/namespaces/default/events")["items"]:
            if event["involvedObject"]["name"] == node and event["reason"] == reason:
                return str(event["message"])
        return None

    return wait_for(f"event {reason} on {node}", probe)


@pytest.fixture(scope="module")
def without_consumable_capacity() -> Iterator[Cluster]:
    """A control plane whose API server silently drops what the feature gate DRAConsumableCapacity brought."""
    name = f"pytest-drop-{os.getpid()}"
    cluster = local.up(Options(name=name, nodes=0, feature_gates="DRAConsumableCapacity=false"))
    try:
        cluster.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))
        yield cluster
    finally:
        cluster.down()


def test_dropped_fields_are_told_and_not_fought_over(
    without_consumable_capacity: Cluster, root: Path
) -> None:
    cluster = without_consumable_capacity
    node, kubeconfig = set_up(cluster)
    with running(driver_options(root, node), kubeconfig) as made:
        text = node_event(cluster, node, "DroppedFields")
        assert "allowMultipleAllocations" in text
        assert "feature gate DRAConsumableCapacity seems to be off" in text
        wait_for("the condition", lambda: pool_objects(cluster, node)[1][0]["status"]["conditions"])
        time.sleep(1)
        before = pool_objects(cluster, node)
        made.driver._publisher.wake()
        time.sleep(1.5)
        assert pool_objects(cluster, node) == before
        labels = {"driver": DRIVER, "resource": "resourceslices"}
        dropped = made.driver.metrics.registry.get_sample_value(
            "affinity_driver_dropped_fields_total", labels
        )
        assert dropped is not None
        assert dropped >= 2
        _, (metadata,) = before
        (condition,) = metadata["status"]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "Published",
            "False",
            "DroppedFields",
        )
        assert "DRAConsumableCapacity" in condition["message"]


def test_somebody_who_keeps_rewriting_slices_is_not_raced(control_plane: Cluster, root: Path) -> None:
    """Each renewal costs every scheduler a look; after a few within a minute the driver takes its time."""
    node, kubeconfig = set_up(control_plane)
    with running(driver_options(root, node), kubeconfig):
        edits = 0
        end = time.monotonic() + 8
        while time.monotonic() < end:
            slices, _ = pool_objects(control_plane, node)
            if slices and "taints" in slices[0]["spec"]["devices"][0]:
                slices[0]["spec"]["devices"][0].pop("taints")
                with suppress(ApiError):
                    control_plane.request("PUT", f"{SLICES}/{slices[0]['metadata']['name']}", slices[0])
                    edits += 1
            time.sleep(0.05)
        assert "keeps changing" in node_event(control_plane, node, "SlicesContested")
        assert edits <= CALM_RENEWALS + 1
    control_plane.request("DELETE", f"/api/v1/nodes/{node}")


def test_set_aside_checkpoint_is_told(control_plane: Cluster, namespace: str, root: Path) -> None:
    node, kubeconfig = set_up(control_plane)
    with running(driver_options(root, node, publish=False), kubeconfig) as made:
        claim = nic_claim(control_plane, namespace, node, "A")
        assert made.kubelet.prepare(claim)[claim["metadata"]["uid"]].error == ""
        made.stop()
        (made.driver.directory / "checkpoint.json").write_bytes(b"\0" * 100)
        made.start_again()
        assert "was set aside" in node_event(control_plane, node, "CheckpointSetAside")
        other = nic_claim(control_plane, namespace, node, "B")
        assert "another subnet" in made.kubelet.prepare(other)[other["metadata"]["uid"]].error
    control_plane.request("DELETE", f"/api/v1/nodes/{node}")


def test_refused_registration_is_told(control_plane: Cluster, root: Path) -> None:
    node, kubeconfig = set_up(control_plane)
    with running(driver_options(root, node), kubeconfig, register=False) as made:
        made.kubelet.register(accept=False)
        assert "refused" in node_event(control_plane, node, "RegistrationRefused")
    control_plane.request("DELETE", f"/api/v1/nodes/{node}")


class TestSweep:
    """Claims that nobody will ever unprepare: gone from the API server, or replaced under their name."""

    @pytest.fixture
    def nic(self, control_plane: Cluster, root: Path) -> Iterator[RunningDriver]:
        node, kubeconfig = set_up(control_plane)
        with running(driver_options(root, node, publish=False), kubeconfig) as made:
            yield made
        control_plane.request("DELETE", f"/api/v1/nodes/{node}")

    def test_prepared_claims_go_when_twice_found_gone(
        self, control_plane: Cluster, namespace: str, nic: RunningDriver
    ) -> None:
        kept, gone = (nic_claim(control_plane, namespace, nic.options.node, "A") for _ in range(2))
        nic.kubelet.prepare(kept, gone)
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        control_plane.request("DELETE", f"{path}/{gone['metadata']['name']}")
        assert nic.driver._sweeper.sweep() == []
        assert nic.driver._sweeper.sweep() == [gone["metadata"]["uid"]]
        assert set(nic.driver.state.snapshot().claims) == {kept["metadata"]["uid"]}

    def test_unfinished_claims_go_at_once(
        self, control_plane: Cluster, namespace: str, nic: RunningDriver
    ) -> None:
        claim = nic_claim(control_plane, namespace, nic.options.node, "A")
        nic.kubelet.prepare(claim)
        state = nic.driver.state.snapshot().after_reboot("another boot")
        assert [held.phase for held in state.claims.values()] == [Phase.STARTED]
        nic.driver.state._file.save(state.after_reboot(nic.driver.state._boot_id))
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        control_plane.request("DELETE", f"{path}/{claim['metadata']['name']}")
        assert nic.driver._sweeper.sweep() == [claim["metadata"]["uid"]]

    def test_nothing_is_undone_while_the_api_server_is_away(
        self, control_plane: Cluster, namespace: str, nic: RunningDriver
    ) -> None:
        claim = nic_claim(control_plane, namespace, nic.options.node, "A")
        nic.kubelet.prepare(claim)
        control_plane.kill("apiserver")
        try:
            assert nic.driver._sweeper.sweep() == []
            assert nic.driver._sweeper.sweep() == []
        finally:
            control_plane.start("apiserver")
        assert len(nic.driver.state.snapshot().claims) == 1
