"""The `kind` backend: the same clusters where Docker runs. Its configuration and command lines are pure
functions.

kind's node images carry their own containerd with CDI on, so that the driver runs as the DaemonSet of
the manifests, in the images of `python -m e2e images`. Components inside a node are reached with
`docker exec`: kubelet and containerd are systemd units, the control plane's parts are static pods.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from e2e import paths, processes, versions
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.errors import ClusterError
from e2e.images import archives
from e2e.options import Options

INSTALL = "go install sigs.k8s.io/kind@v0.33.0"
STATIC_PODS = {
    "etcd": "etcd",
    "apiserver": "kube-apiserver",
    "controller-manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
}
MANIFESTS = PurePosixPath("/etc/kubernetes/manifests")
# 1.36 serves device taint rules only with the gate and the beta version of the API group.
RULES = {"1.36": ({"DRADeviceTaintRules": True}, {"resource.k8s.io/v1beta2": "true"})}


def configuration(options: Options) -> dict[str, Any]:
    """kind's configuration file. Workers are the nodes; a control plane alone is asked for with `nodes=0`."""
    gates, runtime = RULES.get(options.kubernetes, ({}, {}))
    gates = {**gates, **_pairs(options.feature_gates, lambda value: value == "true")}
    runtime = {**runtime, **_pairs(options.runtime_config, str)}
    patch = "\n".join(
        [
            '[plugins."io.containerd.cri.v1.runtime"]',
            "  enable_cdi = true",
            '  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]',
        ]
    )
    workers = [{"role": "worker"} for _ in range(options.nodes)]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": kind_name(options.name),
        "featureGates": gates,
        "runtimeConfig": runtime,
        "containerdConfigPatches": [patch],
        "nodes": [{"role": "control-plane"}, *workers],
    }


def kind_name(name: str) -> str:
    """Our clusters by their names in kind's and Docker's lists."""
    return f"dra-e2e-{name}"


def node_image(minor: str) -> str:
    """The node image of the pinned release; `E2E_KIND_IMAGE` names another."""
    return os.environ.get("E2E_KIND_IMAGE") or f"kindest/node:v{versions.kubernetes(minor).version}"


def create_command(options: Options, config: Path, kubeconfig: Path) -> list[str]:
    return [
        "kind",
        "create",
        "cluster",
        f"--config={config}",
        f"--image={node_image(options.kubernetes)}",
        f"--kubeconfig={kubeconfig}",
        "--wait=180s",
    ]


def delete_command(name: str, kubeconfig: Path) -> list[str]:
    return ["kind", "delete", "cluster", f"--name={kind_name(name)}", f"--kubeconfig={kubeconfig}"]


def load_command(name: str, archive: Path) -> list[str]:
    return ["kind", "load", "image-archive", str(archive), f"--name={kind_name(name)}"]


def control_plane_container(name: str) -> str:
    return f"{kind_name(name)}-control-plane"


def node_names(name: str, nodes: int) -> list[str]:
    """kind numbers its workers from the second on."""
    return [f"{kind_name(name)}-worker{index + 1 if index else ''}" for index in range(nodes)]


def kill_commands(name: str, component: str, patience: float) -> list[list[str]]:
    """End a component and keep it from coming back until `start_commands`."""
    sig = "TERM" if patience else "KILL"
    container, unit = _place(name, component)
    if unit is not None:
        # Without the stop systemd starts it again.
        kill = _exec(container, "systemctl", "kill", f"--signal={sig}", unit)
        return [kill, _exec(container, "systemctl", "stop", unit)]
    pod = STATIC_PODS[component]
    away = _exec(container, "mv", str(MANIFESTS / f"{pod}.yaml"), f"/root/{pod}.yaml")
    return [away, _exec(container, "pkill", f"--signal={sig}", "--full", f"^{pod} ")]


def start_commands(name: str, component: str) -> list[list[str]]:
    container, unit = _place(name, component)
    if unit is not None:
        return [_exec(container, "systemctl", "start", unit)]
    pod = STATIC_PODS[component]
    return [_exec(container, "mv", f"/root/{pod}.yaml", str(MANIFESTS / f"{pod}.yaml"))]


def logs_command(name: str, component: str) -> list[str]:
    container, unit = _place(name, component)
    if unit is not None:
        return _exec(container, "journalctl", "--no-pager", f"--unit={unit}")
    pattern = f"/var/log/containers/{STATIC_PODS[component]}-*.log"
    return _exec(container, "sh", "-c", f"cat {pattern}")


def reboot_commands(node: str, wipe_cdi: bool) -> list[list[str]]:
    wipe = [_exec(node, "sh", "-c", "rm -f /etc/cdi/* /var/run/cdi/*")] if wipe_cdi else []
    return [["docker", "kill", node], ["docker", "start", node], *wipe]


def _place(name: str, component: str) -> tuple[str, str | None]:
    """The container a component runs in, and its systemd unit unless it's a static pod."""
    if component in STATIC_PODS:
        return control_plane_container(name), None
    for unit in ("kubelet", "containerd"):
        if component.startswith(f"{unit}-"):
            return component.removeprefix(f"{unit}-"), unit
    known = ", ".join([*STATIC_PODS, "kubelet-NODE", "containerd-NODE"])
    raise ClusterError(f"no component {component} in a kind cluster: it has {known}")


def _exec(container: str, *argv: str) -> list[str]:
    return ["docker", "exec", container, *argv]


class KindBackend:
    """Operations on a running kind cluster. Processes of tests run on the host, where the API server is
    reachable.
    """

    def __init__(self, name: str, nodes: int, folder: Path) -> None:
        self._name = name
        self._nodes = node_names(name, nodes)
        self._folder = folder

    def nodes(self) -> Sequence[NodePaths]:
        """Folders *inside* the node's container: what a DaemonSet mounts; the host does not see them."""
        root = Path("/var/lib/kubelet")
        return [
            NodePaths(node, "", root, root / "plugins", root / "plugins_registry", Path("/var/run/cdi"))
            for node in self._nodes
        ]

    def enter(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path | None, machine: str | None
    ) -> subprocess.Popen[bytes]:
        if machine is not None:
            raise ClusterError(f"processes cannot be started on {machine} from here: run them in pods")
        return processes.on_host(argv, env, log)

    def kill(self, component: str, patience: float) -> None:
        for command in kill_commands(self._name, component, patience):
            _run(command)

    def start(self, component: str) -> None:
        for command in start_commands(self._name, component):
            _run(command)
        if component == "apiserver":
            cluster = attach(self._name)
            wait_for("API server ready", lambda: cluster.request("GET", "/readyz", timeout=5) == "ok", 120)

    def reboot(self, node: str, wipe_cdi: bool) -> None:
        for command in reboot_commands(node, wipe_cdi):
            _run(command)

    def logs(self, component: str) -> str:
        return _run(logs_command(self._name, component))

    def load(self, archive: Path) -> None:
        _run(load_command(self._name, archive))

    def down(self) -> None:
        down(self._name)


def missing() -> str | None:
    """Why kind cannot be used here, None when it can: asks the daemon, since a client alone does nothing."""
    if shutil.which("docker") is None:
        return "no docker program on PATH"
    run = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=20)
    if run.returncode:
        return f"docker does not work: {run.stderr.strip().splitlines()[-1]}"
    return None if shutil.which("kind") else f"no kind program on PATH; type: {INSTALL}"


def up(options: Options) -> Cluster:
    """Create the cluster and load the test image; one of that name is deleted first."""
    if (reason := missing()) is not None:
        raise ClusterError(f"--backend kind: {reason}")
    down(options.name)
    folder = paths.cluster_dir(options.name)
    folder.mkdir(mode=0o700, parents=True)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            json.dump(configuration(options), config)  # kind reads YAML, of which JSON is a part
            config.flush()
            _run(create_command(options, Path(config.name), folder / "kubeconfig"), timeout=900)
        (folder / "kind.json").write_text(
            json.dumps({"kubernetes": options.kubernetes, "nodes": options.nodes})
        )
        cluster = attach(options.name)
        if options.nodes:
            cluster.load(archives.test_archive())
    except BaseException:
        down(options.name)
        raise
    return cluster


def attach(name: str) -> Cluster:
    """The running kind cluster called `name`."""
    folder = paths.cluster_dir(name)
    try:
        known = json.loads((folder / "kind.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no kind cluster called {name}") from None
    backend = KindBackend(name, known["nodes"], folder)
    kubectl = Path(shutil.which("kubectl") or "kubectl")
    return Cluster(name, known["kubernetes"], folder / "kubeconfig", kubectl, folder, backend)


def down(name: str) -> None:
    """Delete the cluster and its folder; none there is fine."""
    folder = paths.cluster_dir(name)
    if shutil.which("kind") is not None:
        _run(delete_command(name, folder / "kubeconfig"), timeout=300)
    shutil.rmtree(folder, ignore_errors=True)


def _run(command: Sequence[str], timeout: float = 120) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if run.returncode:
        raise ClusterError(f"{' '.join(command)}: {run.stderr.strip()}")
    return run.stdout


def _pairs(text: str, convert: Any) -> dict[str, Any]:
    return {
        name: convert(value) for name, _, value in (pair.partition("=") for pair in text.split(",") if pair)
    }
