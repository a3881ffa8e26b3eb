"""Pods of operator and webhook under the strictest Pod Security, judged by the API server's own admission."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from harness.operator import ROOT

from e2e.cluster import Cluster
from e2e.errors import ApiError

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def pods(cluster: Cluster, folder: str) -> list[dict[str, Any]]:
    rendered = cluster.kubectl("kustomize", str(ROOT / "manifests" / folder))
    workloads = [d for d in yaml.safe_load_all(rendered) if d["kind"] in ("Deployment", "DaemonSet")]
    return [workload["spec"]["template"]["spec"] for workload in workloads]


def admit(cluster: Cluster, namespace: str, spec: dict[str, Any]) -> None:
    labels = {"metadata": {"labels": RESTRICTED}}
    path = f"/api/v1/namespaces/{namespace}"
    cluster.request("PATCH", path, labels, content_type="application/merge-patch+json")
    # The account is of another namespace and has no say here.
    body = {"metadata": {"name": "pod"}, "spec": {**spec, "serviceAccountName": "default"}}
    body["spec"]["priorityClassName"] = ""
    cluster.request("POST", f"{path}/pods?dryRun=All", body)


@pytest.mark.parametrize("folder", ["operator", "webhook", "../examples/metadata-sidecar"])
def test_restricted(control_plane: Cluster, namespace: str, folder: str) -> None:
    (spec,) = pods(control_plane, folder)
    admit(control_plane, namespace, spec)
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]


def test_a_driver_is_refused_there(control_plane: Cluster, namespace: str) -> None:
    """It needs the kubelet's folders; this also shows that the admission above looks at all."""
    (spec,) = pods(control_plane, "driver-nic")
    with pytest.raises(ApiError, match=r"violates PodSecurity \"restricted:latest\""):
        admit(control_plane, namespace, spec)


@pytest.mark.parametrize("folder", ["operator", "webhook"])
def test_one_replica_may_be_evicted_and_no_more(control_plane: Cluster, folder: str) -> None:
    rendered = control_plane.kubectl("kustomize", str(ROOT / "manifests" / folder))
    found = {d["kind"]: d for d in yaml.safe_load_all(rendered)}
    budget, policy, deployment = (
        found[kind] for kind in ("PodDisruptionBudget", "NetworkPolicy", "Deployment")
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    for selector in (budget["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels
    # A port that is named must be one the pod has.
    names = {port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == names
