"""A driver on the official Go helper library (``tests/publisher``), and our metadata sidecar beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Cluster
from e2e.product import DRIVER_NAMESPACE, ROOT, WORKLOADS
from harness import gobuild

ACCOUNT = "metadata-sidecar"
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


class Publisher:
    """The Go program for one node; ``publish`` changes what the library keeps published."""

    def __init__(self, cluster: Cluster, driver: str, node: str, root: Path) -> None:
        binary = gobuild.build(ROOT / "tests/publisher")
        argv = [
            str(binary), f"-driver={driver}", f"-node={node}",
            f"-kubeconfig={cluster.kubeconfig}", f"-kubelet-root={root}",
        ]  # fmt: skip
        self._log = (cluster.folder / f"publisher-{driver}.log").open("ab")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def publish(self, *slices: Sequence[Mapping[str, Any]]) -> None:
        """The pool's new content, one list of devices for each ResourceSlice."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(slices) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "taken\n", Path(self._log.name).read_text()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._log.close()


def manifests(cluster: Cluster, driver: str) -> list[dict[str, Any]]:
    """What ships for sidecars, for another driver than the example's."""
    rendered = cluster.kubectl("kustomize", str(ROOT / "examples/metadata-sidecar"))
    return [obj for obj in yaml.safe_load_all(rendered.replace("gpu.example.com", driver)) if obj]


def configure(cluster: Cluster, driver: str) -> None:
    """Apply the rights and the policy of a sidecar that runs as a process."""
    cluster.apply(*(obj for obj in manifests(cluster, driver) if obj["kind"] not in WORKLOADS))


@contextmanager
def sidecar(
    cluster: Cluster, driver: str, extractors: Path, node: str, *flags: str
) -> Iterator[subprocess.Popen[bytes]]:
    """``affinity-driver metadata-sidecar`` with the rights its pod on that node would have."""
    kubeconfig = cluster.service_account_kubeconfig(DRIVER_NAMESPACE, ACCOUNT, node)
    argv = [
        sys.executable, "-m", "affinity_driver", "metadata-sidecar", f"--driver={driver}",
        f"--extractors={extractors}", f"--node-name={node}", f"--kubeconfig={kubeconfig}",
        "--fence-settle=2", *flags,
    ]  # fmt: skip
    log = cluster.folder / f"sidecar-{node}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0
        print(f"--- sidecar ---\n{log.read_text()[-5000:]}")
