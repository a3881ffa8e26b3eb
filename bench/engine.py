"""How the engine scales: time of a decision, of a rebuild, and memory, by number of nodes.

    python -m bench engine [--nodes 100,1000,5000] [--claims 10000] [--decisions 2000] [--go] [-o json]

N nodes with 8 shareable NICs of 16 slots each; 10,000 allocated claims (as many as fit at 100 nodes) with 8
values of one key on 70 % of the devices; then pods with one claim, one request, values in turn, each decided,
assumed and seen allocated. ``--go`` times the structured allocator of kube-scheduler in the same run and in
the same worlds: all ResourceSlices and allocated claims given, one node a call.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from sharing_affinity.api import record as records
from sharing_affinity.engine import Applied, Engine, Options, Placed

JSON = dict[str, Any]
DRIVER = "nic.example.com"
VALUES = [f"subnet-{i}" for i in range(8)]
SLOTS = 16
DEVICES = 8
TARGETS = {
    "decision p50 over the Go call in the same world, at 1,000 nodes": 10.0,
    "decision p50 at 1,000 nodes, ms": 0.5,
    "decision p99 at 1,000 nodes, ms": 3.0,
    "p50 at 5,000 over 100 nodes": 2.0,
    "rebuild of 10,000 claims, s": 1.5,
    "memory at 1,000 nodes, MiB": 120.0,
    "memory at 5,000 nodes, MiB": 250.0,
}


def cluster(nodes: int) -> Iterator[JSON]:
    yield {
        "kind": "DeviceClass",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": "nic", "uid": "class"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    for index in range(nodes):
        name = f"node-{index:05}"
        yield {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250"}},
        }
        yield {
            "kind": "SharingAffinitySlice",
            "apiVersion": "sharingaffinity.dev/v1alpha1",
            "metadata": {"name": f"{name}-meta", "uid": f"{name}-meta"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 2},
                "sharingAffinity": [
                    {"name": "subnet", "expression": 'object.kind == "NICConfig" ? object.subnet : ""'}
                ],
            },
        }
        yield device_slice(name)


def device_slice(node: str, fence: bool = True) -> JSON:
    taints = [{"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}] if fence else []
    return {
        "kind": "ResourceSlice",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": f"{node}-dev", "uid": f"{node}-dev"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"eth{d}",
                    "allowMultipleAllocations": True,
                    "attributes": {"model": {"string": "x710"}, "index": {"int": d}},
                    "capacity": {
                        "slots": {
                            "value": str(SLOTS),
                            "requestPolicy": {
                                "default": "1",
                                "validRange": {"min": "1", "max": str(SLOTS), "step": "1"},
                            },
                        }
                    },
                    "taints": taints,
                }
                for d in range(DEVICES)
            ],
        },
    }


def config(value: str) -> JSON:
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "NICConfig", "subnet": value, "mtu": 9000}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def claim(name: str, value: str, version: int = 1) -> JSON:
    return {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "nic",
                        "exactly": {"deviceClassName": "nic", "allocationMode": "ExactCount", "count": 1},
                    }
                ],
                "config": [config(value)],
            }
        },
    }


def held(nodes: int, claims: int) -> Iterator[JSON]:
    """Allocated claims on 70 % of the devices, one value a device, spread evenly."""
    rng = random.Random(5981)
    devices = [(f"node-{n:05}", f"eth{d}") for n in range(nodes) for d in range(DEVICES)]
    rng.shuffle(devices)
    locked = devices[: len(devices) * 7 // 10]
    # Some room stays on every device, or nothing could be packed.
    number = min(claims, len(locked) * (SLOTS - 4))
    for index in range(number):
        at = index % len(locked)
        node, device = locked[at]
        raw = claim(f"held-{index}", VALUES[at % len(VALUES)])
        result = {
            "request": "nic",
            "driver": DRIVER,
            "pool": node,
            "device": device,
            "shareID": str(uuid.UUID(int=index)),
            "consumedCapacity": {"slots": "1"},
        }
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        raw["status"] = {
            "allocation": {
                "devices": {
                    "results": [result],
                    "config": [{"source": "FromClaim", **raw["spec"]["devices"]["config"][0]}],
                },
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            }
        }
        yield raw


def memory_mib() -> float:
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a kernel file
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def extract(engine: Engine) -> None:
    while engine.extract(1000):
        pass


def measure(nodes: int, claims: int, decisions: int, with_go: bool) -> dict[str, float]:
    """One row."""
    gc.collect()
    before = memory_mib()
    engine = Engine(Options(fence_settle=0.0))
    started = time.perf_counter()
    for raw in cluster(nodes):
        engine.observe(Applied(raw))
    loaded = time.perf_counter()
    holders = 0
    for raw in held(nodes, claims):
        engine.observe(Applied(raw))
        holders += 1
    extract(engine)
    held_at = time.perf_counter()
    engine.rebuild()
    extract(engine)
    rebuilt = time.perf_counter()
    gc.collect()
    used = memory_mib() - before
    with upstream(nodes, claims) if with_go else nullcontext() as beside:
        times, calls = decide(engine, decisions, beside)
        again = decide_again(engine)
    row = {
        "nodes": nodes,
        "claims": holders,
        "slices s": loaded - started,
        "claims s": held_at - loaded,
        "rebuild s": rebuilt - held_at,
        "p50 ms": statistics.median(times) * 1e3,
        "p99 ms": statistics.quantiles(times, n=100)[98] * 1e3,
        "max ms": max(times) * 1e3,
        "again ms": again * 1e3,
        "MiB": used,
    }
    if beside is not None:
        row |= {"go ms": statistics.median(calls), "again go": beside.again, "go new ms": beside.anew}
        row |= {"p50/go": row["p50 ms"] / row["go ms"], "again/go": row["again ms"] / row["again go"]}
    return row


def decide(engine: Engine, decisions: int, beside: Upstream | None) -> tuple[list[float], list[float]]:
    """Seconds of decisions; what is decided is assumed and seen, so that the next one meets it.

    With ``beside`` also the milliseconds that its allocator takes for the node that was chosen, in turns:
    so both meet the same speed of the machine, and caches that other work has used meanwhile.
    """
    times, calls = [], []
    for index in range(decisions):
        name = f"new-{index}"
        raw = ask(engine, name, VALUES[index % len(VALUES)])
        while True:
            started = time.perf_counter()
            decision = engine.decide(("default", name), 1.0, new_uuid)
            times.append(time.perf_counter() - started)
            if isinstance(decision, Placed):
                break
            assert engine.extract(0), decision
            extract(engine)
        if beside is not None:
            calls.append(beside.call(decision.node))
        engine.assume(decision)
        write = decision.writes[0]
        note = {"sharingaffinity.dev/allocation": records.encode(write.record)}
        raw["metadata"].update(resourceVersion="2", annotations=note)
        raw["status"] = {"allocation": write.allocation}
        engine.observe(Applied(raw))
    return times, calls


def ask(engine: Engine, name: str, value: str) -> JSON:
    """A new claim, returned, and the pod that wants it; all is extracted and looked up."""
    raw = claim(name, value)
    engine.observe(Applied(raw))
    engine.observe(
        Applied(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "default", "uid": f"pod-{name}"},
                "spec": {
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}],
                    "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
                },
                "status": {"phase": "Pending"},
            }
        )
    )
    extract(engine)
    return raw


def decide_again(engine: Engine, repeat: int = 1000) -> float:
    """Mean seconds of one and the same decision, made again and again: it changes nothing."""
    ask(engine, "again", VALUES[0])
    started = time.perf_counter()
    for _ in range(repeat):
        assert isinstance(engine.decide(("default", "again"), 1.0, new_uuid), Placed)
    return (time.perf_counter() - started) / repeat


def new_uuid() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Upstream:
    """The structured allocator of kube-scheduler in such a world, for one new claim on one node at a time.

    ``again`` is the mean of 1,000 equal calls, ``anew`` that of gathering the allocated state from the claims
    and making the allocator before each call (kube-scheduler makes one for every pod, but keeps the state);
    both medians over ten nodes, in ms.
    """

    ask: Callable[[JSON], JSON]
    again: float
    anew: float

    def call(self, node: str) -> float:
        """Milliseconds of one call."""
        (answer,) = self.ask({"again": True, "nodes": [{"metadata": {"name": node}}]})["nodes"]
        assert answer["results"], answer
        return float(answer["nanos"]) / 1e6


@contextmanager
def upstream(nodes: int, claims: int) -> Iterator[Upstream]:
    """Upstream's allocator in an oracle for the time of a block."""
    sys.path.insert(0, "tests")
    from harness import oracle

    with oracle.Oracle("allocate", answer_timeout_s=300) as running:
        answer = running.ask(
            {
                "slices": [device_slice(f"node-{i:05}", fence=False) for i in range(nodes)],
                "classes": [next(cluster(0))],
                "claims": [claim("new", VALUES[0])],
                "allocated": list(held(nodes, claims)),
                "nodes": [
                    {"metadata": {"name": f"node-{i:05}"}} for i in range(0, nodes, max(1, nodes // 10))
                ],
                "features": [],
                "bench": 1000,
            }
        )
        for node in answer["nodes"]:
            assert node["results"], node
        again = statistics.median(node["nanos"] for node in answer["nodes"]) / 1e6
        anew = statistics.median(node["wholeNanos"] for node in answer["nodes"]) / 1e6
        yield Upstream(running.ask, again, anew)


def main(argv: Sequence[str]) -> int:
    """Print the table; with ``--go`` also how the median compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--nodes", default="100,1000,5000")
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--go", action="store_true", help="time upstream's allocator too (needs Go)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    args = parser.parse_args(argv)
    rows = [measure(int(n), args.claims, args.decisions, args.go) for n in args.nodes.split(",")]
    content: JSON = {"rows": rows, "targets": TARGETS}
    if args.output == "json":
        print(json.dumps(content, indent=2))
        return 0
    print("  ".join(f"{name:>10}" for name in rows[0]))
    for row in rows:
        print(
            "  ".join(
                f"{value:>10.3f}" if isinstance(value, float) else f"{value:>10}" for value in row.values()
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
