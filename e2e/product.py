"""The product's own processes, run beside a local cluster with the rights they will have inside one.

The manifests are applied as a user would apply them; operator and driver then run as processes on this host
with tokens of the manifests' ServiceAccounts (the driver's bound to its node). So what is tested is the RBAC
and the admission policies that ship, without building images first.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from e2e import local
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.errors import ClusterError

ROOT = Path(__file__).parent.parent
MANIFESTS = ROOT / "manifests"
NAMESPACE = "sharing-affinity-system"
DRIVER_NAMESPACE = "sharing-affinity-drivers"
OPERATOR_ACCOUNT = "sharing-affinity-operator"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sharing-affinity-operator"
WORKLOADS = ("Deployment", "DaemonSet", "PodDisruptionBudget")
METADATA = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
NIC_DRIVER = "nic.sharingaffinity.dev"
PYTHON_PATH = f"{ROOT / 'operator'}:{ROOT / 'driver'}"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the product. ``log`` holds all it wrote."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait(10)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM; returns the exit code. One that does not go within ``seconds`` is killed and reported."""
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"{self.name} did not stop within {seconds:g} s\n{self.tail()}") from None

    def alive(self) -> None:
        """Raise, with the end of its log, when it has ended."""
        if (code := self.popen.poll()) is not None:
            raise ClusterError(f"{self.name} ended with exit code {code}\n{self.tail()}")

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Product:
    """Operators and drivers on one cluster; leaving the context ends those still running."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._processes: list[Process] = []
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that still run, operators before drivers: pods that end need their unprepare."""
        for process in self._processes:
            if process.popen.poll() is None:
                with suppress(ClusterError):
                    process.stop(5)

    def install(self, *overlays: str) -> None:
        """``kubectl apply -k`` of each folder under ``manifests/``, without the workloads in them, whose
        processes run here."""
        for overlay in overlays:
            rendered = yaml.safe_load_all(self.cluster.kubectl("kustomize", str(MANIFESTS / overlay)))
            self.cluster.apply(*(obj for obj in rendered if obj and obj["kind"] not in WORKLOADS))

    # -- the operator -------------------------------------------------------------------------------------

    def operator(self, name: str, *flags: str) -> Process:
        """Start one replica, called ``name`` in the Lease; probes and metrics on a free loopback port."""
        (port,) = local.free_ports(1)
        kubeconfig = self.cluster.service_account_kubeconfig(NAMESPACE, OPERATOR_ACCOUNT)
        argv = [
            *(sys.executable, "-m", "sharing_affinity", "run", f"--kubeconfig={kubeconfig}"),
            *(f"--namespace={NAMESPACE}", f"--http=127.0.0.1:{port}", f"--identity={name}", *flags),
        ]
        return self._start(name, argv)

    # -- the driver ---------------------------------------------------------------------------------------

    def driver(
        self, node: NodePaths, *flags: str, profile: str = "nic", env: Mapping[str, str] | None = None
    ) -> Process:
        """Start the mock driver on one node, and wait until it has published its devices (and its metadata,
        unless ``flags`` say ``--no-affinity``)."""
        account = f"affinity-driver-{profile}"
        kubeconfig = self.cluster.service_account_kubeconfig(DRIVER_NAMESPACE, account, node=node.name)
        argv = [
            *(sys.executable, "-m", "affinity_driver", "run", f"--profile={profile}"),
            *(f"--node-name={node.name}", f"--kubeconfig={kubeconfig}"),
            *(f"--kubelet-root-dir={node.kubelet_root}", f"--cdi-dir={node.cdi}", *flags),
        ]
        process = self._start(f"driver-{node.name}", argv, env)
        affinity = "--no-affinity" not in flags
        wait_published(self.cluster, node.name, profile, affinity, process.alive)
        return process

    # -- processes ----------------------------------------------------------------------------------------

    def _start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        self._started += 1
        log = self.cluster.folder / "logs" / f"{self._started:02}-{name}.log"
        log.parent.mkdir(exist_ok=True)
        popen = self.cluster.enter(argv, {"PYTHONPATH": PYTHON_PATH, **(env or {})}, log)
        process = Process(name, popen, log)
        self._processes.insert(0, process)
        return process


def command(cluster: Cluster, *args: str) -> str:
    """Run ``sharing-affinity ARGS`` as the cluster's administrator; its standard output. Raises on
    failure."""
    argv = [sys.executable, "-m", "sharing_affinity", *args, f"--kubeconfig={cluster.kubeconfig}"]
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    run = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    if run.returncode:
        raise ClusterError(f"sharing-affinity {' '.join(args)}: exit {run.returncode}: {run.stderr.strip()}")
    return run.stdout


def lease_holder(cluster: Cluster) -> str:
    """The identity in the operator's Lease, or nothing."""
    lease: dict[str, Any] = cluster.request("GET", LEASE)
    return str(lease["spec"].get("holderIdentity") or "")


def wait_published(
    cluster: Cluster, node: str, profile: str, affinity: bool, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until a driver has published its devices on a node and, with ``affinity``, fence and metadata of
    the same generation. ``check`` is called in between and may raise."""
    pool = (f"{profile}.sharingaffinity.dev", node)

    def of_pool(path: str) -> list[dict[str, Any]]:
        slices = cluster.request("GET", path)["items"]
        return [s for s in slices if (s["spec"]["driver"], s["spec"].get("nodeName")) == pool]

    def generations(slices: list[dict[str, Any]]) -> set[int]:
        return {s["spec"]["pool"]["generation"] for s in slices}

    def published() -> bool:
        check()
        devices = of_pool("/apis/resource.k8s.io/v1/resourceslices")
        metadata = of_pool(METADATA) if affinity else []
        fenced = all("taints" in d for s in devices for d in s["spec"].get("devices") or [])
        return bool(devices) and (not affinity or (fenced and generations(devices) == generations(metadata)))

    wait_for(f"the {profile} driver on {node} publishes", published)
