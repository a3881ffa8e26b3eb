"""The product as the demo installs it: as pods from its manifests, or as processes beside a control plane.

Pods are what a user has: the manifests unchanged but for flags that make a story short, the images of
`e2e.images`. A control plane without kubelets cannot run pods; there the same programs run as processes with
the same ServiceAccounts (`e2e.product`).
"""

import functools
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import yaml

from e2e import product
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.errors import ApiError, ClusterError
from e2e.images import archives
from e2e.product import DRIVER_NAMESPACE, NAMESPACE, Process, Product

LEASE = ("--lease-duration=3", "--renew-deadline=2", "--retry-period=0.5")
"""A takeover within seconds instead of the default's quarter of a minute."""
OPERATOR = "sharing-affinity-operator"
NAME_LABEL = "app.kubernetes.io/name"


class Installation(Protocol):
    """What the story does with the product."""

    def driver(self, *flags: str) -> None:
        """Run the NIC driver with these flags on the story's node, in place of one that runs there; returns
        when its devices (and its metadata, unless `--no-affinity`) are published."""
        ...

    def operators(self) -> None:
        """Install the operator in two replicas; returns when one leads and the other stands by."""
        ...

    def leader(self) -> str:
        """The active replica."""
        ...

    def kill_leader(self) -> str:
        """kill -9 of the active replica; the command that does it."""
        ...

    def close(self) -> None:
        """End what would outlive the cluster."""
        ...


def install(cluster: Cluster, node: NodePaths, driver_flags: tuple[str, ...]) -> Installation:
    """Custom resources and the driver's rights first, the rest as the story goes on."""
    if cluster.nodes():
        return AsPods(cluster, node)
    return AsProcesses(cluster, node, driver_flags)


class AsPods:
    """From the manifests, by Server-Side Apply; images are loaded into the nodes first.

    A user's own cluster has to have the images already (`python -m e2e images` makes them), and all that was
    applied to it is deleted again. ``tree`` may be another revision of the repository; its images are then
    tagged with ``tag``.
    """

    def __init__(self, cluster: Cluster, node: NodePaths, tree: Path = product.ROOT, tag: str = "") -> None:
        self._cluster = cluster
        self._node = node
        self._manifests = tree / "manifests"
        self._tag = tag
        self._applied: list[dict[str, Any]] = []
        if cluster.ours:
            for application in (archives.OPERATOR, archives.DRIVER):
                image = self._image(application.image)
                cluster.load(archives.application_archive(application, tree, image))
        self._apply("../crds")

    def _image(self, name: str) -> str:
        return f"{name.rpartition(':')[0]}:{self._tag}" if self._tag else name

    def driver(self, *flags: str, profile: str = "nic") -> None:
        self._apply(f"driver-{profile}", *flags)
        self._rollout("daemonset", f"affinity-driver-{profile}", DRIVER_NAMESPACE)
        product.wait_published(self._cluster, self._node.name, profile, "--no-affinity" not in flags)

    def operators(self, *flags: str) -> None:
        self._apply("overlays/default", *LEASE, *flags)
        self._rollout("deployment", OPERATOR, NAMESPACE)
        wait_for("one of the operators leads", self._leader_or_none)

    def leader(self) -> str:
        return wait_for("an operator leads", self._leader_or_none)

    def _leader_or_none(self) -> str | None:
        """The pod whose name the Lease's holder starts with; a pod that is gone leads no more."""
        holder = product.lease_holder(self._cluster)
        return next((name for name in self.pods(NAMESPACE, OPERATOR) if holder.startswith(name)), None)

    def pods(self, namespace: str, name: str) -> list[str]:
        """The pods of a workload that are not on their way out."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={NAME_LABEL}={name}"
        found = self._cluster.request("GET", path)["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def kill_leader(self) -> str:
        name = self.leader()
        killed = kill_container(name)
        # The kubelet would start the container again at once; the story wants to see the other replica.
        arguments = ("delete", "pod", name, "--namespace", NAMESPACE, "--grace-period=0", "--force")
        self._cluster.kubectl(*arguments)
        return f"kill -9 {killed}" if killed else f"kubectl {' '.join(arguments)}"

    def close(self) -> None:
        if self._cluster.ours:
            return
        # Pods first, while the driver can still unprepare their claims.
        self._cluster.kubectl("delete", "pods,resourceclaimtemplates", "--selector=app=demo", timeout=180)
        self._delete(self._applied)

    def stop(self) -> None:
        """Delete what runs, and wait until it is gone; rights, policies and custom resources stay."""
        kinds = (*product.WORKLOADS, "ValidatingWebhookConfiguration")
        self._delete([obj for obj in self._applied if obj["kind"] in kinds])
        for namespace in (NAMESPACE, DRIVER_NAMESPACE):
            path = f"/api/v1/namespaces/{namespace}/pods"
            wait_for(f"nothing runs in {namespace}", functools.partial(self._none, path))

    def _none(self, path: str) -> bool:
        return not self._cluster.request("GET", path)["items"]

    def _delete(self, objects: Sequence[dict[str, Any]]) -> None:
        for obj in reversed(objects):
            with suppress(ApiError):
                self._cluster.request("DELETE", self._cluster.api.resource_path(obj))

    def _apply(self, overlay: str, *flags: str) -> None:
        """Apply a folder of the manifests; `flags` are appended to the program's in its workload. The driver
        is kept to the story's node."""
        rendered = self._cluster.kubectl("kustomize", str(self._manifests / overlay))
        objects: list[dict[str, Any]] = [obj for obj in yaml.safe_load_all(rendered) if obj]
        for obj in objects:
            if obj["kind"] in ("Deployment", "DaemonSet"):
                pod = obj["spec"]["template"]["spec"]
                pod["containers"][0]["image"] = self._image(pod["containers"][0]["image"])
                # The webhook beside the operator has flags of its own.
                if pod["containers"][0]["args"][0] == "run":
                    pod["containers"][0]["args"] += flags
                if obj["kind"] == "DaemonSet":
                    pod["nodeSelector"] = {"kubernetes.io/hostname": self._node.name}
        self._applied += objects
        self._cluster.apply(*objects)

    def _rollout(self, kind: str, name: str, namespace: str) -> None:
        try:
            arguments = ("rollout", "status", f"{kind}/{name}", "--namespace", namespace, "--timeout=120s")
            self._cluster.kubectl(*arguments, timeout=130)
        except ClusterError as error:
            selector = f"--selector={NAME_LABEL}={name}"
            pods = self._cluster.kubectl("describe", "pods", "--namespace", namespace, selector)
            raise ClusterError(f"{error}\n{pods}") from None


def kill_container(pod: str) -> int | None:
    """SIGKILL for the program of a pod whose node is on this host, so that it cannot hand anything over.

    Its container is known by the host name in its environment. None where this user cannot see or end it.
    """
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"HOSTNAME={pod}".encode() in entry.joinpath(
                "environ"
            ).read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                return int(entry.name)
    return None


class AsProcesses:
    """On this host, with tokens of the manifests' ServiceAccounts."""

    def __init__(self, cluster: Cluster, node: NodePaths, driver_flags: tuple[str, ...]) -> None:
        self._product = Product(cluster)
        self._node = node
        self._driver_flags = driver_flags
        self._driver: Process | None = None
        self._operators: list[Process] = []
        self._product.install("../crds", "driver-nic")

    def driver(self, *flags: str) -> None:
        if self._driver is not None:
            self._driver.stop()
        self._driver = self._product.driver(self._node, *self._driver_flags, *flags)

    def operators(self) -> None:
        self._product.install("overlays/local")
        self._operators = [self._product.operator("operator-1", *LEASE)]
        wait_for("operator-1 leads", functools.partial(self._leads, "operator-1"))
        self._operators.append(self._product.operator("operator-2", *LEASE))

    def leader(self) -> str:
        names = [process.name for process in self._operators]
        wait_for("an operator leads", lambda: any(map(self._leads, names)))
        return next(name for name in names if self._leads(name))

    def _leads(self, name: str) -> bool:
        for process in self._operators:
            process.alive()
        try:
            return product.lease_holder(self._product.cluster) == name
        except ApiError:
            return False

    def kill_leader(self) -> str:
        name = self.leader()
        (active,) = (process for process in self._operators if process.name == name)
        active.kill()
        self._operators.remove(active)
        return f"kill -9 {name}"

    def close(self) -> None:
        self._product.close()
