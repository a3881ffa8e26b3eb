"""The device search against upstream's structured allocator of 1.37, on random clusters, node by node.

Same results, or none on both sides. The mix is printed and asserted, so that agreement means something.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from differential.allocate_scenarios import Scenario, fenced, for_go, generate
from harness import oracle

from sharing_affinity.allocator import NodeError, Selectors
from sharing_affinity.allocator.result import allocation
from sharing_affinity.api import parse_claim, quantity
from sharing_affinity.engine import Applied, Options
from sharing_affinity.engine.cases import Case
from sharing_affinity.engine.deciding import Decider
from sharing_affinity.engine.extracting import Extractions
from sharing_affinity.engine.matching import NotIndexed
from sharing_affinity.engine.world import World

pytestmark = pytest.mark.differential
JSON = dict[str, Any]

SCENARIOS = int(os.environ.get("ALLOCATE_SCENARIOS", "3000"))
FIRST_SEED = int(os.environ.get("ALLOCATE_SEED", "1"))
FEATURES = (
    "All", "admin", "binding conditions", "capacity request", "class config", "class selector", "config",
    "count",
    "counters", "distinctAttribute", "firstAvailable", "holder", "incomplete", "matchAttribute",
    "node selection",
    "policy default", "policy fraction", "policy range", "policy step", "policy values", "request selector",
    "rule", "several slices", "shareable", "taint", "toleration",
)  # fmt: skip


class Ours:
    """Our side, with compiled expressions and their results shared between scenarios."""

    def __init__(self) -> None:
        self.extractions = Extractions()
        self.selectors = Selectors()
        self.backtracked = False

    def solve(self, scenario: Scenario) -> dict[str, list[JSON] | str]:
        """By node: allocations of the claims, or why there are none."""
        world = World(Options(scoring=False, fence_settle=0.0), self.extractions, self.selectors)
        for raw in fenced(scenario):
            changes = world.observe(Applied(raw), 0.0)
            assert changes.problem is None, changes.problem
        while self.extractions.run(100):
            pass
        world.settle_extractions()
        decider = Decider(world)
        claims = tuple(parse_claim(raw) for raw in scenario.claims)
        self.backtracked = False
        return {name: self._on_node(world, decider, claims, name) for name in sorted(world.nodes)}

    def _look_up(self, world: World, decider: Decider, claims: Any) -> None:
        with suppress(NotIndexed):
            world.matches.require(decider.cases.signatures(claims))
        while world.matches.busy:
            world.matches.work()

    def _extract(self, world: World, decider: Decider, case: Case) -> None:
        for pool in world.pools.values():
            for index, claim in enumerate(case.ours):
                for request in claim.requests:
                    for alternative, _ in request.alternatives():
                        decider.cases.outcome(case, pool, index, alternative)
        while self.extractions.run(100):
            pass

    def _on_node(self, world: World, decider: Decider, claims: Any, name: str) -> list[JSON] | str:
        case = Case(pod=None, ours=claims)  # type: ignore[arg-type] - the search does not look at the pod
        node = world.nodes[name]
        try:
            self._look_up(world, decider, claims)
            requests = decider.requests_on(case, node)
            self._extract(world, decider, case)
            search = decider.search(case, requests, 0.0)
            solution = search.run()
        except NodeError as error:
            return str(error)
        self.backtracked = self.backtracked or search.backtracks > 0
        if solution is None:
            return "nothing found"
        numbers = itertools.count()
        written = []
        for index, claim in enumerate(claims):
            selected = [solution.selected[(index, i)] for i in range(len(claim.requests))]
            written.append(
                allocation(
                    claim,
                    solution.results[index],
                    selected,
                    name,
                    "",
                    lambda: str(uuid.UUID(int=next(numbers))),
                )
            )
        return written


def normal(allocation: JSON) -> JSON:
    """What has to be equal: no share IDs or times, quantities by value, absent for empty."""
    devices = allocation.get("devices") or {}
    results = []
    for raw in devices.get("results") or []:
        result = {k: v for k, v in raw.items() if v not in (None, [], {})}
        if "shareID" in result:
            result["shareID"] = "some"
        if "consumedCapacity" in result:
            result["consumedCapacity"] = {
                n: quantity.parse(v).amount for n, v in result["consumedCapacity"].items()
            }
        results.append(result)
    configs = [{k: v for k, v in c.items() if v not in (None, [])} for c in devices.get("config") or []]
    return {"results": results, "config": configs, "nodeSelector": allocation.get("nodeSelector")}


@pytest.fixture(scope="module")
def go() -> Iterator[Any]:
    with oracle.Oracle("allocate") as running:
        yield running


def test_same_allocations_as_upstream(go: Any) -> None:
    ours = Ours()
    mix: Counter[str] = Counter()
    seeds = range(FIRST_SEED, FIRST_SEED + SCENARIOS)
    for start in range(0, SCENARIOS, 200):
        batch = seeds[start : start + 200]
        scenarios = [generate(seed) for seed in batch]
        answers = go.ask_all([for_go(scenario) for scenario in scenarios])
        for seed, scenario, answer in zip(batch, scenarios, answers, strict=True):
            assert "error" not in answer, (seed, answer)
            found = ours.solve(scenario)
            allocated = False
            for theirs in answer["nodes"]:
                assert "panic" not in theirs, (seed, theirs)
                mine = found[theirs["node"]]
                expected = [normal(a) for a in theirs["results"]] if theirs["results"] else None
                got = None if isinstance(mine, str) else [normal(a) for a in mine]
                assert got == expected, f"seed {seed}, node {theirs['node']}: {mine} / {theirs}"
                allocated = allocated or expected is not None
            mix["allocated" if allocated else "not allocated"] += 1
            mix["backtracked"] += ours.backtracked
            mix.update(scenario.features)
    report(mix)
    if SCENARIOS >= 1000:
        check(mix)


def report(mix: Counter[str]) -> None:
    print(f"\n{SCENARIOS} scenarios from seed {FIRST_SEED}, no difference; share of scenarios with:")
    for name, number in sorted(mix.items()):
        print(f"  {name:22} {number / SCENARIOS:6.1%}")


def check(mix: Counter[str]) -> None:
    assert mix["allocated"] >= 0.4 * SCENARIOS
    assert mix["not allocated"] >= 0.2 * SCENARIOS
    assert mix["backtracked"] >= 0.15 * SCENARIOS
    for feature in FEATURES:
        assert mix[feature] >= 0.05 * SCENARIOS, feature
