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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from e2e import (
    build,
    cgroups,
    controlplane,
    hostprograms,
    namespaces,
    node,
    paths,
    pki,
    probe,
    processes,
    state,
    versions,
)
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.controlplane import ControlPlane, Ports
from e2e.errors import ClusterError
from e2e.images import archives
from e2e.locking import exclusive
from e2e.namespaces import Tools
from e2e.options import Options
from e2e.probe import Missing
from e2e.state import NodeSpec, State

# In a network namespace of its own every cluster can have the well-known ports.
NAMESPACE_PORTS = Ports(api=6443, etcd=2379, etcd_peer=2380, controller_manager=10257, scheduler=10259)
# The API server's client certificate for kubelets has no group, and no default binding exists for its user.
KUBELET_ACCESS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "apiserver-to-kubelet"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:kubelet-api-admin",
    },
    "subjects": [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver-kubelet-client"}
    ],
}


__all__ = ["LocalBackend", "NodesImpossibleError", "Options", "attach", "down", "up", "wait_usable"]


class NodesImpossibleError(ClusterError):
    """Real nodes cannot run on this host; `missing` has every reason."""

    def __init__(self, missing: Sequence[Missing]) -> None:
        lines = "\n".join(f"  - {reason}" for reason in missing)
        super().__init__(f"this host cannot run real nodes (--nodes 0 runs a control plane alone):\n{lines}")
        self.missing = tuple(missing)


class LocalBackend:
    """Operations on a running local cluster, from its folder and state file."""

    def __init__(self, folder: Path, known: State) -> None:
        self._folder = folder
        self._state = known
        self._tools = Tools(tuple(map(Path, known.search)))
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self) -> Sequence[NodePaths]:
        return [node.paths(self._folder, spec) for spec in self._state.nodes]

    def enter(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path | None, machine: str | None
    ) -> subprocess.Popen[bytes]:
        component = f"entered-{Path(argv[0]).name}"
        marked = {**processes.environment(self._folder, component, self._tools.search), **env}
        command = [*self._prefix(None if machine is None else self._spec(machine).name), *argv]
        if log is not None:
            return processes.spawn(command, marked, log)
        return subprocess.Popen(
            command, env=marked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def spawn(self, component: str) -> None:
        """Start a component from its recorded command line, without waiting for anything."""
        env = processes.environment(self._folder, component, self._tools.search)
        inside = next((s.name for s in self._state.nodes if component in node.daemons(s.name)), None)
        process = processes.spawn(
            [*self._prefix(inside), *self._command(component)], env, self._log(component)
        )
        if component in map(node.machine, (s.name for s in self._state.nodes)):
            wait_for(component, lambda: process.poll() is not None or node.ready(process.pid))
            if process.poll() is not None:
                raise ClusterError(f"no mount namespace: {self._log(component).read_text().strip()}")
        self._started[component] = process

    def wait(self, what: str, probe: Callable[[], object], seconds: float, *watched: str) -> None:
        """`wait_for`, given up as soon as one of the `watched` components, started from here, has ended
        by itself.
        """

        def alive_and_done() -> bool:
            for component in watched:
                process = self._started.get(component)
                if process is not None and process.poll() is not None:
                    lines = self._log(component).read_text(errors="replace").splitlines()[-15:]
                    raise ClusterError("\n".join([f"{component} ended with {process.returncode}:", *lines]))
            return bool(probe())

        wait_for(what, alive_and_done, seconds)

    def kill(self, component: str, patience: float) -> None:
        self._command(component)
        self._started.pop(component, None)
        sig = signal.SIGTERM if patience else signal.SIGKILL
        processes.stop(self._folder, processes.is_component(component), sig, patience)

    def start(self, component: str) -> None:
        self._command(component)
        if any(map(processes.is_component(component), processes.find(self._folder))):
            raise ClusterError(f"{component} is running already")
        self.spawn(component)
        if component == "apiserver":
            self.wait_ready(attach(self._state.name))
        for spec in self._state.nodes:
            if component == f"containerd-{spec.name}":
                self.wait_containerd(spec.name)

    def reboot(self, name: str, wipe_cdi: bool) -> None:
        spec = self._spec(name)
        self.kill(f"kubelet-{name}", 0)
        cgroups.kill(spec.cgroup)
        daemons = {node.machine(name), *node.daemons(name)}
        for component in daemons:
            self._started.pop(component, None)
        processes.stop(self._folder, lambda process: process.component in daemons, signal.SIGKILL, 0)
        base = node.folder(self._folder, name)
        for volatile in (base / "containerd" / "state", base / "runc"):
            shutil.rmtree(volatile, ignore_errors=True)
        if wipe_cdi:
            for file in (base / "cdi").iterdir():
                file.unlink()
        node.new_boot_id(self._folder, name)
        cgroups.destroy(spec.cgroup)  # folders of dead containers cost the kubelet seconds each
        cgroups.create(spec.cgroup)
        for component in (node.machine(name), *node.daemons(name)):
            self.start(component)

    def wait_containerd(self, name: str) -> None:
        """Return when the node's containerd answers."""
        path = namespaces.seen_from_host(self._folder, node.SOCKET, node.machine(name))
        self.wait(f"containerd of {name}", lambda: node.answers(path), 60, f"containerd-{name}")

    def wait_ready(self, cluster: Cluster) -> None:
        """Return when the API server is ready."""
        self.wait(
            "API server ready",
            lambda: cluster.request("GET", "/readyz", timeout=5) == "ok",
            180,
            "etcd",
            "apiserver",
        )

    def logs(self, component: str) -> str:
        self._command(component)
        return self._log(component).read_text(errors="replace")

    def load(self, archive: Path) -> None:
        if not self._state.nodes:
            raise ClusterError(f"cluster {self._state.name} has no real nodes to load {archive} into")
        # Names of our applications' archives end with a hash of their content; the last one of each is what
        # nodes have. Other archives are always loaded.
        image = archive.stem.rpartition("-")[0]
        loaded = self._folder / "loaded" / image
        if image and loaded.exists() and loaded.read_text() == archive.stem:
            return
        ctr = str(build.output_dir(versions.CONTAINERD) / "ctr")
        imports = []
        for spec in self._state.nodes:
            command = [ctr, f"--address={node.SOCKET}", "--namespace=k8s.io", "images", "import", "--local"]
            # Unpacked is enough: the archives' layers would take the same disk space once more.
            command += ["--discard-unpacked-layers", str(archive)]
            imports.append(self.enter(command, {}, None, spec.name))
        for process in imports:
            output, _ = process.communicate(timeout=120)
            if process.returncode:
                raise ClusterError(f"import of {archive} failed: {output.decode(errors='replace').strip()}")
        if image:
            loaded.parent.mkdir(exist_ok=True)
            loaded.write_text(archive.stem)

    def down(self) -> None:
        down(self._state.name)

    def _spec(self, name: str) -> NodeSpec:
        for spec in self._state.nodes:
            if spec.name == name:
                return spec
        raise ClusterError(f"cluster {self._state.name} has no real node {name}")

    def _prefix(self, inside: str | None) -> list[str]:
        if self._state.network is None:
            return []
        machine = namespaces.HOLDER if inside is None else node.machine(inside)
        return namespaces.enter(self._folder, self._tools, machine)

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
    folder = paths.cluster_dir(options.name)
    # Before the build: nobody should wait minutes for "not on this host".
    if options.nodes and (lacking := probe.missing()):
        raise NodesImpossibleError(lacking)
    (binaries,) = build.ensure(versions.kubernetes(options.kubernetes))
    tools = Tools(())
    if options.nodes:
        build.ensure(versions.CONTAINERD, versions.CNI)
        archives.test_archive()
        tools = Tools(tuple(hostprograms.search_path()))
    with _alone(options.name):
        _down(folder)
        try:
            _make_folder(folder)
            if options.nodes:
                return _with_nodes(options, folder, binaries, tools)
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
    plane = _plane(options, folder, binaries, "127.0.0.1", Ports(*free_ports(5)))
    known = State(options.name, options.kubernetes, plane.url, commands=_commands(plane))
    known.save(folder)
    backend = LocalBackend(folder, known)
    cluster = attach(options.name)
    backend.spawn("etcd")
    backend.spawn("apiserver")
    backend.wait_ready(cluster)
    backend.spawn("controller-manager")
    backend.spawn("scheduler")
    wait_usable(cluster, "default")
    known.complete = True
    known.save(folder)
    return cluster


def _with_nodes(options: Options, folder: Path, binaries: Path, tools: Tools) -> Cluster:
    with exclusive(paths.cache_dir() / "locks" / ".subnets", "another cluster is choosing its subnet"):
        network = namespaces.create(folder, tools, 1 + options.nodes)
    address, *node_addresses = network.addresses
    plane = _plane(options, folder, binaries, address, NAMESPACE_PORTS)
    nodes = [node.spec(index, ip, options.name) for index, ip in enumerate(node_addresses)]
    commands = _commands(plane)
    containerd, cni = build.output_dir(versions.CONTAINERD), build.output_dir(versions.CNI)
    for spec in nodes:
        pki.issue_node(plane.pki, spec.name, spec.address, plane.url)
        node.write_files(folder, spec, plane.pki, cni)
        cgroups.create(spec.cgroup)
        commands[node.machine(spec.name)] = node.hold(folder, spec.name)
        commands[f"containerd-{spec.name}"] = node.containerd(folder, spec.name, containerd)
        commands[f"kubelet-{spec.name}"] = node.kubelet(
            folder, spec, plane.pki, binaries, options.feature_gates
        )
    commands["proxy"] = node.proxy(folder, nodes[0], plane.pki, binaries)
    search = [str(containerd), *map(str, tools.search)]
    known = State(options.name, options.kubernetes, plane.url, nodes, network, commands, search)
    known.save(folder)
    backend = LocalBackend(folder, known)
    cluster = attach(options.name)
    backend.spawn("etcd")
    backend.spawn("apiserver")
    for spec in nodes:
        backend.spawn(node.machine(spec.name))
        backend.spawn(f"containerd-{spec.name}")
    backend.wait_ready(cluster)
    cluster.apply(KUBELET_ACCESS)
    backend.spawn("controller-manager")
    backend.spawn("scheduler")
    for spec in nodes:
        backend.wait_containerd(spec.name)
        backend.spawn(f"kubelet-{spec.name}")
    backend.spawn("proxy")
    backend.load(archives.test_archive())
    wait_usable(cluster, "default")
    for spec in nodes:
        backend.wait(
            f"node {spec.name} ready",
            functools.partial(_node_ready, cluster, spec.name),
            180,
            *known.commands,
        )
    known.complete = True
    known.save(folder)
    return cluster


def _plane(options: Options, folder: Path, binaries: Path, address: str, ports: Ports) -> ControlPlane:
    real = options.nodes > 0
    url = f"https://{address}:{ports.api}"
    return ControlPlane(
        binaries=binaries,
        folder=folder,
        pki=pki.create(folder / "pki", url, controlplane.SERVICE_IP, [address]),
        address=address,
        ports=ports,
        real_nodes=real,
        feature_gates=options.feature_gates,
        runtime_config=options.runtime_config,
        controllers=options.controllers or (None if real else controlplane.FEW_CONTROLLERS),
        scheduler_qps=options.scheduler_qps,
    )


def _commands(plane: ControlPlane) -> dict[str, list[str]]:
    return {
        "etcd": controlplane.etcd(plane),
        "apiserver": controlplane.apiserver(plane),
        "controller-manager": controlplane.controller_manager(plane),
        "scheduler": controlplane.scheduler(plane),
    }


def _node_ready(cluster: Cluster, name: str) -> bool:
    conditions = cluster.request("GET", f"/api/v1/nodes/{name}")["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def wait_usable(cluster: Cluster, namespace: str) -> None:
    """Pods can be created in `namespace`: it has the ServiceAccount `default` and the CA bundle."""
    for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
        probe = functools.partial(cluster.request, "GET", f"/api/v1/namespaces/{namespace}/{path}")
        wait_for(f"{path} in namespace {namespace}", probe)


def _down(folder: Path) -> None:
    """All at once and hard: what graceful ends would tidy up lives in the namespaces, and goes with them."""
    prefix = f"dra-e2e-{folder.name}-node-"
    stuck = processes.stop(folder, lambda process: True, signal.SIGKILL, 0)
    for group in cgroups.named(prefix) if cgroups.ROOT.is_dir() else ():
        cgroups.destroy(group)
    if stuck:
        raise ClusterError(f"processes that SIGKILL does not end: {stuck}; {folder} stays until they do")
    if Path(f"/sys/class/net/{namespaces.link_name(folder)}").exists():
        namespaces.remove(folder, Tools(tuple(hostprograms.search_path())))
    if folder.exists():
        shutil.rmtree(folder)
    with _folders():
        paths.forget_clusters_dir()


def _make_folder(folder: Path) -> None:
    with _folders():
        paths.clusters_dir()
        folder.mkdir(mode=0o700)


def _folders() -> AbstractContextManager[None]:
    return exclusive(paths.cache_dir() / "locks" / ".folders", "another cluster's folder is being removed")


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
