"""The control plane alone: what tests rely on when they ask for `control_plane`."""

import os
import time
import uuid

import pytest

from e2e import local, paths
from e2e.api import ApiClient
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError, ClusterError
from e2e.options import Options

pytestmark = pytest.mark.integration


def _pod(name: str, node_selector: dict[str, str] | None = None) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "registry.local/test:1"}],
            "nodeSelector": node_selector or {},
        },
    }


def test_server_reports_the_pinned_version(control_plane: Cluster) -> None:
    version = control_plane.request("GET", "/version")
    assert version["gitVersion"].startswith(f"v{control_plane.kubernetes}.")


def test_scheduler_binds_to_a_hand_made_node(control_plane: Cluster, namespace: str) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(name)
    control_plane.request(
        "POST", f"/api/v1/namespaces/{namespace}/pods", _pod("p", {"kubernetes.io/hostname": name})
    )
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    bound = wait_for("pod bound", lambda: control_plane.request("GET", path)["spec"].get("nodeName"))
    assert bound == name
    control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


def test_service_account_token_has_only_its_own_rights(control_plane: Cluster, namespace: str) -> None:
    control_plane.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "nobody"}}
    )
    client = ApiClient(control_plane.service_account_kubeconfig(namespace, "nobody"))
    review = client.request(
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    assert review["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:nobody"
    with pytest.raises(ApiError) as refused:
        client.request("GET", "/api/v1/nodes")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")


def test_token_bound_to_a_node_names_it(control_plane: Cluster, namespace: str) -> None:
    node = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(node)
    client = ApiClient(control_plane.service_account_kubeconfig(namespace, "default", node))
    review = client.request(
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    assert review["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"] == [node]
    control_plane.request("DELETE", f"/api/v1/nodes/{node}")


def test_kubectl_explains_its_failure(control_plane: Cluster) -> None:
    assert "kube-system" in control_plane.kubectl("get", "namespaces")
    with pytest.raises(ClusterError, match="NotFound"):
        control_plane.kubectl("get", "pod", "absent")


def test_killed_api_server_comes_back_with_its_data(control_plane: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.request("POST", path, {"metadata": {"name": "kept"}})
    control_plane.kill("apiserver")
    with pytest.raises(ConnectionError):
        control_plane.request("GET", f"{path}/kept")
    control_plane.start("apiserver")
    assert control_plane.request("GET", f"{path}/kept")["metadata"]["name"] == "kept"


def test_held_scheduler_binds_nothing_until_started(control_plane: Cluster, namespace: str) -> None:
    node = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(node)
    control_plane.kill("scheduler")
    control_plane.request(
        "POST", f"/api/v1/namespaces/{namespace}/pods", _pod("p", {"kubernetes.io/hostname": node})
    )
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    time.sleep(1)
    assert "nodeName" not in control_plane.request("GET", path)["spec"]
    control_plane.start("scheduler")
    wait_for("pod bound", lambda: control_plane.request("GET", path)["spec"].get("nodeName"))
    control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})
    control_plane.request("DELETE", f"/api/v1/nodes/{node}")


def test_logs_and_unknown_components(control_plane: Cluster) -> None:
    assert control_plane.logs("apiserver")
    with pytest.raises(ClusterError, match="it has etcd, apiserver"):
        control_plane.logs("absent")


def test_the_oldest_supported_release_runs_too(control_plane_1_36: Cluster) -> None:
    assert control_plane_1_36.request("GET", "/version")["minor"].startswith("36")
    groups = control_plane_1_36.request("GET", "/apis/resource.k8s.io")
    assert "resource.k8s.io/v1" in [version["groupVersion"] for version in groups["versions"]]
    slices = control_plane_1_36.request("GET", "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices")
    assert slices["items"] == []


def test_a_component_that_ends_while_waited_for_is_shown_with_its_last_lines() -> None:
    options = Options(name=f"pytest-bad-{os.getpid()}", nodes=0, feature_gates="NoSuchGate=true")
    with pytest.raises(ClusterError, match=r"(?s)apiserver ended with 1:.*NoSuchGate"):
        local.up(options)
    assert not paths.cluster_dir(options.name).exists()
