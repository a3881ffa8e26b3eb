"""``locks`` and ``explain`` against a real cluster, with the rights of different callers: what they could not
see is said, with what that means, and what there is no answer without ends with exit code 3."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from harness.operator import FINALIZER, Site, eventually, install

from e2e.cluster import Cluster

pytestmark = pytest.mark.integration
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
Json = dict[str, Any]


class Story(Site):
    """A node with two devices: eth1 held by a claim of another namespace, eth2 clean; a pod that waits."""

    def __init__(self, cluster: Cluster, namespace: str, other: str) -> None:
        super().__init__(cluster, namespace)
        self.there = self.node("n1")
        self.publish(self.there)
        self.elsewhere = other
        self.hold(other, "theirs", "b", "eth1")
        self.create(f"/api/v1/namespaces/{namespace}/pods", self.waiting("mine"))
        self.claim("mine", "a")

    def create(self, path: str, body: Json) -> Json:
        stored: Json = self.cluster.request("POST", path, body)
        return stored

    def waiting(self, name: str) -> Json:
        """A pod that the scheduler leaves alone: no operator runs here."""
        return {
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "c", "image": "none"}],
                "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
            },
        }

    def hold(self, namespace: str, name: str, subnet: str, device: str) -> None:
        """A claim that somebody allocated onto a device, and that nobody uses yet."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        spec = self.claim_spec(subnet)
        made = self.create(path, {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": spec})
        result = {
            "request": spec["devices"]["requests"][0]["name"],
            "driver": self.driver,
            "pool": self.there,
            "device": device,
            "shareID": "7a4b1c1e-0000-4000-8000-000000000001",
            "consumedCapacity": {"slots": "1"},
        }
        config = [{"source": "FromClaim", **entry} for entry in spec["devices"]["config"]]
        made["status"] = {
            "allocation": {
                "devices": {"results": [result], "config": config},
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            }
        }
        self.cluster.request("PUT", f"{path}/{name}/status", made)

    def let_go(self, namespace: str, name: str) -> None:
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        self.cluster.request(
            "PATCH", path, {"metadata": {"finalizers": None}}, content_type="application/merge-patch+json"
        )
        self._delete(path)

    def caller(self, name: str, *, role: str = "", within: str = "", rules: list[Json] | None = None) -> Path:
        """The kubeconfig of a fresh ServiceAccount bound to a role, in one namespace or everywhere."""
        self.create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": name}})
        full = f"{name}-{self.tag}"
        if rules is not None:
            self.create_cluster(f"{RBAC}/clusterroles", {"metadata": {"name": full}, "rules": rules})
            role = full
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        binding = {
            "metadata": {"name": full},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        if within:
            self.create(f"{RBAC}/namespaces/{within}/rolebindings", binding)
        else:
            self.create_cluster(f"{RBAC}/clusterrolebindings", binding)
        return self.cluster.service_account_kubeconfig(self.namespace, name)


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    install(control_plane)
    return control_plane


@pytest.fixture
def story(installed: Cluster, namespace: str) -> Iterator[Story]:
    control_plane = installed
    other = f"{namespace}-other"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    made = Story(control_plane, namespace, other)
    yield made
    made.let_go(other, "theirs")
    made.close()
    control_plane.request("DELETE", f"/api/v1/namespaces/{other}")


def command(name: str, kubeconfig: Path, *argv: str) -> tuple[int, str, str]:
    run = subprocess.run(
        [sys.executable, "-m", "sharing_affinity", name, *argv, "--kubeconfig", str(kubeconfig)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return run.returncode, run.stdout, run.stderr


def read(name: str, kubeconfig: Path, *argv: str, code: int = 0) -> Json:
    """The JSON answer, checked against its schema, and what is unseen said on standard error too."""
    found = command(name, kubeconfig, *argv, "-o", "json")
    assert found[0] == code, found
    content: Json = json.loads(found[1])
    jsonschema.validate(content, json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    assert all(entry["means"] in found[2] for entry in content["unseen"])
    return content


def devices(story: Story, content: Json) -> dict[str, Json | None]:
    pool = next(p for p in content["pools"] if p["pool"] == story.there)
    return {device["device"]: device["lock"] for device in pool["devices"]}


def unseen(content: Json) -> dict[str, str | None]:
    return {entry["kind"]: entry["namespace"] for entry in content["unseen"]}


def test_bound_to_view_alone(story: Story) -> None:
    """Aggregation gives whoever may view the cluster all of ``locks``, and ``explain`` but for the nodes."""
    viewer = story.caller("viewer", role="view")
    eventually(
        "the roles to be aggregated", lambda: command("locks", viewer, "--pool", story.there)[0] == 0, 30
    )
    content = read("locks", viewer)
    assert devices(story, content) == {"eth1": {"subnet": "b"}, "eth2": None}
    assert unseen(content) == {}

    content = read("explain", viewer, "pod", "mine")
    assert (content["node"], content["devices"][0]["device"]) == (story.there, "eth2")
    assert unseen(content) == {"Node": None, "PersistentVolume": None}
    assert yaml.safe_load(command("locks", viewer, "-o", "yaml")[1])["pools"]


@pytest.mark.parametrize("role", ["sharing-affinity-view", "sharing-affinity-admin"])
def test_bound_to_our_roles(story: Story, role: str) -> None:
    caller = story.caller("caller", role=role)
    assert unseen(read("locks", caller)) == {}
    content = read("explain", caller, "pod", f"{story.namespace}/mine")
    assert content["node"] == story.there
    expected = {"Node": None, "PersistentVolume": None} if role.endswith("view") else {}
    assert unseen(content) == expected


def test_claims_and_pods_of_one_namespace_only(story: Story) -> None:
    """A tenant who sees devices but nobody else's claims: the lock of another namespace is not in the answer,
    and the answer says that it may be wrong."""
    devices_only = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices", "deviceclasses"],
            "verbs": ["list"],
        },
        {"apiGroups": ["sharingaffinity.dev"], "resources": ["sharingaffinityslices"], "verbs": ["list"]},
    ]
    tenant = story.caller("tenant", rules=devices_only)
    own = {
        "metadata": {"name": "tenant-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": story.namespace}],
    }
    story.create(f"{RBAC}/namespaces/{story.namespace}/rolebindings", own)
    eventually("view to list claims", lambda: command("locks", tenant)[0] == 0)

    content = read("locks", tenant)
    assert devices(story, content) == {"eth1": None, "eth2": None}
    assert unseen(content) == {"ResourceClaim": story.namespace, "DeviceTaintRule": None}
    assert "theirs" not in json.dumps(content)

    # The pod's namespace is the kubeconfig's own.
    content = read("explain", tenant, "pod", "mine")
    assert content["devices"][0]["device"] == "eth1"
    assert unseen(content) == {
        "ResourceClaim": story.namespace,
        "Pod": story.namespace,
        "PersistentVolumeClaim": story.namespace,
        "Node": None,
        "PersistentVolume": None,
        "DeviceTaintRule": None,
    }
    code, _, said = command("explain", tenant, "pod", f"{story.elsewhere}/mine")
    assert code == 3
    assert "list resourceclaims.resource.k8s.io, pods" in said


def test_no_rights_to_what_matters_is_no_access(story: Story) -> None:
    nobody = story.caller("nobody", role="view", within=story.namespace)
    for argv in (("locks",), ("explain", "pod", "mine")):
        code, out, said = command(argv[0], nobody, *argv[1:])
        assert (code, out) == (3, "")
        assert "resourceslices.resource.k8s.io" in said
        assert "sharing-affinity-view" in said


def test_a_pod_that_waits_and_one_that_is_not_there(story: Story) -> None:
    admin = story.cluster.kubeconfig
    story.hold(story.namespace, "also", "c", "eth2")
    content = read("explain", admin, "pod", "mine", "-n", story.namespace, code=1)
    reasons = {d["device"]: d["reason"] for n in content["nodes"] for d in n["devices"]}
    assert "locked to incompatible" in reasons["eth1"]
    # What a pod's owner reads never names another tenant's claims.
    assert "theirs" not in json.dumps(content)
    code, _, said = command("explain", admin, "pod", "absent", "-n", story.namespace)
    assert code == 2
    assert f"{story.namespace}/absent" in said
    story.let_go(story.namespace, "also")


def test_watch_tells_every_change_on_a_line(story: Story) -> None:
    viewer = story.caller("watcher", role="sharing-affinity-view")
    argv = ["locks", "--watch", "-o", "json", "--pool", story.there, "--kubeconfig", str(viewer)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sharing_affinity", *argv], stdout=subprocess.PIPE, text=True
    )
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=lambda out: [lines.put(line) for line in out], args=(process.stdout,))
    reader.start()
    try:
        assert devices(story, json.loads(lines.get(timeout=30)))["eth2"] is None
        story.hold(story.namespace, "new", "c", "eth2")
        assert devices(story, json.loads(lines.get(timeout=30)))["eth2"] == {"subnet": "c"}
        story.let_go(story.namespace, "new")
        content = json.loads(lines.get(timeout=30))
        assert devices(story, content)["eth2"] is None
        jsonschema.validate(content, json.loads((SCHEMAS / "locks.schema.json").read_text()))
    finally:
        process.terminate()
        process.wait(10)
        reader.join(10)
