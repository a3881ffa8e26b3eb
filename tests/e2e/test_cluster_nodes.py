"""Two real nodes: what tests rely on when they ask for `two_nodes`."""

import functools

import pytest

from e2e import images
from e2e.cluster import Cluster, wait_for
from e2e.images import archives

pytestmark = pytest.mark.e2e

NODES = ("node-a", "node-b")
API = "10.96.0.1:443"


def start_pod(cluster: Cluster, namespace: str, name: str, node: str) -> None:
    """A pod of the test image on a node; returns when it runs."""
    container = {
        "name": "main",
        "image": images.TEST,
        "env": [{"name": "GREETING", "value": f"hello {node}"}],
    }
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.request("POST", path, {"metadata": {"name": name}, "spec": spec})
    wait_for(
        f"pod {name} running",
        lambda: cluster.request("GET", f"{path}/{name}")["status"]["phase"] == "Running",
    )


@pytest.mark.parametrize("node", NODES)
def test_pod_runs_and_answers_exec_and_logs(two_nodes: Cluster, namespace: str, node: str) -> None:
    start_pod(two_nodes, namespace, "p", node)
    output = two_nodes.kubectl("-n", namespace, "exec", "p", "--", "/test", "env", "GREETING")
    assert output == f"GREETING=hello {node}\n"
    assert two_nodes.kubectl("-n", namespace, "logs", "p") == ""


def test_service_address_reaches_the_api_server_from_pods_and_nodes(
    two_nodes: Cluster, namespace: str
) -> None:
    program = archives.test_program()
    for node in NODES:
        start_pod(two_nodes, namespace, f"p-{node}", node)

    def from_pod(node: str) -> bool:
        run = two_nodes.kubectl("-n", namespace, "exec", f"p-{node}", "--", "/test", "dial", API, check=False)
        return run == f"connected to {API}\n"

    def from_node() -> bool:
        process = two_nodes.enter([str(program), "dial", API])
        return process.communicate(timeout=20)[0].decode() == f"connected to {API}\n"

    wait_for("the kubernetes Service from the nodes' network", from_node)
    for node in NODES:
        wait_for(f"the kubernetes Service from a pod on {node}", functools.partial(from_pod, node))


def test_restarted_kubelet_and_containerd_keep_pods_running(two_nodes: Cluster, namespace: str) -> None:
    start_pod(two_nodes, namespace, "p", "node-a")
    two_nodes.restart("containerd-node-a", kill9=True)
    two_nodes.restart("kubelet-node-a")

    def still_there() -> bool:
        return "GREETING" in two_nodes.kubectl(
            "-n", namespace, "exec", "p", "--", "/test", "env", "GREETING", check=False
        )

    wait_for("exec after the restart", still_there)
    pod = two_nodes.request("GET", f"/api/v1/namespaces/{namespace}/pods/p")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_reboot_changes_the_boot_id_and_restarts_containers(two_nodes: Cluster, namespace: str) -> None:
    start_pod(two_nodes, namespace, "p", "node-b")
    before = two_nodes.request("GET", "/api/v1/nodes/node-b")["status"]["nodeInfo"]["bootID"]
    two_nodes.reboot("node-b", wipe_cdi=True)

    def rebooted() -> bool:
        after = two_nodes.request("GET", "/api/v1/nodes/node-b")["status"]["nodeInfo"]["bootID"]
        return bool(after != before)

    wait_for("new boot id", rebooted)

    def restarted() -> bool:
        status = two_nodes.request("GET", f"/api/v1/namespaces/{namespace}/pods/p")["status"]
        state = status["containerStatuses"][0]
        return bool(state["restartCount"] == 1 and state["ready"])

    wait_for("container running again", restarted)


def test_node_folders_are_the_same_inside_and_outside(two_nodes: Cluster) -> None:
    for name in NODES:
        node = two_nodes.node(name)
        assert node.registry.is_dir()
        process = two_nodes.enter(["sh", "-c", f"echo {name} > {node.cdi}/probe"])
        process.communicate(timeout=10)
        assert (node.cdi / "probe").read_text() == f"{name}\n"
        (node.cdi / "probe").unlink()
