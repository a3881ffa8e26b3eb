"""Driver: prepare through its socket with the real API server, beside a bare GET of the claim.

A control plane of its own and driver processes of their own; the caller is this process, as the kubelet
would be. The kinds of calls take turns, so that a busy machine slows all of them. Targets, exit code 1 when
missed:

* a rejection takes at most twice a bare GET of the same claim (medians): saying no costs no more than
reading;
* while one FPGA is being programmed, a prepare on another takes at most twice what it takes otherwise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from affinity_driver.kube import KubeClient, from_kubeconfig
from affinity_driver.proto import dra_v1_pb2 as dra
from e2e import local
from e2e.cluster import Cluster, wait_for
from e2e.options import Options
from e2e.product import DRIVER_NAMESPACE, PYTHON_PATH, Product

NODE = "bench-node"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
KEYS = {"nic": ("NICConfig", "subnet"), "fpga": ("FPGAConfig", "bitstream")}


def main(argv: list[str]) -> int:
    """Run the benchmark; the table goes to standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench driver")
    parser.add_argument("--rounds", type=int, default=300, help="calls of each kind; default: %(default)s")
    rounds = parser.parse_args(argv).rounds
    cluster = local.up(Options(name=f"bench-{os.getpid()}", nodes=0))
    try:
        Product(cluster).install("../crds", "driver-nic", "driver-fpga")
        cluster.add_node(NODE)
        calls = measure_calls(cluster, rounds)
        alone, beside = measure_reprogramming(cluster, max(20, rounds // 10))
    finally:
        shutil.rmtree(ROOTS, ignore_errors=True)
        cluster.down()
    print(f"{'milliseconds':34}{'p50':>8}{'p99':>8}")
    for name, seconds in calls.items():
        print(f"{name:34}{quantile(seconds, 50):8.2f}{quantile(seconds, 99):8.2f}")
    print(f"{'prepare, other device idle':34}{quantile(alone, 50):8.2f}{quantile(alone, 99):8.2f}")
    print(f"{'prepare, other device programming':34}{quantile(beside, 50):8.2f}{quantile(beside, 99):8.2f}")
    rejection = quantile(calls["rejection"], 50) / quantile(calls["bare GET of the claim"], 50)
    delay = quantile(beside, 50) / quantile(alone, 50)
    print(f"rejection / GET {rejection:.2f} (at most 2), beside programming / alone {delay:.2f} (at most 2)")
    return 0 if rejection <= 2 and delay <= 2 else 1


def quantile(seconds: list[float], percent: int) -> float:
    """A percentile in milliseconds."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


def measure_calls(cluster: Cluster, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call by kind, all kinds taking turns."""
    api = KubeClient(from_kubeconfig(cluster.kubeconfig))
    seconds: dict[str, list[float]] = {}
    with driver(cluster, "nic", "nic", "--slots=1000") as plugin:
        holder, same, other = (claim(cluster, "nic", "eth1", key) for key in ("a", "a", "b"))
        plugin.prepare(holder)
        path = f"{CLAIMS}/{other['metadata']['name']}"
        kinds: dict[str, Callable[[], Any]] = {
            "bare GET of the claim": lambda: api.get(path),
            "empty prepare (probe)": plugin.probe,
            "rejection": lambda: plugin.prepare(other, rejected=True),
            "prepare": lambda: plugin.prepare(same),
            "prepare again": lambda: plugin.prepare(same),
            "unprepare": lambda: plugin.unprepare(same),
        }
        for number in range(rounds + 10):
            for name, call in kinds.items():
                started = time.perf_counter()
                call()
                if number >= 10:  # the first calls open connections
                    seconds.setdefault(name, []).append(time.perf_counter() - started)
    return seconds


def measure_reprogramming(cluster: Cluster, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a prepare on one FPGA while the other is idle, and in a second driver while it is busy.

    The two drivers take turns.
    """
    slow, *users = (claim(cluster, "fpga", device, "x") for device in ("fpga0", "fpga1", "fpga1"))
    for folder, user in zip(("idle", "busy"), users, strict=True):
        with driver(cluster, "fpga", folder, "--program-seconds=0", "--slots=1000") as plugin:
            plugin.prepare(user)  # its bitstream is loaded from now on
    seconds: tuple[list[float], list[float]] = ([], [])
    with (
        driver(cluster, "fpga", "idle", "--program-seconds=3600", "--slots=1000") as idle,
        driver(cluster, "fpga", "busy", "--program-seconds=3600", "--slots=1000") as busy,
    ):
        waiting = busy.start(slow)
        time.sleep(0.5)
        for number in range(rounds + 3):
            for plugin, user, times in zip((idle, busy), users, seconds, strict=True):
                plugin.unprepare(user)
                started = time.perf_counter()
                plugin.prepare(user)
                if number >= 3:
                    times.append(time.perf_counter() - started)
        waiting.cancel()
    return seconds


class Plugin:
    """The kubelet's end of a driver's socket."""

    def __init__(self, endpoint: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{endpoint}")
        service = dra.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        self._prepare = self._channel.unary_unary(
            f"/{service}/NodePrepareResources",
            request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = self._channel.unary_unary(
            f"/{service}/NodeUnprepareResources",
            request_serializer=dra.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodeUnprepareResourcesResponse.FromString,
        )

    def probe(self) -> None:
        self._prepare(dra.NodePrepareResourcesRequest(), timeout=45)

    def prepare(self, body: dict[str, Any], rejected: bool = False) -> None:
        (entry,) = self._prepare(
            dra.NodePrepareResourcesRequest(claims=[ref(body)]), timeout=45
        ).claims.values()
        if bool(entry.error) != rejected:
            raise RuntimeError(f"prepare answered {entry.error!r}")

    def start(self, body: dict[str, Any]) -> Any:
        """Begin a prepare and do not wait for it."""
        return self._prepare.future(dra.NodePrepareResourcesRequest(claims=[ref(body)]), timeout=3600)

    def unprepare(self, body: dict[str, Any]) -> None:
        (entry,) = self._unprepare(
            dra.NodeUnprepareResourcesRequest(claims=[ref(body)]), timeout=45
        ).claims.values()
        if entry.error:
            raise RuntimeError(entry.error)


def ref(body: dict[str, Any]) -> dra.Claim:
    metadata = body["metadata"]
    return dra.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def claim(cluster: Cluster, profile: str, device: str, key: str) -> dict[str, Any]:
    """A claim allocated on a device, asking for a value of the profile's affinity key."""
    name = f"{profile}.sharingaffinity.dev"
    kind, field = KEYS[profile]
    config = {
        "opaque": {"driver": name, "parameters": {"apiVersion": f"{name}/v1", "kind": kind, field: key}}
    }
    request = {"name": "r", "exactly": {"deviceClassName": f"shared-{name}"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"generateName": "bench-"},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }
    created = cluster.request("POST", CLAIMS, body)
    result = {"request": "r", "driver": name, "pool": NODE, "device": device, "shareID": str(uuid.uuid4())}
    result["consumedCapacity"] = {"slots": "1"}
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    devices = {"results": [result], "config": [{"source": "FromClaim", **config}]}
    created["status"] = {"allocation": {"devices": devices, "allocationTimestamp": stamp}}
    stored: dict[str, Any] = cluster.request("PUT", f"{CLAIMS}/{created['metadata']['name']}/status", created)
    return stored


ROOTS = Path(tempfile.gettempdir()) / f"bench-driver-{os.getpid()}"


@contextmanager
def driver(cluster: Cluster, profile: str, folder: str, *flags: str) -> Iterator[Plugin]:
    """A driver process without kubelet, on a folder that it finds again under the same name."""
    root = ROOTS / folder
    root.mkdir(parents=True, exist_ok=True)
    kubeconfig = cluster.service_account_kubeconfig(DRIVER_NAMESPACE, f"affinity-driver-{profile}", NODE)
    argv = [
        *(sys.executable, "-m", "affinity_driver", "run", f"--profile={profile}", f"--node-name={NODE}"),
        *(f"--kubeconfig={kubeconfig}", f"--kubelet-root-dir={root}", f"--cdi-dir={root / 'cdi'}"),
        *("--no-publish", "--log-format=json", *flags),
    ]
    log = (root / "log").open("ab")
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": PYTHON_PATH}, stderr=log, stdout=log)
    try:
        plugins = root / "plugins" / f"{profile}.sharingaffinity.dev"
        yield Plugin(wait_for("driver's socket", lambda: next(iter(plugins.glob("dra-*.sock")), None), 30))
    finally:
        process.kill()
        process.wait()
        for path in root.rglob("*.sock"):
            path.unlink()
        log.close()
