"""What a change of extractors would do: the same that the operator makes of it afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import objects
from hypothesis import given
from hypothesis import strategies as st

from affinity_driver.publish import override
from affinity_driver.publish.override import Override
from affinity_driver.rollout.judge import PoolChange, State, judge, left_out
from sharing_affinity.api import Extractor, names, parse_claim, record
from sharing_affinity.engine import Applied, Engine
from sharing_affinity.extraction import CelEvaluator

DRIVER = objects.DRIVER
EVALUATOR = CelEvaluator()
SUBNET = Extractor("subnet", 'has(object.subnetID) ? object.subnetID : ""')
STAGED = Extractor(
    "subnet", 'has(object.subnet) ? object.subnet : has(object.subnetID) ? object.subnetID : ""'
)
NEW_ONLY = Extractor("subnet", 'has(object.subnet) ? object.subnet : ""')
VLAN = Extractor("vlan", 'has(object.vlan) ? string(object.vlan) : ""')
UNGUARDED = Extractor("vlan", "string(object.vlan)")
SETS = [(SUBNET,), (STAGED,), (NEW_ONLY,), (SUBNET, VLAN), (VLAN,), (STAGED, VLAN), (SUBNET, UNGUARDED)]


def holder(name: str, device: str, config: dict[str, Any], recorded: dict[str, str] | None) -> dict[str, Any]:
    """An allocated claim, with a record of the keys it was allocated with, if any."""
    raw = objects.allocated(objects.claim(name, configs=[objects.config(config)]), device)
    if recorded is not None:
        (result,) = raw["status"]["allocation"]["devices"]["results"]
        keys = tuple(sorted(recorded.items()))
        entry = record.RecordedResult("nic", DRIVER, "node-a", device, result["shareID"], keys)
        text = record.encode(record.Record("x", objects.EPOCH, (entry,)))
        raw["metadata"]["annotations"] = {names.RECORD_ANNOTATION: text}
    return raw


def changed(
    claims: list[dict[str, Any]], before: tuple[Extractor, ...], after: tuple[Extractor, ...]
) -> PoolChange:
    parsed = [parse_claim(raw) for raw in claims]
    (change,) = judge(
        DRIVER, {"node-a": ["eth1", "eth2"]}, {"node-a": before}, {"node-a": after}, parsed, EVALUATOR
    )
    return change


def as_the_operator_sees_it(
    claims: list[dict[str, Any]], extractors: tuple[Extractor, ...]
) -> dict[str, tuple[str, dict[str, str]]]:
    engine = Engine()
    entries = [{"name": e.name, "expression": e.expression} for e in extractors]
    for raw in (
        objects.node(),
        objects.device_class(),
        objects.device_slice(),
        objects.metadata_slice(entries),
        *claims,
    ):
        engine.observe(Applied(raw), 1e9)
    while engine.extract(100):
        pass
    engine.settle()
    (pool,) = engine.lock_table()
    return {device.device: (device.state.value, dict(device.keys)) for device in pool.devices}


configs = st.fixed_dictionaries(
    {},
    optional={
        "subnet": st.sampled_from(["a", "b"]),
        "subnetID": st.sampled_from(["a", "b"]),
        "vlan": st.sampled_from([7, 8]),
    },
)
records = st.none() | st.fixed_dictionaries(
    {}, optional={"subnet": st.sampled_from(["a", "b"]), "vlan": st.just("7")}
)
holders = st.lists(st.tuples(st.sampled_from(["eth1", "eth2"]), configs, records), max_size=4)


@given(holders, st.sampled_from(SETS), st.sampled_from(SETS))
def test_plan_says_what_the_operator_makes_of_it(
    holding: list[tuple[str, dict[str, Any], dict[str, str] | None]],
    before: tuple[Extractor, ...],
    after: tuple[Extractor, ...],
) -> None:
    claims = [holder(f"c{i}", *rest) for i, rest in enumerate(holding)]
    change = changed(claims, before, after)
    for side, extractors in (("before", before), ("after", after)):
        told = {}
        for device in change.devices:
            judgement = getattr(device, side)
            told[device.device] = (judgement.state.value, dict(judgement.keys))
        assert told == as_the_operator_sees_it(claims, extractors)


def test_idle_devices_change_freely_and_held_ones_name_their_holders() -> None:
    old = {"kind": "NICConfig", "subnetID": "a"}
    claims = [holder("one", "eth1", old, {"subnet": "a"}), holder("two", "eth1", old, {"subnet": "a"})]
    change = changed(claims, (SUBNET,), (SUBNET, VLAN))
    eth1, eth2 = change.devices
    assert (eth1.before.state, eth1.after.state) == (State.LOCKED, State.UNRECONSTRUCTABLE)
    assert (eth2.before.state, eth2.after.state) == (State.CLEAN, State.CLEAN)
    assert change.breaks
    assert not change.idle
    assert [(h.claim, h.problem) for h in eth1.holders] == [
        ("one", "yields no value for vlan"),
        ("two", "yields no value for vlan"),
    ]


def test_guards_for_both_versions_change_nothing_and_dropping_the_old_one_does() -> None:
    claims = [holder("old", "eth1", {"subnetID": "a"}, {"subnet": "a"})]
    assert not changed(claims, (SUBNET,), (STAGED,)).breaks
    assert changed(claims, (STAGED,), (NEW_ONLY,)).breaks
    moved = [holder("new", "eth1", {"subnet": "a"}, {"subnet": "a"})]
    assert not changed(moved, (STAGED,), (NEW_ONLY,)).breaks


def test_retired_key_waits_for_those_who_were_allocated_with_it() -> None:
    config = {"subnetID": "a", "vlan": 7}
    claims = [holder("x", "eth1", config, {"subnet": "a", "vlan": "7"})]
    change = changed(claims, (SUBNET, VLAN), (SUBNET,))
    assert change.breaks
    assert change.devices[0].holders[0].problem == (
        "was allocated with subnet=a, vlan=7 and would yield subnet=a"
    )


def test_pool_of_before_sharing_affinity_is_judged_by_what_its_holders_yield() -> None:
    agreeing = [holder(name, "eth1", {"subnetID": "a"}, None) for name in "xy"]
    change = changed(agreeing, (), (SUBNET,))
    assert change.devices[0].before.state is State.UNMANAGED
    assert (change.devices[0].after.state, change.devices[0].after.keys) == (State.LOCKED, (("subnet", "a"),))
    assert not change.breaks
    change = changed([*agreeing, holder("z", "eth1", {"subnetID": "b"}, None)], (), (SUBNET,))
    assert change.breaks
    assert change.devices[0].after.problem == "its holders yield different keys"


def test_device_that_is_closed_already_is_no_reason_against() -> None:
    claims = [holder("x", "eth1", {}, None)]
    assert not changed(claims, (SUBNET,), (NEW_ONLY,)).breaks


def test_idle_pools_come_first_and_devices_that_are_gone_are_listed_while_held() -> None:
    claims = [parse_claim(holder("x", "eth9", {"subnetID": "a"}, None))]
    none: dict[str, tuple[Extractor, ...]] = {"node-a": (SUBNET,), "node-b": (SUBNET,)}
    pools = {"node-a": ["eth1"], "node-b": ["eth1"]}
    found = judge(DRIVER, pools, none, none, claims, EVALUATOR)
    assert [change.pool for change in found] == ["node-b", "node-a"]
    assert [device.device for device in found[1].devices] == ["eth1", "eth9"]
    assert all(change.same for change in found)


def test_waiting_claims_that_would_be_left_out_are_named() -> None:
    waiting = [
        parse_claim(objects.claim(name, configs=[objects.config(config)]))
        for name, config in (("old", {"subnetID": "a"}), ("new", {"subnet": "a"}), ("none", {}))
    ]
    assert [(w.claim, w.problem) for w in left_out(DRIVER, (STAGED,), (NEW_ONLY,), waiting, EVALUATOR)] == [
        ("old", "yields no value for subnet")
    ]


@pytest.mark.parametrize("hold", [True, False])
def test_override_goes_through_an_annotation(hold: bool) -> None:
    made = Override((SUBNET, VLAN), hold)
    item = {"metadata": {"name": "x", "annotations": {"other": "kept"}}, "spec": {}}
    carrying = override.with_override(item, made)
    assert override.stored([carrying]) == made
    assert override.carries(carrying)
    assert not override.carries(item)
    assert override.without(carrying) == item
    assert made.over((VLAN, SUBNET)) is not hold
    assert not made.over((SUBNET,))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sharingAffinity": []}', '{"sharingAffinity": [{"name": "x"}]}',
     json.dumps({"sharingAffinity": [{"name": "-", "expression": "1"}]}),
     json.dumps({"sharingAffinity": [{"name": "a", "expression": "1"}] * 2})],
)  # fmt: skip
def test_annotation_that_is_no_override_counts_for_nothing(text: str) -> None:
    assert override.decode(text) is None
