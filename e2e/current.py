"""The `current` backend: the cluster of the user's own kubeconfig context. Only used when it's asked
for by name.

Nothing is started and nothing is taken down: `down` leaves the cluster alone, and what would need its
nodes' processes is refused. The context is flattened into a file of ours by kubectl, which knows every
way of writing a kubeconfig.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import paths
from e2e.cluster import Cluster, NodePaths
from e2e.errors import ClusterError

FOLDER = "current"


class CurrentBackend:
    """The user's cluster: only the API, and processes on this host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def nodes(self) -> Sequence[NodePaths]:
        return []

    def enter(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path | None, machine: str | None
    ) -> subprocess.Popen[bytes]:
        if machine is not None:
            raise ClusterError(f"processes cannot be started on {machine} from here: run them in pods")
        environment = {"PATH": os.environ.get("PATH", os.defpath), **env}
        if log is None:
            return subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        with log.open("ab") as output:
            return subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

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
    version = subprocess.run(
        [kubectl, "get", "--raw=/version"], capture_output=True, text=True, timeout=30, check=False
    )
    if version.returncode:
        raise ClusterError(f"context {name} does not answer: {version.stderr.strip()}")
    answer = json.loads(version.stdout)
    minor = f"{answer['major']}.{answer['minor'].rstrip('+')}"
    return Cluster(name, minor, kubeconfig, Path(kubectl), folder, CurrentBackend(folder))
