"""`Cluster`: what tests and the demo hold in their hands, the same for every backend.

What differs between backends (entering the cluster's namespaces, restarting a component, a node's folders)
is behind the `Backend` protocol; the rest needs a kubeconfig only.
"""

import functools
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from e2e import pki
from e2e.api import STRATEGIC_PATCH, ApiClient
from e2e.errors import ApiError, ClusterError

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds after which `wait_for` gives up: enough for a kubelet to try a failed prepare again (60 to 90)."""


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Folders of a real node, valid on the host, inside the cluster and on the node alike.

    On the node the same folders are also at their usual paths (`/var/lib/kubelet`, `/var/run/cdi`).
    `plugins` holds one folder per DRA driver with its socket, `registry` the registration sockets,
    `cdi` the CDI files.
    """

    name: str
    address: str
    kubelet_root: Path
    plugins: Path
    registry: Path
    cdi: Path


class Backend(Protocol):
    """What a kind of cluster must offer; operations it cannot do raise `ClusterError`."""

    def nodes(self) -> Sequence[NodePaths]: ...
    def enter(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path | None, machine: str | None
    ) -> subprocess.Popen[bytes]: ...
    def kill(self, component: str, patience: float) -> None: ...
    def start(self, component: str) -> None: ...
    def reboot(self, node: str, wipe_cdi: bool) -> None: ...
    def logs(self, component: str) -> str: ...
    def load(self, archive: Path) -> None: ...
    def down(self) -> None: ...


class Cluster:
    """A running cluster.

    `kubeconfig` is the administrator's; `url` is the API server's address as the host reaches it;
    `kubernetes` is the minor version ("1.37"); `folder` is a place for files of this cluster, gone after
    `down`. `ours` is False for a user's own cluster, which outlives us: leave it as it was.
    """

    def __init__(
        self,
        name: str,
        kubernetes: str,
        kubeconfig: Path,
        kubectl: Path,
        folder: Path,
        backend: Backend,
        ours: bool = True,
    ) -> None:
        self.name = name
        self.kubernetes = kubernetes
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.backend = backend
        self.ours = ours
        self.api = ApiClient(kubeconfig)
        self.url = self.api.url
        self._kubectl = kubectl

    # -- the API ------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Any:
        """One API call as administrator; see `ApiClient.request` for results and errors."""
        return self.api.request(method, path, body, content_type=content_type, timeout=timeout)

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
        """Run kubectl as administrator; returns its standard output. A failure raises, with what it wrote
        to stderr.
        """
        # Its cache would otherwise be made below the user's home.
        command = [
            str(self._kubectl),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.folder / 'kubectl'}",
        ]
        command += args
        run = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
        if check and run.returncode:
            raise ClusterError(f"kubectl {' '.join(args)}: exit {run.returncode}: {run.stderr.strip()}")
        return run.stdout

    def apply(self, *manifests: Path | Mapping[str, Any]) -> None:
        """Server-side apply of objects or of YAML files; CustomResourceDefinitions are waited for."""
        objects: list[dict[str, Any]] = []
        for manifest in manifests:
            if isinstance(manifest, Path):
                objects += [obj for obj in yaml.safe_load_all(manifest.read_text()) if obj]
            else:
                objects.append(dict(manifest))
        definitions = []
        for obj in objects:
            self.api.apply(obj)
            if obj["kind"] == "CustomResourceDefinition":
                definitions.append(self.api.resource_path(obj))
        for path in definitions:
            wait_for(f"{path} established", functools.partial(self._established, path))

    def _established(self, path: str) -> bool:
        definition = self.request("GET", path)
        conditions = definition["status"].get("conditions") or []
        if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return False
        # Established says that it is served soon: until its storage is there, reads answer 429.
        spec = definition["spec"]
        for version in spec["versions"]:
            if version["served"]:
                listed = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1"
                self.request("GET", listed)
        return True

    def service_account_kubeconfig(
        self, namespace: str, name: str, node: str | None = None, seconds: int = 7200
    ) -> Path:
        """A kubeconfig with a fresh token of an existing ServiceAccount.

        With `node`, the token is bound to that Node object and carries its name, as the token of a pod
        there would.
        """
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        if node is not None:
            uid = self.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.request(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        )
        target = self.folder / "kubeconfigs" / f"{namespace}.{name}{'.' + node if node else ''}.kubeconfig"
        target.parent.mkdir(mode=0o700, exist_ok=True)
        target.unlink(missing_ok=True)
        authority = self.api.authority
        pki.write_kubeconfig(target, self.url, authority, {"token": token["status"]["token"]}, namespace)
        return target

    # -- nodes --------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
        allocatable: Mapping[str, str] | None = None,
        unschedulable: bool = False,
    ) -> dict[str, Any]:
        """A hand-made Ready node, for clusters without kubelets. Pods bound to it stay Pending; returns the
        Node.
        """
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": [dict(taint) for taint in taints], "unschedulable": unschedulable},
        }
        self.request("POST", "/api/v1/nodes", node)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "HandMade", "message": "hand-made, no kubelet"}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        resources = {"cpu": "64", "memory": "256Gi", "pods": "250", **(allocatable or {})}
        status = {"status": {"capacity": resources, "allocatable": resources, "conditions": [ready]}}
        result: dict[str, Any] = self.request(
            "PATCH", f"/api/v1/nodes/{name}/status", status, content_type=STRATEGIC_PATCH
        )
        return result

    def nodes(self) -> Sequence[NodePaths]:
        """The real nodes; empty for a control plane alone."""
        return self.backend.nodes()

    def node(self, name: str) -> NodePaths:
        """The folders of one real node."""
        for node in self.nodes():
            if node.name == name:
                return node
        raise ClusterError(
            f"cluster {self.name} has no real node {name}; it has {[n.name for n in self.nodes()]}"
        )

    # -- processes ----------------------------------------------------------------------------------

    def enter(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        node: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process inside the cluster's network and mount namespaces (on the host where it has none).

        With `node`, in the mount namespace of that node, where kubelet's folders are at
        `/var/lib/kubelet` and CDI files in `/var/run/cdi`. Its environment is `env` plus PATH and the
        cluster's mark, so that `down` also ends it. Output is appended to `log`, or can be read from
        the returned process's stdout (stderr included) when `log` is None.
        """
        return self.backend.enter(argv, env or {}, log, node)

    def kill(self, component: str) -> None:
        """kill -9 one component and leave it dead until `start`. Components: `status` lists them."""
        self.backend.kill(component, 0)

    def stop(self, component: str) -> None:
        """End one component (SIGTERM, then SIGKILL after 10 s) and leave it so until `start`."""
        self.backend.kill(component, 10)

    def start(self, component: str) -> None:
        """Start a component that was killed or stopped; returns when it's up (API server: ready)."""
        self.backend.start(component)

    def restart(self, component: str, *, kill9: bool = False) -> None:
        """End and start one component. For the API server `kill9` is the quick way: SIGTERM waits for open
        watches.
        """
        self.backend.kill(component, 0 if kill9 else 10)
        self.backend.start(component)

    def reboot(self, node: str, *, wipe_cdi: bool = False) -> None:
        """Power-cycle a node: containers die without unprepare, the runtime's volatile state is lost, boot
        id changes.
        """
        self.backend.reboot(node, wipe_cdi)

    def logs(self, component: str) -> str:
        """All that a component has written since `up`."""
        return self.backend.logs(component)

    def load(self, archive: Path) -> None:
        """Import an OCI archive on every real node."""
        self.backend.load(archive)

    def down(self) -> None:
        """Take the cluster down; nothing of it is left."""
        self.backend.down()


def wait_for(what: str, probe: Callable[[], T | None], seconds: float = PATIENCE, pause: float = 0.05) -> T:
    """Call `probe` until it returns something true; `ClusterError` naming `what` after `seconds`.

    Refused connections, API errors and parts of an object that are missing count as "not yet".
    """
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while True:
        try:
            if result := probe():
                return result
        except (OSError, ApiError, LookupError) as error:
            last = error
        if time.monotonic() > deadline:
            raise ClusterError(f"timed out after {seconds:g} s: {what}" + (f" ({last!r})" if last else ""))
        time.sleep(pause)
