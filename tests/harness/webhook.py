"""``sharing-affinity webhook`` as a real process, and the API server sent to it.

The manifests are applied as they ship, but for two things a control plane without nodes cannot have: the
Service points to this host instead of to pods, and the configuration names the port the process got.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Cluster
from e2e.errors import ApiError
from harness.operator import ROOT, SYSTEM, eventually

ACCOUNT = "sharing-affinity-webhook"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/sharing-affinity"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/sharing-affinity-webhook"
SLICES = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
LEFT_OUT = ("Deployment", "PodDisruptionBudget")

Json = dict[str, Any]


def install(cluster: Cluster, port: int = 443) -> Path:
    """Apply manifests/webhook without its workload; a kubeconfig of its ServiceAccount."""
    rendered = cluster.kubectl("kustomize", str(ROOT / "manifests/webhook"))
    kept = [one for one in yaml.safe_load_all(rendered) if one["kind"] not in LEFT_OUT]
    for one in kept:
        if one["kind"] == "Service":
            one["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        elif one["kind"] == "ValidatingWebhookConfiguration":
            one["webhooks"][0]["clientConfig"]["service"]["port"] = port
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(kept))
    return cluster.service_account_kubeconfig(SYSTEM, ACCOUNT)


def remove(cluster: Cluster) -> None:
    """Nobody is asked any more, and the next install starts without a certificate."""
    for path in (CONFIGURATION, SECRET):
        try:
            cluster.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise


class Webhook:
    """One process."""

    def __init__(self, kubeconfig: Path, *flags: str, port: int = 0) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "sharing_affinity", "webhook",
                "--kubeconfig", str(kubeconfig), "--namespace", SYSTEM,
                "--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0",
                "--log-format", "json", "--log-level", "debug", *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def port(self, event: str) -> int:
        """The port of ``admission`` or ``probes``; 0 while it does not listen."""
        for line in self.lines:
            if f'"event": "{event}"' in line and (found := re.search(r'"port": (\d+)', line)):
                return int(found[1])
        return 0

    def said(self, text: str) -> int:
        """How many lines of the log contain ``text``."""
        return sum(text in line for line in list(self.lines))

    def get(self, path: str) -> tuple[int, str]:
        """A probe: status and text."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port('probes')}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """A metric's value, summed over its labels; 0.0 when it is not there."""
        found = re.findall(
            rf"^sharing_affinity_{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE
        )
        return sum(map(float, found))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def serving(cluster: Cluster, kubeconfig: Path, *flags: str) -> Iterator[Webhook]:
    """A webhook the API server asks; stopped at the end."""
    webhook = Webhook(kubeconfig, *flags)
    try:
        eventually("the webhook to listen", lambda: webhook.port("admission") or ended(webhook))
        send_to(cluster, webhook.port("admission"))
        yield webhook
    finally:
        webhook.stop()
        print(f"--- webhook, exit {webhook.process.returncode} ---\n{webhook.log[-8000:]}")


def ended(webhook: Webhook) -> int:
    assert webhook.process.poll() is None, f"the webhook ended:\n{webhook.log}"
    return 0


def send_to(cluster: Cluster, port: int) -> None:
    """Point the configuration to a port, and wait until the API server has heard of it and of the
    authority."""
    install(cluster, port)
    eventually("the API server to ask the webhook", lambda: refuses(cluster))


def refuses(cluster: Cluster) -> bool:
    """Whether a slice that cannot compile is refused now. Nothing is stored either way."""
    try:
        cluster.request("POST", f"{SLICES}?dryRun=All", slice_of("probe", {"k": "nonsense("}))
    except ApiError as error:
        return "denied the request" in str(error)
    return False


def slice_of(pool: str, keys: dict[str, str], **meta: Any) -> Json:
    """A SharingAffinitySlice; the webhook needs nothing else of a pool."""
    return {
        "apiVersion": "sharingaffinity.dev/v1alpha1",
        "kind": "SharingAffinitySlice",
        "metadata": {"generateName": f"{pool}-", **meta},
        "spec": {
            "driver": "nic.sharingaffinity.dev",
            "nodeName": pool,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 3},
            "sharingAffinity": [
                {"name": name, "expression": expression} for name, expression in keys.items()
            ],
        },
    }
