"""The operator beside the stock scheduler: pods per second, latency, CPU, memory, and a restart with 10,000
claims.

One control plane with hand-made nodes. 1000 pods with one shared-device claim each go onto 20 nodes x 8
devices: through kube-scheduler alone (plain devices), then through the operator (fenced devices,
extraction, locks, Events), three times in turn, so that a busy machine slows both. Scheduler and operator
have the client limits they have in clusters; ``--raised-limits`` shows what the CPU allows. Then 10,000
allocated claims are written and a fresh operator is started: time until it is ready, beside a bare paged
list with decoding of the same claims, its memory, and what it costs when nothing happens.

Targets: at least the stock rate; ready after at most 4 times the bare list and under 250 MiB. Exit code 1
when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from e2e import local, paths, processes
from e2e.cluster import Cluster
from sharing_affinity.runtime.client import ApiError, Client, Login
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.snapshot import pages

ROOT = Path(__file__).parent.parent
SYSTEM = "sharing-affinity-system"
SUBNETS = 40
Json = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Run it; 1 when a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench operator", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind; 0 leaves them out")
    parser.add_argument("--claims", type=int, default=10_000, help="claims of the restart; 0 leaves it out")
    parser.add_argument(
        "--raised-limits",
        action="store_true",
        help="1000 requests/s and more for scheduler and operator, instead of 50 for each",
    )
    parser.add_argument("--profile", type=Path, help="write cProfile statistics of the operator here")
    args = parser.parse_args(argv)
    cluster = local.up(
        local.Options(name=f"bench-{os.getpid()}", nodes=0, scheduler_qps=1000 if args.raised_limits else 50)
    )
    try:
        cluster.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/overlays/local"))
        for number in range(args.nodes):
            cluster.add_node(f"node-{number:02}", allocatable={"cpu": "640", "pods": "1000"})
        return asyncio.run(run(cluster, args))
    finally:
        cluster.down()


async def run(cluster: Cluster, args: argparse.Namespace) -> int:
    missed = []
    async with Client(Login(str(cluster.kubeconfig))) as admin:
        bench = Bench(cluster, admin, args)
        rates: dict[str, list[float]] = {"stock": [], "operator": []}
        for pair in range(args.pairs):
            for kind in ("stock", "operator"):
                figures = await bench.throughput(kind, f"{kind}-{pair}")
                rates[kind].append(figures["rate"])
                show(kind, figures)
        if args.pairs:
            ratio = median(rates["operator"]) / median(rates["stock"])
            print(f"operator/stock, medians of {args.pairs}: {ratio:.2f} (target 1.0)")
            if ratio < 1.0:
                missed.append("throughput")
        if args.claims:
            figures = await bench.restart(args.claims)
            show("restart", figures)
            if figures["ready/list"] > 4:
                missed.append("restart time")
            if figures["MiB"] > 250:
                missed.append("memory")
    print("missed: " + ", ".join(missed) if missed else "all targets met")
    return 1 if missed else 0


def show(what: str, figures: Mapping[str, float]) -> None:
    print(f"{what:9} " + "  ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)


class Operator:
    """``sharing-affinity run`` with its CPU and memory."""

    def __init__(self, cluster: Cluster, args: argparse.Namespace) -> None:
        kubeconfig = cluster.service_account_kubeconfig(SYSTEM, "sharing-affinity-operator")
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)  # noqa: SIM115 - read later
        self.started = time.monotonic()
        flags = "--http 127.0.0.1:0 --log-format json --fence-settle 0"
        if args.raised_limits:
            flags += " --kube-api-qps 2000 --kube-api-burst 2000 --concurrency 32"
        profiled = ["-m", "cProfile", "-o", str(args.profile)] if args.profile is not None else []
        command = [sys.executable, *profiled, "-m", "sharing_affinity", "run", *flags.split()]
        self.process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig), "--namespace", SYSTEM],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        # Also when the benchmark is told to end in the middle of a run.
        atexit.register(self.process.kill)

    def said(self, text: str) -> str | None:
        return next((line for line in Path(self.log.name).read_text().splitlines() if text in line), None)

    async def wait(self, text: str, seconds: float = 120) -> str:
        while (line := await asyncio.to_thread(self.said, text)) is None:
            if self.process.poll() is not None or time.monotonic() - self.started > seconds:
                raise RuntimeError(f"no {text} in {self.log.name}")
            await asyncio.sleep(0.02)
        return line

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        return cpu_seconds(self.process.pid)

    def mebibytes(self, what: str = "VmRSS") -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", text)
        return int(found[1]) / 1024 if found else 0.0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        Path(self.log.name).unlink()


class Bench:
    def __init__(self, cluster: Cluster, admin: Client, args: argparse.Namespace) -> None:
        self.cluster, self.admin, self.args = cluster, admin, args
        self.folder = paths.cluster_dir(cluster.name)

    async def many(self, work: Iterable[Callable[[], Awaitable[Any]]], concurrency: int = 24) -> None:
        queue = list(work)
        queue.reverse()

        async def worker() -> None:
            while queue:
                await queue.pop()()

        await asyncio.gather(*(worker() for _ in range(concurrency)))

    async def delete(self, path: str) -> None:
        try:
            await self.admin.request("DELETE", path, body={"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise

    async def publish(self, driver: str, fenced: bool) -> list[str]:
        """20 pools of 8 devices; returns the paths of what was made."""
        made = []
        await self.admin.request(
            "POST",
            "/apis/resource.k8s.io/v1/deviceclasses",
            body={
                "metadata": {"name": driver},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
            },
        )
        made.append(f"/apis/resource.k8s.io/v1/deviceclasses/{driver}")
        for number in range(self.args.nodes):
            node = f"node-{number:02}"
            where = {"driver": driver, "nodeName": node}
            if fenced:
                path = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
                extractor = 'object.kind == "NICConfig" && has(object.subnet) ? object.subnet : ""'
                await self.admin.request(
                    "POST",
                    path,
                    body={
                        "apiVersion": "sharingaffinity.dev/v1alpha1",
                        "kind": "SharingAffinitySlice",
                        "metadata": {"name": f"{driver}-{node}"},
                        "spec": {
                            **where,
                            "pool": {"name": node, "generation": 1, "resourceSliceCount": 2},
                            "sharingAffinity": [{"name": "subnet", "expression": extractor}],
                        },
                    },
                )
                made.append(f"{path}/{driver}-{node}")
            taints = [{"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}] if fenced else []
            devices = [
                {
                    "name": f"eth{device}",
                    "allowMultipleAllocations": True,
                    "capacity": {"slots": {"value": "16", "requestPolicy": {"default": "1"}}},
                    "taints": taints,
                }
                for device in range(8)
            ]
            path = "/apis/resource.k8s.io/v1/resourceslices"
            await self.admin.request(
                "POST",
                path,
                body={
                    "metadata": {"name": f"{driver}-{node}"},
                    "spec": {
                        **where,
                        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                        "devices": devices,
                    },
                },
            )
            made.append(f"{path}/{driver}-{node}")
        return made

    def claim(self, driver: str, number: int) -> Json:
        config = {"kind": "NICConfig", "subnet": f"net-{number % SUBNETS}"}
        return {
            "metadata": {"name": f"c{number}"},
            "spec": {
                "devices": {
                    "requests": [{"name": "nic", "exactly": {"deviceClassName": driver}}],
                    "config": [{"opaque": {"driver": driver, "parameters": config}}],
                }
            },
        }

    def pod(self, number: int) -> Json:
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}
        return {
            "metadata": {"name": f"p{number}"},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "resourceClaims": [{"name": "nic", "resourceClaimName": f"c{number}"}],
            },
        }

    async def throughput(self, kind: str, name: str) -> dict[str, float]:
        """One run in a namespace of its own: pods/s from the first pod made to the last one bound."""
        driver = f"{name}.sharingaffinity.dev"
        await self.admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        while True:
            accounts = await self.admin.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts")
            if accounts["items"]:
                break
            await asyncio.sleep(0.1)
        operator = Operator(self.cluster, self.args) if kind == "operator" else None
        made = await self.publish(driver, kind == "operator")
        if operator is not None:
            await operator.wait('"allocating"')
        claims = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims"
        pods = f"/api/v1/namespaces/{name}/pods"
        total = self.args.pods
        await self.many(
            (lambda n=n: self.admin.request("POST", claims, body=self.claim(driver, n))) for n in range(total)
        )
        await asyncio.sleep(1.0)
        created: dict[str, float] = {}
        # From before the first pod, or a slow start of a watch would miss what a quick scheduler does.
        observer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench._observer", str(self.cluster.kubeconfig), name),
            *(await self.version(pods), await self.version(claims), str(total)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        assert observer.stdout is not None
        await observer.stdout.readline()
        spent = self.cpu(operator)
        started = time.monotonic()

        async def make(number: int) -> None:
            await self.admin.request("POST", pods, body=self.pod(number))
            created[f"c{number}"] = time.monotonic()

        await self.many((lambda n=n: make(n)) for n in range(total))
        making = time.monotonic() - started
        try:
            async with asyncio.timeout(300):
                seen = json.loads(await observer.stdout.readline())
        except TimeoutError as error:
            observer.terminate()
            raise RuntimeError(f"not all of {total} pods were bound within 300 s") from error
        await observer.wait()
        took = max(seen["bound"].values()) - started
        waits = sorted(seen["allocated"][claim] - created[claim] for claim in created)
        figures = {
            "rate": total / took,
            "seconds": took,
            "making": making,
            "p50": waits[len(waits) // 2],
            "p99": waits[int(len(waits) * 0.99)],
            "resumed": seen["resumed"],
        }
        figures |= {
            f"{what} CPU ms": (now - spent[what]) * 1000 / total for what, now in self.cpu(operator).items()
        }
        if operator is not None:
            figures["MiB"] = operator.mebibytes()
        await self.many((lambda n=n: self.delete(f"{pods}/p{n}")) for n in range(total))
        await self.many((lambda n=n: self.delete(f"{claims}/c{n}")) for n in range(total))
        while (await self.admin.request("GET", claims, params={"limit": "1"}))["items"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        if operator is not None:
            operator.stop()
        for path in made:
            await self.delete(path)
        # What is left to be cleaned up would be part of the next run's load.
        await self.delete(f"/api/v1/namespaces/{name}")
        while await self.exists(f"/api/v1/namespaces/{name}"):  # noqa: ASYNC110 - as everywhere here
            await asyncio.sleep(0.2)
        await asyncio.sleep(2.0)
        return figures

    async def exists(self, path: str) -> bool:
        try:
            await self.admin.request("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def version(self, path: str) -> str:
        """Where a watch of ``path`` starts that shall miss nothing from now on."""
        listed = await self.admin.request("GET", path, params={"limit": "1"})
        return str(listed["metadata"]["resourceVersion"])

    def cpu(self, operator: Operator | None) -> dict[str, float]:
        """Seconds of CPU so far of everything that serves the pods."""
        spent: dict[str, float] = {}
        for process in processes.find(self.folder):
            spent[process.component] = spent.get(process.component, 0.0) + cpu_seconds(process.pid)
        if operator is not None:
            spent["operator"] = operator.cpu()
        return spent

    async def restart(self, total: int) -> dict[str, float]:
        """A fresh process over ``total`` allocated claims."""
        name, driver = "restart", "restart.sharingaffinity.dev"
        await self.admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        made = await self.publish(driver, True)
        claims = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims"

        async def make(number: int) -> None:
            stored = await self.admin.request("POST", claims, body=self.claim(driver, number))
            node = f"node-{number % self.args.nodes:02}"
            result = {
                "request": "nic",
                "driver": driver,
                "pool": node,
                "device": f"eth{number % 8}",
                "shareID": _share(number),
                "consumedCapacity": {"slots": "1"},
            }
            config = {"source": "FromClaim", **stored["spec"]["devices"]["config"][0]}
            only = {"key": "metadata.name", "operator": "In", "values": [node]}
            stored["status"] = {
                "allocation": {
                    "devices": {"results": [result], "config": [config]},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]},
                    "allocationTimestamp": "2026-01-01T00:00:00Z",
                }
            }
            await self.admin.request("PUT", f"{claims}/c{number}/status", body=stored)

        await self.many((lambda n=n: make(n)) for n in range(total))
        listing = []
        for _ in range(3):
            started = time.monotonic()
            async for _page in pages(self.admin, CLAIMS):
                pass
            listing.append(time.monotonic() - started)
        operator = Operator(self.cluster, self.args)
        probes = await operator.wait('"probes"')
        port = json.loads(probes)["port"]
        beginning = time.monotonic()
        while not await asyncio.to_thread(_ready, port):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
        ready = time.monotonic() - beginning
        await operator.wait('"allocating"')
        # The views of the pools are written in the first seconds.
        await asyncio.sleep(12)
        memory, peak = operator.mebibytes(), operator.mebibytes("VmHWM")
        cpu = operator.cpu()
        await asyncio.sleep(10)
        idle = (operator.cpu() - cpu) / 10
        operator.stop()
        for path in made:
            await self.delete(path)
        return {
            "claims": total,
            "list": min(listing),
            "ready": ready,
            "ready/list": ready / min(listing),
            "MiB": memory,
            "peak MiB": peak,
            "idle CPU": idle,
        }


def cpu_seconds(pid: int) -> float:
    """CPU of one process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _share(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
