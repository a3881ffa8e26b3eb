"""The operator as a real process against a real control plane, and objects as drivers and users write
them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from e2e.cluster import PATIENCE, Cluster
from e2e.errors import ApiError
from sharing_affinity.api.reasons import CLAIMS_ALLOCATED

ROOT = Path(__file__).parents[2]
SYSTEM = "sharing-affinity-system"
ACCOUNT = "sharing-affinity-operator"
DRIVER = "nic.sharingaffinity.dev"
CLASS = "shared-nic.sharingaffinity.dev"
FENCE = {"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}
RECORD = "sharingaffinity.dev/allocation"
FINALIZER = "resource.kubernetes.io/delete-protection"
MERGE = "application/merge-patch+json"
SUBNET = {
    "name": "subnet",
    "expression": 'object.kind == "NICConfig" && has(object.subnet) ? object.subnet : ""',
}
#: Times that make a takeover quick; the defaults are meant for real networks.
QUICK_LEASE = ("--lease-duration", "2", "--renew-deadline", "1.3", "--retry-period", "0.25")

Json = dict[str, Any]


def install(cluster: Cluster) -> Path:
    """Apply what ships (without the Deployment) and return a kubeconfig of the operator's ServiceAccount."""
    cluster.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/overlays/local"))
    return cluster.service_account_kubeconfig(SYSTEM, ACCOUNT)


class Process:
    """One ``sharing-affinity run``. Its log is kept; `kill` is SIGKILL, `stop` is SIGTERM."""

    def __init__(
        self, kubeconfig: Path, *flags: str, identity: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self.identity = identity or f"op-{uuid.uuid4().hex[:8]}"
        self.lines: list[str] = []
        self.port = 0
        command = [
            sys.executable, "-m", "sharing_affinity", "run",
            "--kubeconfig", str(kubeconfig), "--namespace", SYSTEM,
            "--http", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug",
            "--identity", self.identity, *flags,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if not self.port and (found := re.search(r'"port": (\d+)', line)):
                self.port = int(found[1])

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def get(self, path: str) -> tuple[int, str]:
        """A probe: status and text; status 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, labels: str = "") -> float:
        """A metric's value, summed over its labels or only those that contain ``labels``; 0.0 when it is
        not there."""
        _, text = self.get("/metrics")
        inside = rf"{{[^}}]*{re.escape(labels)}[^}}]*}}" if labels else r"(?:{[^}]*})?"
        values = re.findall(rf"^sharing_affinity_{name}{inside} (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))

    def allocating(self) -> bool:
        return self.said('"event": "allocating"') and self.metric("leader") == 1

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def stop(self, within: float = 60) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextmanager
def running(kubeconfig: Path, *flags: str, wait: bool = True, **options: Any) -> Iterator[Process]:
    """An operator that allocates; stopped at the end, its log printed for the case that the test fails."""
    process = Process(kubeconfig, *QUICK_LEASE, *flags, **options)
    try:
        if wait:
            eventually("the operator to allocate", process.allocating, process=process)
        yield process
    finally:
        if process.process.poll() is None:
            process.stop()
        print(f"--- {process.identity}, exit {process.process.returncode} ---\n{process.log[-20000:]}")


def eventually(
    what: str, probe: Callable[[], Any], seconds: float = PATIENCE, process: Process | None = None
) -> Any:
    """What ``probe`` returns once that is true; AssertionError naming ``what`` otherwise.

    Parts of an object that are missing count as "not yet".
    """
    deadline = time.monotonic() + seconds
    while True:
        if process is not None and process.process.poll() is not None:
            raise AssertionError(f"the operator ended while waiting for {what}:\n{process.log[-5000:]}")
        with suppress(LookupError):
            if found := probe():
                return found
        assert time.monotonic() < deadline, f"timed out after {seconds} s waiting for {what}"
        time.sleep(0.05)


class Site:
    """One test's part of a cluster: nodes, pools and a class of its own, pods and claims in its namespace.

    The driver's name and the class are the test's own, so that tests on one control plane do not meet.
    """

    def __init__(self, cluster: Cluster, namespace: str, domain: str = "sharingaffinity.dev") -> None:
        self.cluster, self.namespace = cluster, namespace
        self.tag = namespace.rpartition("-")[2]
        self._slices: list[str] = []
        self.driver = f"nic-{self.tag}.{domain}"
        self.device_class = f"shared-nic-{self.tag}.sharingaffinity.dev"
        self._made: list[str] = []
        self._generation = 0
        self.create_cluster(
            "/apis/resource.k8s.io/v1/deviceclasses",
            {
                "metadata": {"name": self.device_class},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{self.driver}"'}}]},
            },
        )

    # -- cluster-scoped -----------------------------------------------------------------------------

    def create_cluster(self, path: str, body: Json) -> Json:
        stored: Json = self.cluster.request("POST", path, body)
        self._made.append(f"{path}/{stored['metadata']['name']}")
        return stored

    def close(self) -> None:
        """Delete what is not in the namespace; pods first, so that nothing is bound to a node that is
        gone."""
        self.delete_pods()
        for path in reversed(self._made):
            self._delete(path)

    def _delete(self, path: str, **options: Any) -> None:
        try:
            self.cluster.request("DELETE", path, options or None)
        except ApiError as error:
            if error.status != 404:
                raise

    def node(self, name: str, **options: Any) -> str:
        """A hand-made node; the name gets the test's tag."""
        full = f"{name}-{self.tag}"
        self.cluster.add_node(full, **options)
        self._made.append(f"/api/v1/nodes/{full}")
        return full

    def publish(
        self,
        node: str,
        devices: Sequence[str] = ("eth1", "eth2"),
        *,
        slots: int = 16,
        extractors: Sequence[Json] | None = (SUBNET,),
        more: Sequence[Sequence[Json]] = (),
        fenced: bool = True,
        pool: str | None = None,
    ) -> None:
        """A pool as the NIC driver publishes it: metadata first, then devices, then the old generation goes.

        ``extractors=None``: no metadata at all. ``more``: further metadata slices of the pool.
        """
        pool = pool or node
        old = [path for path in self._slices if f"/{pool}-" in path]
        self._generation += 1
        where = {"driver": self.driver, "nodeName": node}
        identity = {"name": pool, "generation": self._generation}
        metadata = ([extractors] if extractors is not None else []) + [list(entries) for entries in more]
        for entries in metadata:
            body = {
                "apiVersion": "sharingaffinity.dev/v1alpha1",
                "kind": "SharingAffinitySlice",
                "metadata": {"generateName": f"{pool}-"},
                "spec": {
                    **where,
                    "pool": {**identity, "resourceSliceCount": 1 + len(metadata)},
                    "sharingAffinity": list(entries),
                },
            }
            self._add_slice("/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices", body)
        body = {
            "metadata": {"generateName": f"{pool}-"},
            "spec": {
                **where,
                "pool": {**identity, "resourceSliceCount": 1},
                "devices": [self.device(name, slots, fenced) for name in devices],
            },
        }
        self._add_slice("/apis/resource.k8s.io/v1/resourceslices", body)
        for path in old:
            self._delete(path)
            self._slices.remove(path)

    def _add_slice(self, path: str, body: Json) -> None:
        self.create_cluster(path, body)
        self._slices.append(self._made[-1])

    def withdraw(self, pool: str) -> None:
        """The pool's slices go, as when the kubelet restarts."""
        for path in [path for path in self._slices if f"/{pool}-" in path]:
            self._delete(path)
            self._slices.remove(path)

    def device(self, name: str, slots: int = 16, fenced: bool = True) -> Json:
        result: Json = {
            "name": name,
            "allowMultipleAllocations": True,
            "capacity": {
                "slots": {
                    "value": str(slots),
                    "requestPolicy": {"default": "1", "validRange": {"min": "1"}},
                }
            },
        }
        if fenced:
            result["taints"] = [dict(FENCE)]
        return result

    # -- namespaced ---------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "", subresource: str = "") -> str:
        base = {"claim": "/apis/resource.k8s.io/v1", "pod": "/api/v1", "event": "/apis/events.k8s.io/v1"}[
            kind
        ]
        plural = {"claim": "resourceclaims", "pod": "pods", "event": "events"}[kind]
        parts = (f"{base}/namespaces/{self.namespace}/{plural}", name, subresource)
        return "/".join(part for part in parts if part)

    def claim_spec(
        self, subnet: str | None = "a", *, config: Json | None = None, slots: int | None = None
    ) -> Json:
        request: Json = {"name": "nic", "exactly": {"deviceClassName": self.device_class}}
        if slots is not None:
            request["exactly"]["capacity"] = {"requests": {"slots": str(slots)}}
        devices: Json = {"requests": [request]}
        if config is None and subnet is not None:
            config = {"apiVersion": "nic.sharingaffinity.dev/v1", "kind": "NICConfig", "subnet": subnet}
        if config is not None:
            devices["config"] = [{"opaque": {"driver": self.driver, "parameters": config}}]
        return {"devices": devices}

    def claim(self, name: str, subnet: str | None = "a", **options: Any) -> Json:
        body = {"metadata": {"name": name}, "spec": self.claim_spec(subnet, **options)}
        stored: Json = self.cluster.request("POST", self.path("claim"), body)
        return stored

    def add_claim(self, name: str, spec: Json) -> Json:
        stored: Json = self.cluster.request(
            "POST", self.path("claim"), {"metadata": {"name": name}, "spec": spec}
        )
        return stored

    def get_claim(self, name: str) -> Json:
        found: Json = self.cluster.request("GET", self.path("claim", name))
        return found

    def delete_claim(self, name: str) -> None:
        self._delete(self.path("claim", name))

    def allocation(self, claim: str) -> tuple[str, str] | None:
        """(pool, device) of the claim's first result, or None."""
        allocation = (self.get_claim(claim).get("status") or {}).get("allocation")
        if not allocation:
            return None
        result = allocation["devices"]["results"][0]
        return result["pool"], result["device"]

    def pod(self, name: str, *claims: str, **spec: Any) -> Json:
        """A pod with these claims (its own name when none is given)."""
        names = claims or (name,)
        body = {
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "resources": {"claims": [{"name": f"c{number}"} for number in range(len(names))]},
                    }
                ],
                "resourceClaims": [
                    {"name": f"c{number}", "resourceClaimName": claim} for number, claim in enumerate(names)
                ],
                **spec,
            },
        }
        stored: Json = self.cluster.request("POST", self.path("pod"), body)
        return stored

    def beside(self, label: str) -> Json:
        """Affinity of a pod that only wants to be where a pod of this label is, in a form that node choice
        does not model: its namespaces are chosen by label."""
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"beside": label}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
        }
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def run(self, name: str, subnet: str | None = "a", **spec: Any) -> None:
        """A claim and a pod of the same name."""
        self.claim(name, subnet)
        self.pod(name, **spec)

    def get_pod(self, name: str) -> Json:
        found: Json = self.cluster.request("GET", self.path("pod", name))
        return found

    def gone(self, pod: str) -> bool:
        try:
            self.get_pod(pod)
        except ApiError as error:
            return error.status == 404
        return False

    def condition_of(self, pod: str, kind: str = CLAIMS_ALLOCATED) -> Json | None:
        found = self.get_pod(pod)["status"].get("conditions") or ()
        return next((condition for condition in found if condition["type"] == kind), None)

    def node_of(self, pod: str) -> str:
        return str(self.get_pod(pod)["spec"].get("nodeName", ""))

    def delete_pod(self, name: str) -> None:
        self._delete(self.path("pod", name), gracePeriodSeconds=0)

    def delete_pods(self) -> None:
        for pod in self.cluster.request("GET", self.path("pod"))["items"]:
            self.delete_pod(pod["metadata"]["name"])

    def events(self, name: str = "", reason: str = "") -> list[Json]:
        found = self.cluster.request("GET", self.path("event"))["items"]
        return [
            event
            for event in found
            if event.get("reportingController") == "sharingaffinity.dev/operator"
            and (not name or event["regarding"]["name"] == name)
            and (not reason or event["reason"] == reason)
        ]

    def table(self) -> dict[str, Json]:
        """The lock table as SharingAffinityPool shows it: device to its row, over this test's pools."""
        path = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinitypools"
        rows: dict[str, Json] = {}
        for view in self.cluster.request("GET", path)["items"]:
            if view["spec"]["driver"] == self.driver:
                for device in (view.get("status") or {}).get("devices") or []:
                    rows[f"{view['spec']['pool']}/{device['name']}"] = device
        return rows

    def condition(self, name: str) -> dict[str, tuple[str, str]]:
        """Conditions of this test's metadata slices: type to (status, reason)."""
        path = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
        found = {}
        for item in self.cluster.request("GET", path)["items"]:
            if item["spec"]["driver"] == self.driver and item["spec"]["pool"]["name"] == name:
                for condition in (item.get("status") or {}).get("conditions") or []:
                    found[condition["type"]] = (condition["status"], condition["reason"])
        return found
