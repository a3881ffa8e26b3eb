"""Whatever a pool finds in the API server, one pass makes it right, and the next one writes nothing."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES, Device, Fence, Pool, members
from affinity_driver.publish.diff import Verb, fence_ages, keep_fence_age, plan
from affinity_driver.publish.semantic import differences, same
from sharing_affinity.api import Extractor

SLOTS = {"slots": {"value": "16", "requestPolicy": {"default": "1"}}}

pools = st.builds(
    lambda count, keys, fence, uid: Pool(
        driver="nic.example.com",
        name="node-a",
        node="node-a",
        node_uid=uid,
        devices=tuple(Device(f"eth{number}", {}, SLOTS) for number in range(count)),
        extractors=tuple(Extractor(f"key{number}", '""') for number in range(keys)),
        fence=fence,
    ),
    st.integers(0, 140),
    st.integers(0, 9),
    st.sampled_from(list(Fence)),
    st.sampled_from(["u-1", "u-2"]),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Store:
    """What is stored, changed by writes as an API server would."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0

    def listed(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {RESOURCE_SLICES: [], METADATA_SLICES: []}
        for (collection, _), item in sorted(self.items.items()):
            found[collection].append(copy.deepcopy(item))
        return found

    def put(self, collection: str, body: dict[str, Any]) -> None:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"] |= {"resourceVersion": str(self.version)}
        body["metadata"].setdefault("uid", f"uid-{self.version}")
        self.items[collection, body["metadata"]["name"]] = body

    def publish(self, pool: Pool) -> list[Verb]:
        todo = plan(members(pool), self.listed())
        for write in todo.writes:
            if write.verb is Verb.DELETE:
                del self.items[write.collection, write.name]
            else:
                self.put(write.collection, write.body)
        return [write.verb for write in todo.writes]


@given(st.lists(pools, min_size=1, max_size=4), st.data())
def test_one_pass_makes_it_right(history: list[Pool], data: st.DataObject) -> None:
    store = Store()
    newest = 0
    for pool in history:
        for key in data.draw(st.sets(st.sampled_from(sorted(store.items)))) if store.items else ():
            if data.draw(st.booleans()):  # the kubelet's wipe, or somebody's hand
                del store.items[key]
            else:
                store.items[key]["spec"]["pool"]["generation"] += data.draw(st.integers(-1, 5))
        seen = [item["spec"]["pool"]["generation"] for item in store.items.values()]
        newest = max(seen, default=0)
        wrote = store.publish(pool)
        wanted = members(pool)
        assert set(store.items) == {(member.collection, member.name) for member in wanted}
        (generation,) = {item["spec"]["pool"]["generation"] for item in store.items.values()}
        assert generation == (newest + 1 if wrote else newest)
        total = len(store.items)
        for (collection, _), item in store.items.items():
            devices = [key for key in store.items if key[0] == RESOURCE_SLICES]
            counted = total if collection == METADATA_SLICES or pool.fence is Fence.COUNT else len(devices)
            assert item["spec"]["pool"]["resourceSliceCount"] == counted
            assert not (item["spec"].get("devices") and item["spec"].get("sharingAffinity"))
        assert store.publish(pool) == []


@given(pools, st.dictionaries(st.integers(0, 140).map(lambda n: f"eth{n}"), st.just("2026-01-01T00:00:00Z")))
def test_fence_ages_survive(pool: Pool, ages: dict[str, str]) -> None:
    bodies = [m.with_generation(1) for m in members(pool) if m.collection == RESOURCE_SLICES]
    kept = fence_ages(keep_fence_age(bodies, ages))
    fenced = {device.name for device in pool.devices} if pool.fence is Fence.TAINT else set()
    assert kept == {name: age for name, age in ages.items() if name in fenced}


@given(json_values)
def test_everything_equals_itself(value: Any) -> None:
    assert same(value, copy.deepcopy(value))
    assert not list(differences(value, copy.deepcopy(value)))


@given(json_values, json_values)
def test_sameness_is_symmetric_and_means_no_difference(left: Any, right: Any) -> None:
    assert same(left, right) == same(right, left)
    if same(left, right):
        assert not list(differences(left, right))
