"""Two replicas, a proxy that breaks things, leaders that are killed in the middle of writes: by seed.

Each seed draws a workload, faults and kills from one generator, so a seed that fails can be run again:
``pytest tests/integration/test_operator_chaos.py -k 'seed-7]'``. The history is watched beside the proxy.
At every point no device holds two key maps or more than its capacity; at rest memory equals a rebuild, what
can be placed is placed, and nothing of ours is left over.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.faults import FaultProxy, Rule
from harness.history import History, subnet_of
from harness.operator import FINALIZER, MERGE, QUICK_LEASE, RECORD, Process, Site, eventually

from e2e.cluster import Cluster
from sharing_affinity.engine import Applied, Engine, Options, Placed
from sharing_affinity.runtime.conditions import find

pytestmark = [pytest.mark.integration, pytest.mark.faults]

QUICK_SEEDS, QUICK_ROUNDS, ROUNDS = 15, 2, 4
"""Seeds of every CI run, which are short so that all of them fit its time, and rounds of faults of a seed."""
SLOTS = 3
SUBNETS = "abc"
FLAGS = (
    *QUICK_LEASE, "--fence-settle", "0", "--grace", "3", "--cool-down", "1", "--exclusion", "0.5",
    "--write-timeout", "1", "--watch-silence", "3", "--stale-after", "5",
    "--audit-interval", "2", "--strict-audit",
)  # fmt: skip

WRITES = [
    Rule("PATCH", "/resourceclaims/"),
    Rule("PUT", "/resourceclaims/.*/status"),
]
FAULTS = [
    {"reset": "before"},
    {"reset": "after"},
    {"answer": (500, "InternalError")},
    {"answer": (409, "Conflict")},
    {"answer": (429, "TooManyRequests"), "retry_after": 1},
    {"answer": (503, "ServiceUnavailable")},
    {"delay": 0.4},
    {"delay": 1.6},
    {"delay_answer": 0.4},
    {"delay_answer": 1.6},
    {"hang": 3.0},
]
WATCH_FAULTS: list[dict[str, Any]] = [
    {"duplicate": True},
    {"late": 0.1},
    {"cut": 2},
    {"cut": 0},
    {"silent": 1},
    {"error": 410},
    {"error": 500},
    {"answer": (410, "Expired")},
    {"answer": (429, "TooManyRequests")},
]
KINDS = ["/resourceclaims", "/pods", "/resourceslices", "/sharingaffinityslices", "/nodes"]


def seeds() -> list[Any]:
    long = (pytest.mark.long,)
    return [
        pytest.param(seed, id=f"seed-{seed}", marks=() if seed < QUICK_SEEDS else long) for seed in range(200)
    ]


class Replicas:
    """Two operators behind the proxy; the dead are replaced."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.running: list[Process] = []
        self.ended: list[Process] = []

    def fill(self) -> None:
        for process in [process for process in self.running if process.process.poll() is not None]:
            self.running.remove(process)
            self.ended.append(process)
        while len(self.running) < 2:
            self.running.append(Process(self.kubeconfig, *FLAGS))

    def leader(self) -> Process | None:
        return next((process for process in self.running if process.metric("leader") == 1), None)

    def kill_leader(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        leader.kill()
        self.fill()
        return True

    def failed(self) -> list[str]:
        """Processes that ended by themselves: none may."""
        return [
            f"{process.identity} ended with {process.process.returncode}: {process.lines[-1:]}"
            for process in self.ended
            if process.process.returncode not in (-9, 0)
        ]

    def stop(self) -> None:
        for process in self.running:
            if process.process.poll() is None:
                process.stop(20)
        for process in (*self.ended, *self.running):
            print(f"--- {process.identity} {process.process.returncode} ---\n{process.log[-6000:]}")


class Workload:
    """Pods that come and go, a claim each; at most ``SLOTS`` live pods for a subnet."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site, self.chance = site, chance
        self.number = 0
        self.live: dict[str, str] = {}
        self.standalone: set[str] = set()

    def step(self) -> None:
        if self.live and self.chance.random() < 0.4:
            name = self.chance.choice(sorted(self.live))
            del self.live[name]
            self.site.delete_pod(name)
            if self.chance.random() < 0.7:
                self.site.delete_claim(name)
            else:
                self.standalone.add(name)
            return
        subnet = self.chance.choice(SUBNETS)
        if list(self.live.values()).count(subnet) < SLOTS:
            self.number += 1
            name = f"p{self.number}"
            self.live[name] = subnet
            self.site.run(name, subnet)


def draw_faults(proxy: FaultProxy, chance: random.Random) -> None:
    proxy.clear()
    for _ in range(chance.randint(1, 3)):
        proxy.add(replace(chance.choice(WRITES), chance=0.3, **chance.choice(FAULTS)))
    if chance.random() < 0.8:
        rule = Rule(path=chance.choice(KINDS), watch=True, chance=0.5, **chance.choice(WATCH_FAULTS))
        proxy.add(rule)
    if chance.random() < 0.3:
        proxy.add(Rule("GET", chance.choice(KINDS), watch=False, chance=0.3, answer=(500, "InternalError")))
    if chance.random() < 0.5:
        proxy.drop_all()


def kill_in_a_write(proxy: FaultProxy, replicas: Replicas, workload: Workload, chance: random.Random) -> None:
    """Before the write is forwarded, after it is committed and before the answer, or after the answer."""
    write = chance.choice(WRITES)
    moment: dict[str, Any] = chance.choice([{"hang": 8.0}, {"delay_answer": 8.0}, {}])
    proxy.clear()
    rule = proxy.add(replace(write, times=1, **moment))
    deadline = time.monotonic() + 5
    while not rule.hits and time.monotonic() < deadline:
        workload.step()
        time.sleep(0.1)
    replicas.kill_leader()


@pytest.mark.parametrize("seed", seeds())
def test_nothing_goes_wrong(
    control_plane: Cluster, kubeconfig: Path, site: Site, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    nodes = [site.node(f"n{number}") for number in range(2)]
    for node in nodes:
        site.publish(node, slots=SLOTS)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(control_plane.kubeconfig, seed))
        history = stack.enter_context(History(control_plane.kubeconfig, site.namespace))
        replicas = Replicas(proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig"))
        stack.callback(replicas.stop)
        replicas.fill()
        eventually("a leader", replicas.leader)
        workload = Workload(site, chance)
        for _ in range(QUICK_ROUNDS if seed < QUICK_SEEDS else ROUNDS):
            draw_faults(proxy, chance)
            for _ in range(chance.randint(4, 10)):
                workload.step()
                time.sleep(chance.random() * 0.3)
            match chance.randrange(4):
                case 0:
                    kill_in_a_write(proxy, replicas, workload, chance)
                case 1:
                    replicas.kill_leader()
                case 2:
                    site.publish(chance.choice(nodes), slots=SLOTS)
                case _:
                    pass
            replicas.fill()
        proxy.clear()
        proxy.drop_all()

        eventually("rest", lambda: at_rest(site, workload, kubeconfig))
        assert history.violations(site.driver, SLOTS, subnet_of) == []
        leader = eventually("a leader", replicas.leader)
        audits = leader.metric("audits_total")
        site.claim("kick")
        eventually("an audit at rest", lambda: kick(site) or leader.metric("audits_total") > audits)
        assert leader.metric("audit_differences_total") == 0
        assert leader.metric("late_wakeups_total") == 0
        eventually("the view to be the table", lambda: shown(site) == table(kubeconfig, site))
        eventually("conditions of bound pods to go", lambda: not outdated(site))

        site.delete_pods()
        with contextlib.suppress(AssertionError):
            eventually("everything to be free", lambda: not leftovers(site))
        assert leftovers(site) == []
        assert history.violations(site.driver, SLOTS, subnet_of) == []
        replicas.fill()
        assert replicas.failed() == []


def at_rest(site: Site, workload: Workload, kubeconfig: Path) -> bool:
    """Every live pod is bound, or an engine that knows what the server holds can't place it either."""
    pods = site.cluster.request("GET", site.path("pod"))["items"]
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
    if not waiting:
        return True
    engine = Engine(Options(fence_settle=0, cool_down=0, exclusion=0))
    for kind, path in (
        ("Node", "/api/v1/nodes"),
        ("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
        ("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
        ("SharingAffinitySlice", "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"),
        ("ResourceClaim", site.path("claim")),
        ("Pod", site.path("pod")),
    ):
        found = site.cluster.request("GET", path)
        for raw in found["items"]:
            engine.observe(Applied({**raw, "kind": kind, "apiVersion": found["apiVersion"]}), time.time())
    for _ in range(3):
        for pod in engine.pods():
            engine.decide(pod, time.time(), lambda: "")
        while engine.extract(100):
            pass
        engine.settle()
    share = "00000000-0000-4000-8000-000000000000"
    return not any(
        isinstance(engine.decide(pod, time.time(), lambda: share), Placed) for pod in engine.pods()
    )


def table(kubeconfig: Path, site: Site) -> dict[str, Any]:
    out = subprocess.run(
        [sys.executable, "-m", "sharing_affinity", "locks", "-o", "json", "--kubeconfig", str(kubeconfig)],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    return {
        f"{pool['pool']}/{device['device']}": (device["state"], device["lock"], len(device["holders"]))
        for pool in json.loads(out)["pools"]
        if pool["driver"] == site.driver
        for device in pool["devices"]
    }


def shown(site: Site) -> dict[str, Any]:
    return {name: (row["state"], row.get("lock"), row["holderCount"]) for name, row in site.table().items()}


def kick(site: Site) -> None:
    """Something happens to a claim, so that the feed passes the audit's list without a bookmark."""
    change = {"metadata": {"labels": {"kick": str(time.monotonic_ns())}}}
    site.cluster.request("PATCH", site.path("claim", "kick"), change, content_type=MERGE)
    time.sleep(0.3)


def outdated(site: Site) -> list[str]:
    """Pods that have a node and still the condition that they wait."""
    return [
        pod["metadata"]["name"]
        for pod in site.cluster.request("GET", site.path("pod"))["items"]
        if pod["spec"].get("nodeName") and find(pod)
    ]


def leftovers(site: Site) -> list[str]:
    """Claims that still have an allocation, a record or a finalizer."""
    found = []
    for claim in site.cluster.request("GET", site.path("claim"))["items"]:
        meta, status = claim["metadata"], claim.get("status") or {}
        what = [
            *(["allocation"] if status.get("allocation") else []),
            *(["reservation"] if status.get("reservedFor") else []),
            *(["record"] if RECORD in meta.get("annotations", {}) else []),
            *(["finalizer"] if FINALIZER in meta.get("finalizers", []) else []),
            *(["deletion"] if meta.get("deletionTimestamp") else []),
        ]
        if what:
            found.append(f"{meta['name']}: {', '.join(what)}")
    return found
