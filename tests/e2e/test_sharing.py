"""The KEP's end-to-end items: driver, operator, kube-scheduler and kubelets, all real.

Operator, webhook and driver run as pods from the shipped manifests; one node has the devices, two NICs. Every
test leaves the node without pods and claims.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness.webhook import slice_of

from e2e import demo, images, product
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.errors import ApiError, ClusterError
from e2e.installation import AsPods, kill_container

pytestmark = pytest.mark.e2e

SETTLE = "--fence-settle=1"


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster with the product, and a namespace for pods."""

    cluster: Cluster
    product: AsPods
    namespace: str

    @property
    def node(self) -> NodePaths:
        return self.cluster.node("node-a")

    def pod(self, name: str, subnet: str | None) -> None:
        template = demo.claim_template(f"nic-{subnet or 'none'}", subnet)
        pod = demo.pod(name, f"nic-{subnet or 'none'}", images.TEST)
        for obj in (template, pod):
            obj["metadata"]["namespace"] = self.namespace
        self.cluster.apply(template, pod)

    def seen_by(self, name: str) -> dict[str, str]:
        """The environment of a pod's container, once it runs."""

        def running() -> bool:
            return bool(
                self.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")["status"]["phase"] == "Running"
            )

        wait_for(f"pod {name} runs", running)
        lines = self.cluster.kubectl("-n", self.namespace, "exec", name, "--", "/test", "env").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def place(self, name: str) -> tuple[str, str]:
        """Device and subnet as the pod's container sees them."""
        seen = self.seen_by(name)
        return seen["NIC_DEVICE"], seen["NIC_SUBNET"]

    def waits(self, name: str) -> str:
        """The operator's Event about a pod that it cannot place."""
        query = f"involvedObject.name={name},reason=FailedAffinityAllocation"
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector={query}"
        return str(wait_for(f"an Event about {name}", lambda: self.get(path)["items"])[0]["message"])

    def delete(self, *names: str) -> None:
        """Delete pods, and wait until the claims made for them are gone."""
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", *names, "--ignore-not-found", timeout=120)
        owners = set(names)

        def gone() -> bool:
            return not any(
                owners & {o["name"] for o in c["metadata"]["ownerReferences"]} for c in self.claims()
            )

        wait_for(f"claims of {names} are gone", gone)

    def claims(self) -> list[dict[str, Any]]:
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def locks(self) -> dict[str, tuple[str, dict[str, str] | None, int]]:
        """State, lock and number of holders of each device, as `sharing-affinity locks` tells them."""
        pools = json.loads(product.command(self.cluster, "locks", "-o", "json"))["pools"]
        (pool,) = (p for p in pools if p["driver"] == product.NIC_DRIVER and p["pool"] == self.node.name)
        return {d["device"]: (d["state"], d["lock"], len(d["holders"])) for d in pool["devices"]}

    def get(self, path: str) -> Any:
        return self.cluster.request("GET", path)


@pytest.fixture(scope="module")
def installed(two_nodes: Cluster) -> Iterator[AsPods]:
    made = AsPods(two_nodes, two_nodes.node("node-a"))
    try:
        made.operators(SETTLE)
        yield made
    finally:
        made.stop()


@pytest.fixture
def open_scene(two_nodes: Cluster, installed: AsPods, namespace: str) -> Iterator[Scene]:
    """Whatever the driver publishes now, if one runs."""
    scene = Scene(two_nodes, installed, namespace)
    yield scene
    pods = scene.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    if pods:
        scene.delete(*(p["metadata"]["name"] for p in pods))


@pytest.fixture
def scene(open_scene: Scene) -> Scene:
    """With the driver on node-a, joined and fenced."""
    start_driver(open_scene)
    return open_scene


def start_driver(scene: Scene) -> None:
    scene.product.driver(SETTLE)

    def joined() -> bool:
        slices = scene.get(product.METADATA)["items"]
        ours = [
            s
            for s in slices
            if s["spec"]["driver"] == product.NIC_DRIVER and s["spec"]["nodeName"] == scene.node.name
        ]
        return any(
            c["type"] == "Joined" and c["status"] == "True"
            for s in ours
            for c in (s.get("status") or {}).get("conditions") or []
            if c.get("observedGeneration") == s["metadata"]["generation"]
        )

    wait_for("the pool is joined", joined)


def test_a_pod_gets_its_device_from_the_mock_driver(scene: Scene) -> None:
    scene.pod("one", "a")

    seen = scene.seen_by("one")

    assert (seen["NIC_DEVICE"], seen["NIC_SUBNET"]) == ("eth1", "a")
    (claim,) = scene.claims()
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert seen["NIC_SHARE_ID"] == result["shareID"]
    assert scene.locks() == {"eth1": ("Locked", {"subnet": "a"}, 1), "eth2": ("Clean", None, 0)}


def test_the_driver_can_write_its_status_whatever_the_claims_parameters_are(scene: Scene) -> None:
    """The API server refuses patches of allocations that are not written as Go writes JSON."""
    template = demo.claim_template("odd", "a&b <c>")
    (config,) = template["spec"]["spec"]["devices"]["config"]
    parameters = config["opaque"]["parameters"]
    config["opaque"]["parameters"] = dict(sorted(parameters.items(), reverse=True))
    pod = demo.pod("one", "odd", images.TEST)
    for path, body in (("apis/resource.k8s.io", template), ("api", pod)):
        body["metadata"]["namespace"] = scene.namespace
        kind = body["kind"].lower() + "s"
        scene.cluster.request("POST", f"/{path}/v1/namespaces/{scene.namespace}/{kind}", body)
    assert scene.place("one") == ("eth1", "a&b <c>")

    def told() -> list[str]:
        (claim,) = scene.claims()
        entries = claim["status"].get("devices") or []
        return [c["message"] for e in entries for c in e["conditions"] if c["type"] == "AffinityLocked"]

    assert wait_for("status.devices", told) == ['subnet="a&b <c>"']


def test_matching_pods_share_a_device(scene: Scene) -> None:
    for name in ("one", "two", "three"):
        scene.pod(name, "a")

    assert {scene.place(name) for name in ("one", "two", "three")} == {("eth1", "a")}
    assert scene.locks()["eth1"] == ("Locked", {"subnet": "a"}, 3)


def test_conflicting_pods_get_different_devices_and_the_third_waits(scene: Scene) -> None:
    scene.pod("a", "a")
    assert scene.place("a") == ("eth1", "a")
    scene.pod("b", "b")
    assert scene.place("b") == ("eth2", "b")
    scene.pod("c", "c")

    message = scene.waits("c")

    assert "subnet=c" in message
    assert "incompatible" in message
    assert not any(value in message for value in ("subnet=a", "subnet=b"))
    assert scene.get(f"/api/v1/namespaces/{scene.namespace}/pods/c")["spec"].get("nodeName") is None


def test_the_lock_goes_with_the_last_pod(scene: Scene) -> None:
    for name, subnet in (("a1", "a"), ("a2", "a"), ("b", "b")):
        scene.pod(name, subnet)
        scene.seen_by(name)
    scene.pod("c", "c")
    scene.waits("c")

    scene.delete("a1")
    assert scene.locks()["eth1"] == ("Locked", {"subnet": "a"}, 1)
    scene.delete("a2")

    assert scene.place("c") == ("eth1", "c")
    assert scene.locks()["eth1"] == ("Locked", {"subnet": "c"}, 1)


def test_rollout_on_a_pool_in_use(open_scene: Scene) -> None:
    """Pods of before keep running. Their claims carry configs all the same, so they are holders with keys:
    new pods share with those of their subnet, and others keep away."""
    scene = open_scene
    scene.product.driver("--no-affinity")
    wait_for("the devices are open", lambda: fences(scene) == {False})
    scene.pod("old", "a")
    assert scene.place("old") == ("eth1", "a")

    start_driver(scene)
    assert scene.locks() == {"eth1": ("Locked", {"subnet": "a"}, 1), "eth2": ("Clean", None, 0)}
    scene.pod("new-b", "b")
    assert scene.place("new-b") == ("eth2", "b")
    scene.pod("new-a", "a")
    assert scene.place("new-a") == ("eth1", "a")
    containers = scene.get(f"/api/v1/namespaces/{scene.namespace}/pods/old")["status"]["containerStatuses"]
    assert [c["restartCount"] for c in containers] == [0]
    scene.delete("old", "new-a", "new-b")
    assert {state for state, _, _ in scene.locks().values()} == {"Clean"}


def fences(scene: Scene) -> set[bool]:
    """Whether the node's NICs are fenced; both while some are and some are not."""
    try:
        slices = scene.get("/apis/resource.k8s.io/v1/resourceslices")["items"]
    except ApiError:
        return set()
    devices = [
        device
        for s in slices
        if s["spec"]["driver"] == product.NIC_DRIVER and s["spec"].get("nodeName") == scene.node.name
        for device in s["spec"].get("devices") or []
    ]
    return {bool(device.get("taints")) for device in devices}


# -- what is installed -------------------------------------------------------------------------------------


def test_the_webhook_refuses_through_its_service(installed: AsPods, two_nodes: Cluster) -> None:
    """As the API server reaches it in a user's cluster: by the Service's address, with the authority the
    webhook has made and written into its configuration."""
    broken = slice_of("probe", {"subnet": "object.("})

    def refused() -> str | None:
        try:
            two_nodes.request("POST", f"{product.METADATA}?dryRun=All", broken)
        except ApiError as error:
            return str(error)
        return None

    message = wait_for("a refusal", refused, 60, 0.5)
    assert 'admission webhook "slices.webhook.sharingaffinity.dev" denied the request' in message
    assert "compilation failed" in message


@pytest.mark.parametrize("name", ["sharing-affinity-operator", "sharing-affinity-webhook"])
def test_pods_as_they_run(installed: AsPods, two_nodes: Cluster, name: str) -> None:
    """Under an enforced `restricted` level, on both nodes, unable to write; only one may be evicted."""
    labels = two_nodes.request("GET", f"/api/v1/namespaces/{product.NAMESPACE}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    path = f"/api/v1/namespaces/{product.NAMESPACE}/pods"
    pods = installed.pods(product.NAMESPACE, name)
    found = [two_nodes.request("GET", f"{path}/{pod}") for pod in pods]
    assert {pod["spec"]["nodeName"] for pod in found} == {"node-a", "node-b"}
    write = ("python3", "-c", "open('/app/x', 'w')")
    exec_ = ("-n", product.NAMESPACE, "exec", pods[0], "--", *write)
    with pytest.raises(ClusterError, match="Read-only file system"):
        two_nodes.kubectl(*exec_)

    def evict(pod: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        two_nodes.request("POST", f"{path}/{pod}/eviction?dryRun=All", body)

    for pod in pods:
        wait_for(f"{pod} may be evicted", lambda pod=pod: evict(pod) is None)  # type: ignore[misc]
    two_nodes.request("POST", f"{path}/{pods[0]}/eviction", {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pods[0]},
    })  # fmt: skip
    with pytest.raises(ApiError, match="disruption budget"):
        evict(pods[1])


def test_a_driver_whose_container_dies_keeps_its_claims(scene: Scene) -> None:
    scene.pod("a", "a")
    assert scene.place("a") == ("eth1", "a")
    (pod,) = scene.product.pods(product.DRIVER_NAMESPACE, "affinity-driver-nic")

    assert kill_container(pod)

    path = f"/api/v1/namespaces/{product.DRIVER_NAMESPACE}/pods/{pod}"

    def restarted() -> bool:
        (container,) = scene.get(path)["status"]["containerStatuses"]
        return bool(container["restartCount"] == 1 and container["ready"])

    wait_for("the driver runs again", restarted)
    scene.pod("a2", "a")
    assert scene.place("a2") == ("eth1", "a")
    scene.delete("a", "a2")
    assert {state for state, _, _ in scene.locks().values()} == {"Clean"}
