"""The driver's publishing against a real API server, with the rights and under the policies that ship."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.nic import METADATA, SLICES, RunningDriver, complete, driver_options, pool_objects, running

from affinity_driver.kube import ApiError, KubeClient, from_kubeconfig
from affinity_driver.profiles import ProfileOptions
from affinity_driver.publish.desired import Fence
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError as ClusterApiError
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.integration
ACCOUNT = "affinity-driver-nic"


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    Product(control_plane).install("driver-nic")
    return control_plane


@pytest.fixture
def node(installed: Cluster) -> Iterator[str]:
    name = f"n-{uuid.uuid4().hex[:8]}"
    installed.add_node(name)
    yield name
    with suppress(ClusterApiError):
        installed.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short name: pytest's own are too long for Unix sockets below them."""
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def kubeconfig(installed: Cluster, node: str) -> Path:
    return installed.service_account_kubeconfig(DRIVER_NAMESPACE, ACCOUNT, node)


def generation(cluster: Cluster, node: str, above: int = 0) -> int:
    """Wait for a complete pool of a generation above ``above``."""
    probe = complete(cluster, node)

    def newer() -> int | None:
        found = probe()
        return found if found is not None and found > above else None

    return wait_for(f"complete pool on {node} above generation {above}", newer)


def test_pool_is_complete_fenced_and_owned(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig):
        assert generation(installed, node) == 1
        wait_for("condition", lambda: "status" in pool_objects(installed, node)[1][0])
        (devices,), (metadata,) = pool_objects(installed, node)
    assert [device["name"] for device in devices["spec"]["devices"]] == ["eth1", "eth2"]
    for device in devices["spec"]["devices"]:
        (taint,) = device["taints"]
        assert (taint["key"], taint["effect"]) == ("sharingaffinity.dev/managed", "NoSchedule")
        assert device["allowMultipleAllocations"] is True
        assert device["capacity"]["slots"]["requestPolicy"]["default"] == "1"
    assert devices["spec"]["pool"]["resourceSliceCount"] == 1
    assert metadata["spec"]["pool"]["resourceSliceCount"] == 2
    assert [entry["name"] for entry in metadata["spec"]["sharingAffinity"]] == ["subnet"]
    conditions = {item["type"]: item["status"] for item in metadata["status"]["conditions"]}
    assert conditions["Published"] == "True"
    uid = installed.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    for item in (devices, metadata):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", uid)


def test_nothing_is_offered_before_the_kubelet_accepts_us(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig, register=False) as made:
        made.kubelet.register(accept=False)
        time.sleep(0.5)
        assert pool_objects(installed, node) == ([], [])
        made.kubelet.register()
        generation(installed, node)


def test_nothing_is_written_when_nothing_changed(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig) as made:
        generation(installed, node)
        before = pool_objects(installed, node)
        made.restart()
        made.driver._publisher.wake()
        time.sleep(1)
        assert pool_objects(installed, node) == before


def test_the_kubelets_wipe_is_made_good_with_a_newer_generation_and_the_fence_keeps_its_age(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig):
        first = generation(installed, node)
        (before,), _ = pool_objects(installed, node)
        time.sleep(1.1)  # the taint's time is in whole seconds
        installed.request("DELETE", f"{SLICES}/{before['metadata']['name']}")
        assert generation(installed, node, above=first) == first + 1
        (after,), _ = pool_objects(installed, node)
    ages = [
        [device["taints"][0]["timeAdded"] for device in item["spec"]["devices"]] for item in (before, after)
    ]
    assert ages[0] == ages[1]


@pytest.mark.parametrize("side", ["devices", "metadata"])
def test_edits_of_others_are_undone(
    installed: Cluster, node: str, kubeconfig: Path, root: Path, side: str
) -> None:
    with running(driver_options(root, node), kubeconfig):
        first = generation(installed, node)
        (devices,), (metadata,) = pool_objects(installed, node)
        if side == "devices":
            devices["spec"]["devices"][0].pop("taints")
            installed.request("PUT", f"{SLICES}/{devices['metadata']['name']}", devices)
        else:
            metadata["spec"]["sharingAffinity"][0]["expression"] = '"anything"'
            installed.request("PUT", f"{METADATA}/{metadata['metadata']['name']}", metadata)
        generation(installed, node, above=first)
        (devices,), (metadata,) = pool_objects(installed, node)
        assert all("taints" in device for device in devices["spec"]["devices"])
        assert metadata["spec"]["sharingAffinity"][0]["expression"] != '"anything"'


def test_large_pools_are_split_in_order(installed: Cluster, node: str, kubeconfig: Path, root: Path) -> None:
    options = driver_options(root, node, profile_options=ProfileOptions(devices=150, pkey=True))
    with running(options, kubeconfig):
        generation(installed, node)
        slices, (metadata,) = pool_objects(installed, node)
    assert [len(item["spec"]["devices"]) for item in slices] == [64, 64, 22]
    names = [device["name"] for item in slices for device in item["spec"]["devices"]]
    assert names == [f"eth{number}" for number in range(1, 151)]
    assert metadata["spec"]["pool"]["resourceSliceCount"] == 4
    assert [entry["name"] for entry in metadata["spec"]["sharingAffinity"]] == ["pkey", "subnet"]


def test_a_smaller_pool_leaves_nothing_behind(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    options = driver_options(root, node, profile_options=ProfileOptions(devices=150))
    with running(options, kubeconfig) as made:
        first = generation(installed, node)
        made.restart(profile_options=ProfileOptions(devices=3))
        generation(installed, node, above=first)
        slices, _ = pool_objects(installed, node)
    assert [len(item["spec"]["devices"]) for item in slices] == [3]


def test_count_fence(installed: Cluster, node: str, kubeconfig: Path, root: Path) -> None:
    with running(driver_options(root, node, fence=Fence.COUNT), kubeconfig):
        generation(installed, node)
        (devices,), _ = pool_objects(installed, node)
    assert devices["spec"]["pool"]["resourceSliceCount"] == 2
    assert "taints" not in devices["spec"]["devices"][0]


def test_from_permissive_to_affinity_and_back(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    """H4: open devices are fenced first, extractors come after the settle time. H3: back in one republish."""
    with running(driver_options(root, node, affinity=False), kubeconfig) as made:
        (devices,) = wait_for("open devices", lambda: pool_objects(installed, node)[0])
        assert "taints" not in devices["spec"]["devices"][0]
        made.restart(affinity=True)

        def fenced_alone() -> bool:
            slices, metadata = pool_objects(installed, node)
            return not metadata and "taints" in slices[0]["spec"]["devices"][0]

        wait_for("fence without metadata", fenced_alone)
        second = generation(installed, node)
        made.restart(affinity=False)
        wait_for("metadata gone", lambda: not pool_objects(installed, node)[1])
        (devices,), _ = wait_for("open devices", lambda: pool_objects(installed, node))
        assert "taints" not in devices["spec"]["devices"][0]
        assert devices["spec"]["pool"]["generation"] == second + 1


def test_a_reinstalled_driver_goes_beyond_what_is_there(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root / "a", node), kubeconfig):
        first = generation(installed, node)
    _, (metadata,) = pool_objects(installed, node)
    metadata["spec"]["pool"]["generation"] = 40
    installed.request("PUT", f"{METADATA}/{metadata['metadata']['name']}", metadata)
    with running(driver_options(root / "b", node), kubeconfig):
        assert generation(installed, node, above=first) == 41


def test_slices_stay_when_the_driver_stops(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig):
        first = generation(installed, node)
    assert generation(installed, node) == first
    left = [path.name for path in (root / "kubelet" / "plugins" / "nic.sharingaffinity.dev").iterdir()]
    assert sorted(left) == ["checkpoint.json", "serialize.lock"]
    assert list((root / "kubelet" / "plugins_registry").iterdir()) == []


def test_both_kinds_go_with_their_node(installed: Cluster, node: str, kubeconfig: Path, root: Path) -> None:
    """The kubelet never deletes a SharingAffinitySlice; the garbage collector does, once the Node is gone."""
    with running(driver_options(root, node), kubeconfig):
        generation(installed, node)
    installed.request("DELETE", f"/api/v1/nodes/{node}")
    wait_for("no slices of the node", lambda: pool_objects(installed, node) == ([], []))


def test_a_node_registered_anew_owns_the_pool_anew(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    with running(driver_options(root, node), kubeconfig) as made:
        first = generation(installed, node)
        installed.request("DELETE", f"/api/v1/nodes/{node}")
        installed.add_node(node)
        uid = installed.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
        # The driver's token was bound to the node that is gone; its pod would have gone with it.
        made.stop()
        made.kubeconfig = installed.service_account_kubeconfig(DRIVER_NAMESPACE, ACCOUNT, node)
        made.start_again()

        def owned_anew() -> bool:
            items = [*pool_objects(installed, node)[0], *pool_objects(installed, node)[1]]
            owners = {owner["uid"] for item in items for owner in item["metadata"]["ownerReferences"]}
            return len(items) == 2 and owners == {uid}

        wait_for("owned by the new node", owned_anew)
        assert generation(installed, node) >= first


class TestPolicy:
    """The driver's token can write its own node's slices of its own driver, of both kinds; nothing else."""

    @pytest.fixture
    def bodies(
        self, installed: Cluster, node: str, kubeconfig: Path, root: Path
    ) -> dict[str, dict[str, Any]]:
        with running(driver_options(root, node), kubeconfig):
            generation(installed, node)
            (devices,), (metadata,) = pool_objects(installed, node)
        return {SLICES: devices, METADATA: metadata}

    @pytest.mark.parametrize("path", [SLICES, METADATA])
    def test_other_nodes_are_out_of_reach(
        self, installed: Cluster, kubeconfig: Path, bodies: dict[str, dict[str, Any]], path: str
    ) -> None:
        api = KubeClient(from_kubeconfig(kubeconfig))
        other = f"n-{uuid.uuid4().hex[:8]}"
        body = bodies[path]
        spec = {**body["spec"], "nodeName": other}
        foreign = {**body, "metadata": {"name": f"x-{other}"}, "spec": spec}
        with pytest.raises(ApiError) as refused:
            api.create(path, foreign)
        assert refused.value.code == 403
        assert "slices of that node only" in refused.value.message
        there = installed.request("POST", path, foreign)
        with pytest.raises(ApiError) as refused:
            api.update(f"{path}/x-{other}", there)
        assert refused.value.code == 403
        version = there["metadata"]["resourceVersion"]
        with pytest.raises(ApiError) as refused:
            api.delete(f"{path}/x-{other}", uid=there["metadata"]["uid"], resource_version=version)
        assert refused.value.code == 403
        installed.request("DELETE", f"{path}/x-{other}")

    @pytest.mark.parametrize("path", [SLICES, METADATA])
    def test_other_drivers_are_out_of_reach(
        self, kubeconfig: Path, bodies: dict[str, dict[str, Any]], path: str
    ) -> None:
        body = bodies[path]
        foreign = {
            **body,
            "metadata": {"name": "x-other"},
            "spec": {**body["spec"], "driver": "other.example.com"},
        }
        with pytest.raises(ApiError) as refused:
            KubeClient(from_kubeconfig(kubeconfig)).create(path, foreign)
        assert "slices of driver nic.sharingaffinity.dev only" in refused.value.message

    def test_a_token_without_node_writes_nothing(
        self, installed: Cluster, bodies: dict[str, dict[str, Any]]
    ) -> None:
        unbound = KubeClient(from_kubeconfig(installed.service_account_kubeconfig(DRIVER_NAMESPACE, ACCOUNT)))
        with pytest.raises(ApiError) as refused:
            unbound.update(f"{SLICES}/{bodies[SLICES]['metadata']['name']}", bodies[SLICES])
        assert "bound to no node" in refused.value.message

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("list", "/apis/resource.k8s.io/v1/resourceclaims"),
            ("list", "/api/v1/nodes"),
            ("list", "/api/v1/pods"),
        ],
    )
    def test_nothing_else_can_be_read(self, kubeconfig: Path, method: str, path: str) -> None:
        with pytest.raises(ApiError) as refused:
            KubeClient(from_kubeconfig(kubeconfig)).list(path, {})
        assert refused.value.code == 403


def test_a_driver_that_is_stopped_while_it_starts_leaves_publishing_to_the_next(
    installed: Cluster, node: str, kubeconfig: Path, root: Path
) -> None:
    for milliseconds in range(30):
        made = RunningDriver(driver_options(root, node), kubeconfig).start()
        time.sleep(milliseconds / 2000)
        made.stop()
    with running(driver_options(root, node), kubeconfig):
        assert generation(installed, node)
