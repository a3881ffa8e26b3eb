"""The tutorial of docs/driver-authors.md, run from the text of the document itself.

Both files are taken out of it and used as it says; what the page promises of them is what is asserted here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import operator
from harness.kubelet import KubeletClient
from harness.nic import allocate, complete

from e2e.cluster import Cluster, wait_for
from e2e.product import ROOT

pytestmark = pytest.mark.integration
DRIVER = "crypto.example.com"
TEXT = (ROOT / "docs/driver-authors.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))
COMMAND = re.search(r"^\$ affinity-driver (run .*)$", TEXT, re.MULTILINE)
REFUSAL = re.findall(r"```text\n(.*?)\n```", TEXT, re.DOTALL)
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


def test_the_whole_driver_is_at_most_150_lines() -> None:
    assert FILES.keys() == {"crypto.py", "try.yaml"}
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 150


@pytest.fixture
def node(control_plane: Cluster, namespace: str) -> Iterator[str]:
    name = f"tutorial-{namespace}"
    control_plane.add_node(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def driver(control_plane: Cluster, node: str) -> Iterator[tuple[KubeletClient, Path]]:
    """The command of the tutorial in a folder with the tutorial's files: the kubelet's client to it, its
    CDI files."""
    assert COMMAND is not None
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        root = Path(folder)
        for name, text in FILES.items():
            (root / name).write_text(text)
        flags = [f"--kubelet-root-dir={root}", f"--cdi-dir={root}/cdi"]
        flags += [f"--kubeconfig={control_plane.kubeconfig}", "--log-format=json"]
        environment = {**os.environ, "NODE_NAME": node, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/driver"}
        argv = [sys.executable, "-m", "affinity_driver", *shlex.split(COMMAND[1]), *flags]
        process = subprocess.Popen(argv, cwd=root, env=environment)
        try:
            registry = root / "plugins_registry"
            wait_for("the driver listens", lambda: list(registry.glob("*.sock")))
            client = KubeletClient(registry)
            client.register()
            yield client, root / "cdi"
            client.close()
        finally:
            process.terminate()
            process.wait(20)


def test_the_tutorial_does_what_it_says(
    control_plane: Cluster, namespace: str, node: str, driver: tuple[KubeletClient, Path]
) -> None:
    cluster, (kubelet, folder) = control_plane, driver

    def claim_of(pod: str) -> dict[str, Any] | None:
        """The pod's claim, once it is allocated."""
        for claim in cluster.request("GET", CLAIMS.format(namespace))["items"]:
            (owner,) = claim["metadata"]["ownerReferences"]
            if owner["name"] == pod and claim.get("status", {}).get("allocation"):
                found: dict[str, Any] = claim
                return found
        return None

    def device(claim: dict[str, Any]) -> str:
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return str(result["device"])

    def bound(pod: str) -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        return bool(cluster.request("GET", path)["spec"].get("nodeName") == node)

    with operator.running(operator.install(cluster), "--fence-settle", "1"):
        wait_for("a complete pool", complete(cluster, node, DRIVER))
        cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=FILES["try.yaml"])
        claims = {}
        for pod in ("red-1", "red-2", "blue-1"):
            claims[pod] = wait_for(f"{pod} allocated", partial(claim_of, pod))
            wait_for(f"{pod} bound", partial(bound, pod))
    assert device(claims["red-1"]) == device(claims["red-2"]) != device(claims["blue-1"])

    # The kubelet prepares them, and containers learn what they got.
    answers = kubelet.prepare(*claims.values())
    assert [answer.error for answer in answers.values()] == ["", "", ""]
    cdi = [yaml.safe_load(path.read_text()) for path in folder.glob("*.json")]
    seen = {tuple(d["containerEdits"]["env"]) for spec in cdi for d in spec["devices"]}
    assert (f"CRYPTO_DEVICE={device(claims['red-1'])}", "CRYPTO_KEY_RING=red", "CRYPTO_QUEUES=4") in seen

    # Somebody goes round the operator: the backstop refuses, in the words of the page.
    spec = claims["blue-1"]["spec"]
    body = {"metadata": {"name": "intruder"}, "spec": spec}
    intruder = cluster.request("POST", CLAIMS.format(namespace), body)
    allocated = allocate(cluster, intruder, node, device(claims["red-1"]), driver=DRIVER)
    (refused,) = kubelet.prepare(allocated).values()
    assert any(refused.error.endswith(text) for text in REFUSAL), refused.error
    assert all(error == "" for error in kubelet.unprepare(*claims.values(), intruder).values())
    cluster.request("DELETE", f"/apis/resource.k8s.io/v1/deviceclasses/{DRIVER}")
