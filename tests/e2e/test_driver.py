"""The driver under real kubelets: pods run with their devices through restarts, kills and reboots.

Claims are allocated by hand here, so that only the driver is between the claim and the container. Each test
starts the driver on node-a as the manifests would, and at its end nothing may be left of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.background import Background
from harness.nic import DRIVER, allocate, complete, create_claim, nic_claim, nic_config, pool_objects

from e2e import images, revisions
from e2e.cluster import PATIENCE, Cluster, NodePaths, wait_for
from e2e.errors import ApiError
from e2e.product import Process, Product

pytestmark = pytest.mark.e2e
NODE = "node-a"


class Stage:
    """The cluster, a namespace of its own, and the driver's processes on node-a."""

    def __init__(self, cluster: Cluster, product: Product, namespace: str) -> None:
        self.cluster, self.product, self.namespace = cluster, product, namespace
        self.node: NodePaths = cluster.node(NODE)

    def start(self, *flags: str, profile: str = "nic", env: Mapping[str, str] | None = None) -> Process:
        logs = self.cluster.folder / "logs"
        written = {path: path.stat().st_size for path in logs.glob("*")}
        # A test before this one may have left open devices, which are fenced for a while first.
        process = self.product.driver(self.node, "--fence-settle=1", *flags, profile=profile, env=env)
        # Slices of an earlier driver may still be there, and its lines in the log file.
        start = written.get(process.log, 0)
        wait_for("driver registered", lambda: b"registered with" in process.log.read_bytes()[start:])
        return process

    def claim(self, subnet: str, device: str = "eth1") -> str:
        """A claim allocated by hand; its name."""
        return str(nic_claim(self.cluster, self.namespace, NODE, subnet, device)["metadata"]["name"])

    def pod(self, name: str, *claims: str) -> None:
        """Create a pod that uses the claims and waits for its end."""
        container: dict[str, Any] = {
            "name": "main",
            "image": images.TEST,
            "resources": {"claims": [{"name": f"c{number}"} for number in range(len(claims))]},
        }
        uses = [{"name": f"c{number}", "resourceClaimName": claim} for number, claim in enumerate(claims)]
        spec = {
            "containers": [container],
            "resourceClaims": uses,
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "terminationGracePeriodSeconds": 1,
        }
        self.cluster.request("POST", self._pods(), {"metadata": {"name": name}, "spec": spec})

    def running(self, *names: str, seconds: float = PATIENCE) -> None:
        """Wait until all of these pods run."""
        for name in names:
            wait_for(f"pod {name} running", self._probe(name), seconds)

    def phase(self, name: str) -> str:
        return str(self.cluster.request("GET", f"{self._pods()}/{name}")["status"]["phase"])

    def environment(self, name: str) -> dict[str, str]:
        """What a container sees, asked from inside."""
        printed = self.cluster.kubectl("-n", self.namespace, "exec", name, "--", "/test", "env")
        return dict(line.split("=", 1) for line in printed.splitlines())

    def delete(self, *names: str, force: bool = False, seconds: float = PATIENCE) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            options = {"gracePeriodSeconds": 0} if force else None
            self.cluster.request("DELETE", f"{self._pods()}/{name}", options)
        for name in names:
            wait_for(f"pod {name} gone", lambda name=name: self._gone(name), seconds)  # type: ignore[misc]

    def event(self, name: str, reason: str) -> str:
        """The text of a pod's event."""

        def probe() -> str | None:
            path = f"/api/v1/namespaces/{self.namespace}/events"
            for event in self.cluster.request("GET", path)["items"]:
                if event["involvedObject"]["name"] == name and event["reason"] == reason:
                    return str(event["message"])
            return None

        return wait_for(f"event {reason} of {name}", probe)

    def plugin(self, driver: str = DRIVER) -> Path:
        return self.node.plugins / driver

    def prepared(self, driver: str = DRIVER) -> list[dict[str, Any]]:
        """The claims in the driver's checkpoint."""
        _, payload = (self.plugin(driver) / "checkpoint.json").read_bytes().split(b"\n", 1)
        claims: list[dict[str, Any]] = json.loads(payload)["claims"]
        return claims

    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in self.node.cdi.glob("*.sharingaffinity.dev-*"))

    def empty(self, driver: str = DRIVER) -> None:
        """Wait until nothing is prepared and no CDI file is left."""
        wait_for("nothing prepared", lambda: not self.prepared(driver) and not self.cdi_files())

    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _probe(self, name: str) -> Callable[[], bool]:
        return lambda: self.phase(name) == "Running"

    def _gone(self, name: str) -> bool:
        try:
            self.cluster.request("GET", f"{self._pods()}/{name}")
        except ApiError as error:
            return error.status == 404
        return False


@pytest.fixture(scope="module")
def installed(two_nodes: Cluster) -> Cluster:
    Product(two_nodes).install("driver-nic", "driver-fpga")
    return two_nodes


@pytest.fixture
def stage(installed: Cluster, namespace: str) -> Iterator[Stage]:
    """Afterwards the test's pods are deleted while a driver still runs, drivers stop, and nothing is left."""
    with Product(installed) as product:
        made = Stage(installed, product, namespace)
        yield made
        names = [pod["metadata"]["name"] for pod in installed.request("GET", made._pods())["items"]]
        made.delete(*names)
        drivers = {path.name for path in made.node.plugins.glob("*.sharingaffinity.dev")}
        for driver in drivers:
            made.empty(driver)
    for driver in drivers:
        left = {path.name for path in made.plugin(driver).iterdir()}
        assert left <= {"checkpoint.json", "serialize.lock", "hardware"}
    assert not [path.name for path in made.node.registry.iterdir() if "sharingaffinity" in path.name]


def names(prefix: str, count: int) -> Sequence[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_container_sees_its_device(stage: Stage) -> None:
    stage.start()
    claim = stage.claim("subnet-a")
    stage.pod("one", claim)
    stage.running("one")
    seen = stage.environment("one")
    path = f"/apis/resource.k8s.io/v1/namespaces/{stage.namespace}/resourceclaims/{claim}"
    (result,) = stage.cluster.request("GET", path)["status"]["allocation"]["devices"]["results"]
    assert (seen["NIC_DEVICE"], seen["NIC_SUBNET"]) == ("eth1", "subnet-a")
    assert seen["NIC_SHARE_ID"] == result["shareID"]


def test_incompatible_claim_is_refused_with_an_event_and_gets_in_later(stage: Stage) -> None:
    """Without extractors nobody keeps the two apart until prepare: the KEP's "Driver Backstop"."""
    stage.start("--no-affinity")
    first, second = stage.claim("subnet-a"), stage.claim("subnet-b")
    stage.pod("first", first)
    stage.running("first")
    stage.pod("second", second)
    text = stage.event("second", "FailedPrepareDynamicResources")
    assert (
        'device eth1 is in use with another subnet by 1 prepared claim; this claim needs subnet="subnet-b"'
        in text
    )
    assert first not in text
    assert stage.phase("first") == "Running"
    stage.delete("first")
    stage.running("second")
    assert stage.environment("second")["NIC_SUBNET"] == "subnet-b"


def test_kubelet_restart_wipes_slices_and_they_come_back(stage: Stage) -> None:
    stage.start()
    stage.pod("before", stage.claim("a"))
    stage.running("before")
    probe = complete(stage.cluster, NODE)
    first = wait_for("complete pool", probe)
    stage.cluster.restart(f"kubelet-{NODE}")

    def renewed() -> bool:
        found = probe()
        return found is not None and found > first

    wait_for("a newer complete pool", renewed)
    stage.pod("after", stage.claim("a"))
    stage.running("before", "after")
    assert stage.environment("after")["NIC_SUBNET"] == "a"


def test_driver_killed_while_pods_run_keeps_their_locks(stage: Stage) -> None:
    process = stage.start()
    stage.pod("one", stage.claim("a"))
    stage.running("one")
    process.kill()
    stage.start()
    stage.pod("other", stage.claim("b"))
    assert "in use with another subnet" in stage.event("other", "FailedPrepareDynamicResources")
    stage.pod("same", stage.claim("a"))
    stage.running("same")


def test_driver_killed_in_mid_prepare(stage: Stage) -> None:
    """The FPGA is being programmed when the driver dies; the kubelet's retry finishes with the next one."""
    process = stage.start("--program-seconds=30", profile="fpga")
    fpga = "fpga.sharingaffinity.dev"
    parameters = {"apiVersion": f"{fpga}/v1", "kind": "FPGAConfig", "bitstream": stage.namespace}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "fpga"},
        "spec": {
            "devices": {
                "requests": [{"name": "fpga", "exactly": {"deviceClassName": f"shared-{fpga}"}}],
                "config": [{"opaque": {"driver": fpga, "parameters": parameters}}],
            }
        },
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/{stage.namespace}/resourceclaims"
    created = stage.cluster.request("POST", path, claim)
    allocate(stage.cluster, created, NODE, "fpga0", driver=fpga)
    stage.pod("one", "fpga")
    wait_for(
        "prepare begun",
        lambda: [claim["phase"] for claim in stage.prepared(fpga)] == ["Started"],
    )
    process.kill()
    assert stage.cdi_files() == []
    stage.start("--program-seconds=1", profile="fpga")
    stage.running("one")
    assert stage.environment("one")["FPGA_BITSTREAM"] == stage.namespace


def test_rebooted_node_gets_its_devices_again(stage: Stage) -> None:
    process = stage.start()
    stage.pod("one", stage.claim("a"))
    stage.running("one")
    process.kill()
    stage.cluster.reboot(NODE, wipe_cdi=True)
    assert stage.cdi_files() == []
    stage.start()

    def running_again() -> bool:
        pod = stage.cluster.request("GET", f"{stage._pods()}/one")
        (status,) = pod["status"]["containerStatuses"]
        return status["restartCount"] > 0 and "running" in status["state"]

    wait_for("the pod runs again", running_again)
    assert stage.environment("one")["NIC_SUBNET"] == "a"


def test_force_deleted_pod_frees_its_device(stage: Stage) -> None:
    stage.start()
    stage.pod("one", stage.claim("a"))
    stage.running("one")
    stage.delete("one", force=True)
    stage.empty()
    stage.pod("two", stage.claim("b"))
    stage.running("two")


def test_health_of_a_device_reaches_its_pods_and_its_slice(stage: Stage) -> None:
    stage.start()
    stage.pod("one", stage.claim("a"))
    stage.running("one")

    def health() -> str:
        pod = stage.cluster.request("GET", f"{stage._pods()}/one")
        (container,) = pod["status"]["containerStatuses"]
        statuses = container.get("allocatedResourcesStatus") or [{"resources": []}]
        return ",".join(resource["health"] for status in statuses for resource in status["resources"])

    def tainted() -> bool:
        (devices,), _ = pool_objects(stage.cluster, NODE)
        taints = {device["name"]: device["taints"] for device in devices["spec"]["devices"]}
        return any(taint["key"] == f"{DRIVER}/unhealthy" for taint in taints["eth1"])

    fault = stage.plugin() / "hardware" / "eth1.fault"
    wait_for("healthy", lambda: health() == "Healthy")
    fault.write_text("no link")
    try:
        wait_for("unhealthy", lambda: health() == "Unhealthy")
        wait_for("tainted", tainted)
    finally:
        fault.unlink()
    wait_for("healthy again", lambda: health() == "Healthy" and not tainted())
    assert stage.phase("one") == "Running"


def test_same_claim_name_with_a_new_uid(stage: Stage) -> None:
    """Case D-05 with the real kubelet."""
    stage.start()
    path = f"/apis/resource.k8s.io/v1/namespaces/{stage.namespace}/resourceclaims/nic"
    for subnet, device in (("A", "eth1"), ("B", "eth2")):
        claim = create_claim(stage.cluster, stage.namespace, "nic", [nic_config(subnet)])
        allocate(stage.cluster, claim, NODE, device)
        stage.pod("user", "nic")
        stage.running("user")
        assert stage.environment("user")["NIC_SUBNET"] == subnet
        stage.delete("user")
        stage.cluster.request("DELETE", path)
        time.sleep(0.1)


def test_thirty_claims_and_thirty_pods_of_one_claim(stage: Stage) -> None:
    stage.start("--slots=32")
    claims = [stage.claim("a") for _ in range(30)]
    for number, name in enumerate(names("many", 10)):
        stage.pod(name, *claims[3 * number : 3 * number + 3])
    shared = stage.claim("b", "eth2")
    for name in names("shared", 30):
        stage.pod(name, shared)
    stage.running(*names("many", 10), *names("shared", 30), seconds=240)
    assert len(stage.prepared()) == 31
    assert len(stage.cdi_files()) == 31
    ids = {stage.environment(name)["NIC_SHARE_ID"] for name in names("shared", 30)[:3]}
    assert len(ids) == 1
    stage.delete(*names("many", 10), *names("shared", 30), seconds=240)
    stage.empty()


def test_status_of_a_claim_outlives_the_driver_and_ends_with_its_pod(stage: Stage) -> None:
    process = stage.start()
    claim = stage.claim("a")
    path = f"/apis/resource.k8s.io/v1/namespaces/{stage.namespace}/resourceclaims/{claim}"

    def told() -> list[tuple[str, str, str]]:
        entries = stage.cluster.request("GET", path)["status"].get("devices") or []
        return [(c["type"], c["status"], c["message"]) for e in entries for c in e["conditions"]]

    stage.pod("one", claim)
    stage.running("one")
    there = wait_for("status", told)
    assert ("AffinityLocked", "True", 'subnet="a"') in there
    process.kill()
    assert told() == there
    stage.start()
    assert told() == there
    stage.delete("one")
    wait_for("status gone", lambda: not told())


def test_slices_of_a_stopped_driver_are_wiped_and_metadata_stays_harmless(stage: Stage) -> None:
    """The kubelet deletes the device slices 30 s after the driver is gone; the pool is then incomplete."""
    stage.start().stop()
    wait_for("slices wiped", lambda: not pool_objects(stage.cluster, NODE)[0])
    _, metadata = pool_objects(stage.cluster, NODE)
    assert len(metadata) == 1
    assert complete(stage.cluster, NODE)() is None


def load(stage: Stage) -> Background[None]:
    """Pods with a claim each, one after the other."""

    def one(number: int) -> None:
        name = f"load-{number}"
        stage.pod(name, stage.claim("a"))
        stage.running(name)
        stage.delete(name)

    return Background("load", one)


def published(cluster: Cluster) -> Background[int]:
    """The generation of the driver's slices, all the time; 0 while there are none."""

    def look(number: int) -> int:
        slices, _ = pool_objects(cluster, NODE)
        return min((item["spec"]["pool"]["generation"] for item in slices), default=0)

    return Background("published", look, pause=0.1, patience=20)


def test_driver_is_replaced_by_another_version_and_back_under_load(stage: Stage, tmp_path: Path) -> None:
    """Each new instance serves before the old one goes, as the DaemonSet's surge does it."""
    before = f"{tmp_path / 'operator'}:{tmp_path / 'driver'}"
    revisions.extract(revisions.previous(), tmp_path)
    old = stage.start(env={"POD_UID": "old", "PYTHONPATH": before})
    stage.pod("keep", stage.claim("a"))
    stage.running("keep")
    with published(stage.cluster) as generations, load(stage) as pods:
        pods.more(1, 120)
        new = stage.start(env={"POD_UID": "new"})
        pods.more(1, 120)
        old.stop()
        pods.more(2, 120)
        again = stage.start(env={"POD_UID": "again", "PYTHONPATH": before})
        pods.more(1, 120)
        new.stop()
        pods.more(2, 120)
    assert pods.problem is None
    assert generations.problem is None
    assert min(generations.results) > 0, "the slices were gone for a moment"
    assert generations.results == sorted(generations.results)
    events = stage.cluster.request("GET", f"/api/v1/namespaces/{stage.namespace}/events")["items"]
    assert not [event["message"] for event in events if event["reason"] == "FailedPrepareDynamicResources"]
    assert stage.phase("keep") == "Running"
    again.alive()
