"""The `current` backend: the cluster of the user's own kubeconfig context. Only used when it's asked
for by name.

Nothing is started and nothing is taken down: `down` leaves the cluster alone, and what would need its
nodes' processes is refused. The context is flattened into a file of ours by kubectl, which knows every
way of writing a kubeconfig.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e import paths, processes
from e2e.cluster import Cluster, NodePaths
from e2e.errors import ClusterError

FOLDER = "current"


class CurrentBackend:
    """The user's cluster: only the API, and processes on this host."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self._folder = folder
        self._nodes = nodes

    def nodes(self) -> Sequence[NodePaths]:
        """Nodes that take pods of everybody; the folders are those a DaemonSet mounts."""
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
        raise self._refused(f"ending {component}")

    def start(self, component: str) -> None:
        raise self._refused(f"starting {component}")

    def reboot(self, node: str, wipe_cdi: bool) -> None:
        raise self._refused(f"rebooting {node}")

    def logs(self, component: str) -> str:
        raise self._refused(f"reading the logs of {component}")

    def load(self, archive: Path) -> None:
        raise ClusterError(f"push the image in {archive} to a registry that your cluster pulls from")

    def down(self) -> None:
        """Forget our copy of the kubeconfig; the cluster is the user's."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def _refused(what: str) -> ClusterError:
        return ClusterError(f"{what} is not for a cluster of your own: use --backend local or kind")


def attach() -> Cluster:
    """The cluster that plain `kubectl` would talk to."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ClusterError("--backend current needs kubectl on PATH")
    command = [kubectl, "config", "view", "--minify", "--flatten", "--raw", "--output=json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if run.returncode:
        raise ClusterError(f"no current context: {run.stderr.strip()}")
    folder = paths.cluster_dir(FOLDER)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(run.stdout)
    name = json.loads(run.stdout)["current-context"]
    answer = json.loads(_kubectl(kubectl, name, "get", "--raw=/version"))
    minor = f"{answer['major']}.{answer['minor'].rstrip('+')}"
    nodes = open_nodes(json.loads(_kubectl(kubectl, name, "get", "nodes", "--output=json"))["items"])
    backend = CurrentBackend(folder, nodes)
    return Cluster(name, minor, kubeconfig, Path(kubectl), folder, backend, ours=False)


def open_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the Ready nodes that are schedulable and keep no pod away by a taint."""
    return sorted(
        node["metadata"]["name"]
        for node in nodes
        if not node["spec"].get("unschedulable")
        and not any(t["effect"] != "PreferNoSchedule" for t in node["spec"].get("taints") or [])
        and any(
            c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or []
        )
    )


def _kubectl(kubectl: str, context: str, *arguments: str) -> str:
    run = subprocess.run([kubectl, *arguments], capture_output=True, text=True, timeout=30, check=False)
    if run.returncode:
        raise ClusterError(f"context {context} does not answer: {run.stderr.strip()}")
    return run.stdout
