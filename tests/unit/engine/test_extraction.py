"""The extraction contract, its stage before decisions, and its limits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from harness import objects as o
from harness.worlds import World
from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity import locks
from sharing_affinity.api import DeviceConfig, Extractor, names
from sharing_affinity.engine import Applied, Placed, Reason, Unplaced
from sharing_affinity.engine.extracting import Extractions
from sharing_affinity.extraction import (
    CelEvaluator,
    ClaimError,
    Evaluation,
    Extracted,
    Extraction,
    SliceError,
    Unsatisfied,
    extract,
    in_scope_configs,
)
from sharing_affinity.locks import Hold, Occupancy, derive


def config(parameters: object, *requests: str, source: str = "FromClaim", driver: str = "d") -> DeviceConfig:
    return DeviceConfig(source, requests, driver, json.dumps(parameters))


class Table:
    """An evaluator that looks answers up: expression ``x`` yields the config's field ``x``."""

    def __init__(self, cost: int = 1) -> None:
        self.cost = cost
        self.asked = 0

    def evaluate(self, expression: str, config: DeviceConfig) -> Evaluation:
        self.asked += 1
        value = config.parameters.get(expression, "")
        if not isinstance(value, str):
            return Evaluation(None, "non-string", "no string", self.cost)
        return Evaluation(value, cost=self.cost)


def keys(*extractors: str, configs: list[DeviceConfig]) -> Extraction:
    return extract([Extractor(e, e) for e in extractors], configs, Table())


def test_scope() -> None:
    configs = [
        config({}),
        config({}, "nic"),
        config({}, "nic/a", "other"),
        config({}, "nic/b"),
        config({}, "ni"),
        config({}, driver="e"),
    ]
    assert in_scope_configs(configs, "d", "nic/a") == tuple(configs[:3])
    assert in_scope_configs(configs, "d", "nic") == tuple(configs[:2])
    assert in_scope_configs(configs, "e", "nic") == (configs[5],)


def test_values_are_merged_over_configs_and_extractors() -> None:
    found = keys("x", "y", configs=[config({"x": "1"}), config({"y": "2", "x": ""}), config({"x": "1"})])
    assert found == Extracted((("x", "1"), ("y", "2")))


def test_missing_conflicting_and_failing_values_in_that_order_of_weight() -> None:
    assert keys("x", "y", "z", configs=[config({"x": "1"})]) == Unsatisfied(("y", "z"))
    torn = [config({"x": "1"}), config({"x": "2"})]
    assert keys("x", "y", configs=torn) == ClaimError("x", ("1", "2"))
    assert isinstance(keys("x", "y", configs=[*torn, config({"y": 7})]), SliceError)
    assert keys("x", configs=[]) == Unsatisfied(("x",))


def test_claim_wins_over_class_and_class_conflicts_do_not_matter_then() -> None:
    classes = [config({"x": v}, source="FromClass") for v in "ab"]
    assert keys("x", configs=classes) == ClaimError("x", ("a", "b"))
    assert keys("x", configs=[*classes, config({"x": "c"})]) == Extracted((("x", "c"),))


PARAMETERS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["", "1", "2", 7]), max_size=3)
CONFIGS = st.lists(
    st.builds(config, PARAMETERS, source=st.sampled_from(["FromClaim", "FromClass"])), max_size=4
)


@given(CONFIGS)
def test_order_does_not_matter(configs: list[DeviceConfig]) -> None:
    extractors = [Extractor(e, e) for e in "xyz"]
    outcomes = {
        extract(some, many, Table())
        for some in itertools.permutations(extractors)
        for many in itertools.islice(itertools.permutations(configs), 6)
    }
    assert len(outcomes) == 1


def test_all_configs_of_a_request_together_are_capped() -> None:
    configs = [config({"x": "1"}) for _ in range(11)]
    found = extract([Extractor("x", "x")], configs, Table(cost=names.POOL_COST_BUDGET))
    assert isinstance(found, SliceError)
    assert found.kind == "cost"


def test_results_and_errors_are_remembered() -> None:
    evaluator = CelEvaluator()
    for expression, parameters in (("object.x", {"x": "1"}), ("object.x", {}), ("1 +", {})):
        first = evaluator.evaluate(expression, config(parameters))
        assert evaluator.known(expression, config(parameters)) is first
        assert evaluator.evaluate(expression, config(parameters)) is first


def test_exhausted_cost_outlives_other_results() -> None:
    evaluator = CelEvaluator(capacity=2)
    costly = 'object.big.all(n, [1, 2, 3].all(x, x > 0) && [1, 2, 3].all(x, x > 0)) ? "x" : ""'
    big = config({"big": [1] * 50_000})
    assert evaluator.evaluate(costly, big).error_kind == "cost"
    for index in range(5):
        evaluator.evaluate("object.x", config({"x": str(index)}))
    assert evaluator.known(costly, big) is not None
    assert evaluator.known("object.x", config({"x": "0"})) is None


@pytest.mark.parametrize("kind", ["parse", "type", "length", "runtime", "non-string"])
def test_kinds_of_errors(kind: str) -> None:
    expression = {
        "parse": "object.",
        "type": "nobody",
        "length": "'" + "x" * names.MAX_EXPRESSION_LENGTH + "'",
        "runtime": "object.absent",
        "non-string": "object.number",
    }[kind]
    assert CelEvaluator().evaluate(expression, config({"number": 1})).error_kind == kind


def test_decisions_evaluate_nothing() -> None:
    """H10: what is not known yet is queued, and the decision says so: selectors first, then extractors."""
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    w.engine.observe(Applied(o.claim("pod", "A")), w.now)
    w.engine.observe(Applied(o.pod("pod")), w.now)
    before = w.engine.extractions.evaluations
    for _ in ("selectors", "extractors"):
        decision = w.engine.decide(("default", "pod"), w.now, w.new_uuid)
        assert isinstance(decision, Unplaced)
        assert decision.reason is Reason.EXTRACTION_PENDING
        assert w.engine.extractions.evaluations == before
        assert w.engine.extract(0) == 1
        assert w.engine.extract(10) == 0
    assert isinstance(w.engine.decide(("default", "pod"), w.now, w.new_uuid), Placed)
    assert w.engine.extractions.evaluations == before + 1


def test_a_decision_between_two_steps_may_finish_the_look_up() -> None:
    """All selectors are evaluated, the pool is not judged: the decision does that, and the stage goes on."""
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice(devices=[o.device("eth1")]))
    w.engine.observe(Applied(o.claim("pod", "A")), w.now)
    w.engine.observe(Applied(o.pod("pod")), w.now)
    decisions = []
    for _ in range(6):
        decisions.append(w.engine.decide(("default", "pod"), w.now, w.new_uuid))
        w.engine.extract(1)
    assert isinstance(decisions[-1], Placed)
    assert w.engine.extract(10) == 0


def test_equal_claims_cost_one_evaluation() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    for index in range(5):
        w.place(f"pod{index}", "A")
    assert w.engine.extractions.evaluations == 1


def test_holder_waits_unknown_until_its_keys_are_extracted() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    w.engine.observe(Applied(o.allocated(o.claim("held", "A"), "eth1")), w.now)
    assert w.locks() == {"eth1": "Unreconstructable"}
    assert w.engine.extract(10) == 0
    assert w.locks() == {"eth1": "subnet=A"}
    assert (o.DRIVER, "node-a") in w.engine.settle().pools


def test_many_holders_of_a_device_are_settled_without_adding_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with ten thousand claims settles them all at once; adding up a device for each of its holders
    would take longer than reading them."""
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    for index in range(50):
        w.engine.observe(Applied(o.allocated(o.claim(f"held{index}", "A"), "eth1")), w.now)
    added_up = itertools.count()

    def counted(holds: Iterable[Hold]) -> Occupancy:
        next(added_up)
        return derive(holds)

    monkeypatch.setattr(locks, "derive", counted)
    assert w.engine.extract(10) == 0
    assert (o.DRIVER, "node-a") in w.engine.settle().pools
    assert next(added_up) <= 1


def test_two_drivers_with_the_same_extractor_are_not_mixed_up() -> None:
    """What is in scope depends on the driver, so equal extractors of two drivers are two sets."""
    other = "other.example.com"
    w = World(
        o.node(),
        o.device_class("any", selectors=[]),
        o.metadata_slice(),
        o.device_slice(),
        o.metadata_slice(name="m2", pool="p2", driver=other),
        o.device_slice([o.device("x1", None)], name="s2", pool="p2", driver=other, nodeName="node-a"),
    )
    configs = [o.config(o.nic("A"), driver=other)]
    assert w.place("pod", requests=[o.request(device_class="any")], configs=configs) == ["x1"]


def test_outcomes_are_shared_between_engines() -> None:
    extractions = Extractions()
    extractor = (Extractor("x", "object.x"),)
    assert extractions.outcome(extractor, [config({"x": "1"}, "r")]) is None
    assert extractions.run(5) == 1
    assert extractions.outcome(extractor, [config({"x": "1"}, "other")]) == Extracted((("x", "1"),))
