"""The operator's and the driver's images start on a real node."""

import functools
from typing import Any

import pytest

from e2e.cluster import Cluster, wait_for
from e2e.images import archives
from e2e.product import DRIVER_NAMESPACE

pytestmark = pytest.mark.e2e


def test_operator_image_runs_its_program(two_nodes: Cluster, namespace: str) -> None:
    application = archives.OPERATOR
    two_nodes.load(archives.application_archive(application))
    path = f"/api/v1/namespaces/{namespace}/pods"
    container = {"name": "main", "image": application.image, "args": ["--help"]}
    container["securityContext"] = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    spec = {"nodeName": "node-a", "containers": [container], "restartPolicy": "Never"}
    two_nodes.request("POST", path, {"metadata": {"name": "p"}, "spec": spec})

    def ended() -> str | None:
        phase = two_nodes.request("GET", f"{path}/p")["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else None

    phase = wait_for("program ended", functools.partial(ended))
    output = two_nodes.kubectl("-n", namespace, "logs", "p")
    assert phase == "Succeeded", output
    assert application.command in output


def test_driver_runs_as_the_daemonset_of_the_manifests(two_nodes: Cluster) -> None:
    """Unchanged manifests, in-cluster credentials, kubelet's folders at their usual paths; then its pods are
    replaced, and the slices stay what they are."""
    two_nodes.load(archives.application_archive(archives.DRIVER))
    kustomization = str(archives.ROOT / "manifests" / "driver-nic")
    two_nodes.kubectl("apply", "--server-side", "--kustomize", kustomization)
    try:
        published = wait_for("a slice of each node", functools.partial(_published, two_nodes))
        assert published == {"node-a", "node-b"}
        before = _identities(two_nodes)
        daemonset = ("daemonset/affinity-driver-nic", "--namespace", DRIVER_NAMESPACE)
        two_nodes.kubectl("rollout", "restart", *daemonset)
        two_nodes.kubectl("rollout", "status", *daemonset, "--timeout=120s", timeout=130)
        assert _identities(two_nodes) == before
    finally:
        two_nodes.kubectl("delete", "--kustomize", kustomization, "--wait", timeout=120)
        wait_for("no slices", lambda: not _slices(two_nodes))


def _slices(cluster: Cluster) -> list[dict[str, Any]]:
    listed = cluster.request("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    return [item for item in listed if item["spec"]["driver"] == "nic.sharingaffinity.dev"]


def _identities(cluster: Cluster) -> set[tuple[str, int]]:
    return {(item["metadata"]["uid"], item["spec"]["pool"]["generation"]) for item in _slices(cluster)}


def _published(cluster: Cluster) -> set[str] | None:
    nodes = {item["spec"]["nodeName"] for item in _slices(cluster)}
    return nodes if len(nodes) == 2 else None
