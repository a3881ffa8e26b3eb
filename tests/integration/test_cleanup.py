"""``sharing-affinity cleanup`` after an operator that was killed, on a real control plane."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from harness.operator import FINALIZER, QUICK_LEASE, RECORD, Process, Site, eventually, install

from e2e import local
from e2e.cluster import Cluster
from e2e.errors import ApiError
from e2e.product import MANIFESTS

NAMESPACE = "t-cleanup"
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


def cleanup(cluster: Cluster, *flags: str) -> tuple[int, dict[tuple[str, str], Any], str]:
    """Exit code, what it says by kind and name, and its standard error."""
    argv = [sys.executable, "-m", "sharing_affinity", "cleanup", "-o", "json"]
    run = subprocess.run(
        [*argv, "--kubeconfig", str(cluster.kubeconfig), *flags], capture_output=True, text=True, timeout=60
    )
    listed = json.loads(run.stdout)["leftovers"] if run.stdout else []
    return run.returncode, {(entry["kind"], entry["name"]): entry for entry in listed}, run.stderr


def test_what_a_killed_operator_left_is_taken_back(own_control_plane: Cluster) -> None:
    cluster = own_control_plane
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    local.wait_usable(cluster, NAMESPACE)
    site = Site(cluster, NAMESPACE)
    operator = Process(install(cluster), *QUICK_LEASE, "--fence-settle", "0.2")
    try:
        node = site.node("n1")
        site.publish(node)
        site.run("used", "a")
        eventually("used to be bound", lambda: site.node_of("used"), process=operator)
        site.run("waits", None)
        eventually("waits to say why", lambda: told(site), process=operator)
        # Nobody binds the second pod: its allocation is the operator's alone.
        cluster.kill("scheduler")
        site.run("unused", "a")
        eventually("unused to be allocated", lambda: site.allocation("unused"), process=operator)
        code, _, said = cleanup(cluster, "--yes")
        assert code == 1
        assert "an operator runs" in said
    finally:
        operator.kill()
    site.delete_pod("unused")
    fence = {"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}
    rule = {"deviceSelector": {"driver": "other.example.com"}, "taint": fence}
    cluster.request("POST", RULES, {"metadata": {"name": "fence"}, "spec": rule})

    # Without --yes nothing changes.
    before = [site.get_claim(name) for name in ("used", "unused")]
    code, found, _ = cleanup(cluster)
    assert code == 1
    assert {kind for kind, _ in found} == {
        "ResourceClaim", "Pod", "SharingAffinitySlice", "SharingAffinityPool", "DeviceTaintRule", "Lease",
    }  # fmt: skip
    assert "which no pod uses" in found["ResourceClaim", "unused"]["action"]
    assert "stay with the pods" in found["ResourceClaim", "used"]["action"]
    assert [site.get_claim(name) for name in ("used", "unused")] == before

    # The policy that guards the records guards them from administrators too.
    code, found, _ = cleanup(cluster, "--yes")
    assert code == 1
    assert "ValidatingAdmissionPolicy" in found["ResourceClaim", "used"]["problem"]
    cluster.kubectl("delete", "-k", str(MANIFESTS / "policies"))

    # An attempt that came no further than its first write.
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
    spec = before[0]["spec"]
    half = {"annotations": {RECORD: "{}"}, "finalizers": [FINALIZER], "name": "half"}
    eventually("the policy to be gone", lambda: posted(cluster, path, {"metadata": half, "spec": spec}))

    code, found, _ = cleanup(cluster, "--yes")
    assert code == 0
    assert all(entry["done"] for entry in found.values())
    assert cleanup(cluster)[:2] == (0, {})
    used, unused, half_done = (site.get_claim(name) for name in ("used", "unused", "half"))
    assert used["status"] == before[0]["status"]
    assert FINALIZER in used["metadata"]["finalizers"]
    for claim in (unused, half_done):
        assert not (claim.get("status") or {}).get("allocation")
        assert not claim["metadata"].get("finalizers")
    for claim in (used, unused, half_done):
        assert RECORD not in (claim["metadata"].get("annotations") or {})
    assert not told(site)
    assert site.get_pod("waits")["status"]["conditions"]
    for stored in cluster.request("GET", "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices")["items"]:
        assert not stored["status"]["conditions"]

    # Nothing of ours holds up a deletion; Kubernetes' own controller takes its finalizer off.
    site.delete_pod("used")
    for name in ("used", "unused", "half", "waits"):
        cluster.request("DELETE", f"{path}/{name}")
    eventually("the claims to be gone", lambda: not cluster.request("GET", path)["items"])


def told(site: Site) -> list[str]:
    """The operator's conditions on the pod that waits."""
    conditions = site.get_pod("waits")["status"].get("conditions") or ()
    return [c["type"] for c in conditions if c["type"].startswith("sharingaffinity.dev/")]


def posted(cluster: Cluster, path: str, body: dict[str, Any]) -> bool:
    try:
        cluster.request("POST", path, body)
    except ApiError:
        return False
    return True
