"""The `local` backend: a real Kubernetes on this host from the cached binaries, without Docker.

Two shapes. With `nodes=0` it is a control plane of plain processes on loopback ports; that needs no
privileges and is up in three seconds. With real nodes everything lives in network and mount namespaces of
its own (`e2e.namespaces`).

`up` first clears away whatever a killed `up` of the same name left, and takes down what it has started when
it is interrupted.
"""

import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e import build, controlplane, paths, pki, processes, state, versions
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.controlplane import ControlPlane, Ports
from e2e.errors import ClusterError
from e2e.locking import exclusive
from e2e.state import State

CONTROL_PLANE = ("etcd", "apiserver", "controller-manager", "scheduler")


@dataclass(frozen=True, slots=True)
class Options:
    """What `up` is asked for. `controllers`: None takes a few for `nodes=0` and all otherwise; ("*",) means
    all.
    """

    name: str = "default"
    kubernetes: str = versions.DEFAULT_MINOR
    nodes: int = 2
    feature_gates: str = ""
    runtime_config: str = ""
    controllers: tuple[str, ...] | None = None


class LocalBackend:
    """Operations on a running local cluster, from its folder and state file."""

    def __init__(self, folder: Path, known: State) -> None:
        self._folder = folder
        self._state = known

    def nodes(self) -> Sequence[NodePaths]:
        return []

    def enter(self, argv: Sequence[str], env: Mapping[str, str], log: Path | None) -> subprocess.Popen[bytes]:
        marked = {**processes.environment(self._folder, f"entered-{Path(argv[0]).name}"), **env}
        command = [*self._prefix(), *argv]
        if log is not None:
            return processes.spawn(command, marked, log)
        return subprocess.Popen(
            command, env=marked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def kill(self, component: str, patience: float) -> None:
        self._command(component)
        sig = signal.SIGTERM if patience else signal.SIGKILL
        processes.stop(self._folder, processes.is_component(component), sig, patience)

    def start(self, component: str) -> None:
        argv = self._command(component)
        if any(map(processes.is_component(component), processes.find(self._folder))):
            raise ClusterError(f"{component} is running already")
        env = processes.environment(self._folder, component)
        process = processes.spawn([*self._prefix(), *argv], env, self._log(component))
        if component == "apiserver":
            cluster = attach(self._state.name)
            _wait_ready(cluster, process, self._log(component))

    def reboot(self, node: str, wipe_cdi: bool) -> None:
        raise ClusterError(f"cluster {self._state.name} has no real node {node}")

    def logs(self, component: str) -> str:
        self._command(component)
        return self._log(component).read_text(errors="replace")

    def load(self, archive: Path) -> None:
        raise ClusterError(f"cluster {self._state.name} has no real nodes to load {archive} into")

    def down(self) -> None:
        down(self._state.name)

    def _prefix(self) -> list[str]:
        return []

    def _log(self, component: str) -> Path:
        return self._folder / "log" / f"{component}.log"

    def _command(self, component: str) -> list[str]:
        try:
            return self._state.commands[component]
        except KeyError:
            known = ", ".join(self._state.commands)
            raise ClusterError(
                f"no component {component} in cluster {self._state.name}: it has {known}"
            ) from None


def attach(name: str) -> Cluster:
    """The running cluster called `name`."""
    folder = paths.cluster_dir(name)
    known = state.load(folder)
    binaries = build.output_dir(versions.kubernetes(known.kubernetes))
    kubeconfig = folder / "pki" / "admin.kubeconfig"
    return Cluster(
        name, known.kubernetes, kubeconfig, binaries / "kubectl", folder, LocalBackend(folder, known)
    )


def up(options: Options) -> Cluster:
    """Start a cluster; one of that name is taken down first. Builds what the cache lacks."""
    if options.nodes:
        raise ClusterError("real nodes are not there yet: use --nodes 0")
    folder = paths.cluster_dir(options.name)
    (binaries,) = build.ensure(versions.kubernetes(options.kubernetes))
    with _alone(options.name):
        _down(folder)
        try:
            return _control_plane_only(options, folder, binaries)
        except BaseException:
            with uninterrupted():
                _down(folder)
            raise


def down(name: str) -> None:
    """Take a cluster down, whatever state it is in; returns when nothing of it is left. None there is
    fine.
    """
    folder = paths.cluster_dir(name)
    with _alone(name), uninterrupted():
        _down(folder)


def _control_plane_only(options: Options, folder: Path, binaries: Path) -> Cluster:
    folder.mkdir(mode=0o700)
    address = "127.0.0.1"
    ports = Ports(*free_ports(5))
    url = f"https://{address}:{ports.api}"
    plane = ControlPlane(
        binaries=binaries,
        folder=folder,
        pki=pki.create(folder / "pki", url, controlplane.SERVICE_IP, [address]),
        address=address,
        ports=ports,
        real_nodes=False,
        feature_gates=options.feature_gates,
        runtime_config=options.runtime_config,
        controllers=options.controllers or controlplane.FEW_CONTROLLERS,
    )
    known = State(options.name, options.kubernetes, url, commands=_commands(plane))
    known.save(folder)
    started = {name: _spawn(folder, known, name) for name in ("etcd", "apiserver")}
    cluster = attach(options.name)
    _wait_ready(cluster, started["apiserver"], folder / "log" / "apiserver.log")
    for name in ("controller-manager", "scheduler"):
        _spawn(folder, known, name)
    wait_usable(cluster, "default")
    known.complete = True
    known.save(folder)
    return cluster


def _commands(plane: ControlPlane) -> dict[str, list[str]]:
    return {
        "etcd": controlplane.etcd(plane),
        "apiserver": controlplane.apiserver(plane),
        "controller-manager": controlplane.controller_manager(plane),
        "scheduler": controlplane.scheduler(plane),
    }


def _spawn(folder: Path, known: State, component: str) -> subprocess.Popen[bytes]:
    env = processes.environment(folder, component)
    return processes.spawn(known.commands[component], env, folder / "log" / f"{component}.log")


def _wait_ready(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClusterError(f"the API server ended with {process.returncode}:\n{tail}")
        return bool(cluster.request("GET", "/readyz", timeout=5) == "ok")

    wait_for("API server ready", ready, 120)


def wait_usable(cluster: Cluster, namespace: str) -> None:
    """Pods can be created in `namespace`: it has the ServiceAccount `default` and the CA bundle."""
    for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
        probe = functools.partial(cluster.request, "GET", f"/api/v1/namespaces/{namespace}/{path}")
        wait_for(f"{path} in namespace {namespace}", probe, 60)


def _down(folder: Path) -> None:
    # Nobody may re-create what the others tear down, so the order is from the top.
    processes.stop(folder, lambda process: process.component != "etcd", signal.SIGKILL, 0)
    stuck = processes.stop(folder, lambda process: True, signal.SIGKILL, 0)
    if stuck:
        raise ClusterError(f"processes that SIGKILL does not end: {stuck}; {folder} stays until they do")
    if folder.exists():
        shutil.rmtree(folder)


def free_ports(count: int) -> list[int]:
    """Free TCP ports on loopback, below the ephemeral range so that a component finds its own again on a
    restart.
    """
    chosen: list[int] = []
    sockets: list[socket.socket] = []
    try:
        for port in random.sample(range(20000, 32000), 2000):
            candidate = socket.socket()
            sockets.append(candidate)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    finally:
        for opened in sockets:
            opened.close()
    raise ClusterError("no free TCP ports between 20000 and 32000 on loopback")


@contextmanager
def _alone(name: str) -> Iterator[None]:
    with exclusive(
        paths.cache_dir() / "locks" / name, f"somebody else is starting or stopping cluster {name}"
    ):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM off until the block is through: half a teardown is what leaves things
    behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    held: dict[signal.Signals, object] = {}
    note: Callable[[int, object], None] = lambda number, frame: received.append(number)  # noqa: E731
    for sig in (signal.SIGINT, signal.SIGTERM):
        held[sig] = signal.signal(sig, note)
    try:
        yield
    finally:
        for sig, handler in held.items():
            signal.signal(sig, handler)  # type: ignore[arg-type]
        if received:
            os.kill(os.getpid(), received[0])
