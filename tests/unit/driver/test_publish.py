"""What a pool looks like in the API, what the server may have changed, and what has to be written."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from affinity_driver.publish.desired import (
    METADATA_SLICES,
    RESOURCE_SLICES,
    Device,
    Fence,
    Member,
    Pool,
    member_name,
    members,
    natural,
)
from affinity_driver.publish.diff import Verb, fence_ages, keep_fence_age, plan, unfenced_in_use
from affinity_driver.publish.semantic import differences, gates_of, same
from affinity_driver.publish.validate import problems
from sharing_affinity.api import Extractor

SLOTS = {"slots": {"value": "16", "requestPolicy": {"default": "1"}}}


def pool(devices: Any = 2, extractors: Any = 1, fence: Fence = Fence.TAINT, **changes: Any) -> Pool:
    """A pool; ``devices`` and ``extractors`` are numbers of plain ones, or the ones to take."""
    if isinstance(devices, int):
        devices = tuple(Device(f"eth{number}", {"speed": {"int": 100}}, SLOTS) for number in range(devices))
    if isinstance(extractors, int):
        extractors = tuple(Extractor(f"key{number}", '""') for number in range(extractors))
    defaults: dict[str, Any] = {
        "driver": "nic.example.com",
        "name": "node-a",
        "node": "node-a",
        "node_uid": "u-1",
        "devices": devices,
        "extractors": extractors,
        "fence": fence,
    }
    return Pool(**{**defaults, **changes})


def stored(member: Member, generation: int) -> dict[str, Any]:
    """The object as an API server would hold it after creation."""
    body = copy.deepcopy(member.with_generation(generation))
    body["metadata"] |= {"uid": f"uid-{member.name}", "resourceVersion": "1"}
    for device in body["spec"].get("devices", ()):
        for taint in device.get("taints", ()):
            taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")
    return body


def existing(wanted: tuple[Member, ...], generation: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {RESOURCE_SLICES: [], METADATA_SLICES: []}
    for member in wanted:
        found[member.collection].append(stored(member, generation))
    return found


class TestDesired:
    def test_metadata_comes_before_devices_and_carries_no_devices(self) -> None:
        metadata, devices = members(pool())
        assert (metadata.collection, devices.collection) == (METADATA_SLICES, RESOURCE_SLICES)
        assert "devices" not in metadata.body["spec"]
        assert "sharingAffinity" not in devices.body["spec"]

    @pytest.mark.parametrize(("fence", "device_count"), [(Fence.TAINT, 3), (Fence.NONE, 2), (Fence.COUNT, 4)])
    def test_counts(self, fence: Fence, device_count: int) -> None:
        """150 devices: 3 slices of 64 with taints, 2 of 128 without; 9 extractors: 2 metadata slices (H5)."""
        wanted = members(pool(150, 9, fence))
        metadata = [member.body for member in wanted if member.collection == METADATA_SLICES]
        slices = [member.body for member in wanted if member.collection == RESOURCE_SLICES]
        assert len(metadata) == 2
        assert {body["spec"]["pool"]["resourceSliceCount"] for body in metadata} == {
            len(metadata) + len(slices)
        }
        assert {body["spec"]["pool"]["resourceSliceCount"] for body in slices} == {device_count}

    def test_taint_fence_is_on_every_device_beside_its_own_taints(self) -> None:
        own = {"key": "example.com/broken", "effect": "NoExecute"}
        (_, devices) = members(
            pool(devices=(Device("eth0", {}, SLOTS, taints=(own,)), Device("eth1", {}, SLOTS)))
        )
        first, second = devices.body["spec"]["devices"]
        fence = {"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}
        assert first["taints"] == [own, fence]
        assert second["taints"] == [fence]

    def test_no_fence_means_no_taint(self) -> None:
        for device in members(pool(fence=Fence.NONE))[1].body["spec"]["devices"]:
            assert "taints" not in device

    def test_owner_is_the_node(self) -> None:
        for member in members(pool()):
            (owner,) = member.body["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-a", "u-1")

    def test_order_of_devices_does_not_depend_on_the_profile(self) -> None:
        shuffled = pool(devices=tuple(Device(f"eth{number}", {}, SLOTS) for number in (10, 2, 1)))
        names = [device["name"] for device in members(shuffled)[1].body["spec"]["devices"]]
        assert names == ["eth1", "eth2", "eth10"]

    def test_empty_pool_has_one_empty_slice(self) -> None:
        (_, devices) = members(pool(0))
        assert devices.body["spec"]["devices"] == []

    def test_names_sort_in_order_and_are_valid(self) -> None:
        names = [member_name(index, "nic.example.com", "node-a") for index in range(300)]
        assert names == sorted(names)
        assert names[0] == "00000-nic.example.com-node-a"

    def test_long_and_odd_pool_names_get_a_hash(self) -> None:
        long = member_name(0, "nic.example.com", "n" * 253)
        assert len(long) <= 253
        assert long != member_name(0, "nic.example.com", "n" * 252)
        assert member_name(0, "d", "a/b") != member_name(0, "d", "a-b")

    def test_natural_order(self) -> None:
        assert sorted(["eth10", "eth9", "a", "1"], key=natural) == ["1", "a", "eth9", "eth10"]


class TestSemantic:
    def test_quantities_by_value_under_capacity_only(self) -> None:
        assert same({"capacity": {"a": {"value": "1000m"}}}, {"capacity": {"a": {"value": "1"}}})
        assert not same({"attributes": {"a": {"string": "1.0"}}}, {"attributes": {"a": {"string": "1"}}})
        assert not same({"capacity": {"a": {"value": "broken"}}}, {"capacity": {"a": {"value": "1"}}})

    def test_absent_equals_empty_and_false(self) -> None:
        assert same({"a": [], "b": None, "c": False}, {})
        assert not same({"a": [1]}, {})

    def test_time_of_a_taint_counts_only_when_we_set_it(self) -> None:
        assert same({"key": "k"}, {"key": "k", "timeAdded": "t"})
        assert not same({"key": "k", "timeAdded": "other"}, {"key": "k", "timeAdded": "t"})

    def test_order_of_devices_is_a_difference(self) -> None:
        assert not same([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}])

    def test_true_is_not_one(self) -> None:
        assert not same({"a": True}, {"a": 1})

    def test_dropped_fields_are_named_with_their_gate(self) -> None:
        sent = {"devices": [{"name": "a", "allowMultipleAllocations": True, "taints": [{"key": "k"}]}]}
        got = {"devices": [{"name": "a"}]}
        paths = list(differences(sent, got, "spec"))
        assert paths == ["spec.devices[0].allowMultipleAllocations", "spec.devices[0].taints"]
        assert gates_of(paths) == ["DRAConsumableCapacity", "DRADeviceTaints"]

    def test_what_the_server_adds_is_no_difference(self) -> None:
        assert not list(differences({"a": 1}, {"a": 1, "b": 2}))


class TestPlan:
    def test_nothing_to_do(self) -> None:
        wanted = members(pool(100))
        assert plan(wanted, existing(wanted, 7)).writes == ()

    def test_first_publication_is_generation_one_metadata_first(self) -> None:
        todo = plan(members(pool()), {})
        assert todo.generation == 1
        assert [(write.verb, write.collection) for write in todo.writes] == [
            (Verb.CREATE, METADATA_SLICES),
            (Verb.CREATE, RESOURCE_SLICES),
        ]

    def test_after_a_wipe_the_generation_goes_beyond_the_metadata(self) -> None:
        """The kubelet deletes ResourceSlices only; a reader may still know generation 7 of both."""
        wanted = members(pool())
        todo = plan(wanted, {METADATA_SLICES: existing(wanted, 7)[METADATA_SLICES]})
        assert todo.generation == 8
        assert [(write.verb, write.body["spec"]["pool"]["generation"]) for write in todo.writes] == [
            (Verb.UPDATE, 8),
            (Verb.CREATE, 8),
        ]

    @pytest.mark.parametrize("side", [RESOURCE_SLICES, METADATA_SLICES])
    def test_one_edited_object_renews_the_whole_generation(self, side: str) -> None:
        wanted = members(pool(100))
        there = existing(wanted, 3)
        there[side][0]["spec"]["pool"]["resourceSliceCount"] = 99
        todo = plan(wanted, there)
        assert todo.generation == 4
        assert len(todo.writes) == len(wanted)

    def test_half_a_generation_is_never_kept(self) -> None:
        wanted = members(pool())
        there = existing(wanted, 3)
        there[METADATA_SLICES][0]["spec"]["pool"]["generation"] = 4
        assert plan(wanted, there).generation == 5

    def test_what_is_left_over_is_deleted_before_its_devices_move(self) -> None:
        there = existing(members(pool(150)), 1)
        todo = plan(members(pool(20)), there)
        verbs = [write.verb for write in todo.writes if write.collection == RESOURCE_SLICES]
        assert verbs == [Verb.DELETE, Verb.DELETE, Verb.UPDATE]

    def test_dropping_affinity_removes_metadata_and_fence_in_one_pass(self) -> None:
        there = existing(members(pool()), 1)
        todo = plan(members(pool(extractors=0, fence=Fence.NONE)), there)
        assert [(write.verb, write.collection) for write in todo.writes] == [
            (Verb.DELETE, METADATA_SLICES),
            (Verb.UPDATE, RESOURCE_SLICES),
        ]

    def test_a_node_made_anew_owns_anew(self) -> None:
        there = existing(members(pool()), 1)
        assert len(plan(members(pool(node_uid="u-2")), there).writes) == 2

    def test_immutable_fields_are_replaced_by_delete_and_create(self) -> None:
        wanted = members(pool())
        there = existing(wanted, 1)
        there[RESOURCE_SLICES][0]["spec"]["pool"]["name"] = "other"
        todo = plan(wanted, there)
        verbs = [write.verb for write in todo.writes if write.collection == RESOURCE_SLICES]
        assert verbs == [Verb.DELETE, Verb.CREATE]

    def test_updates_carry_the_version_seen_and_foreign_labels(self) -> None:
        wanted = members(pool())
        there = existing(wanted, 1)
        there[RESOURCE_SLICES][0]["metadata"]["labels"] = {"someone": "else"}
        there[RESOURCE_SLICES][0]["spec"]["devices"].pop()
        update = next(w for w in plan(wanted, there).writes if w.collection == RESOURCE_SLICES)
        assert update.body["metadata"]["resourceVersion"] == "1"
        assert update.body["metadata"]["labels"] == {"someone": "else"}


class TestFenceAge:
    def test_a_republished_fence_keeps_its_age(self) -> None:
        wanted = members(pool())
        ages = fence_ages(existing(wanted, 1)[RESOURCE_SLICES])
        assert ages == {"eth0": "2026-01-01T00:00:00Z", "eth1": "2026-01-01T00:00:00Z"}
        (body,) = keep_fence_age([wanted[1].with_generation(2)], {"eth0": "2025-01-01T00:00:00Z"})
        first, second = body["spec"]["devices"]
        assert first["taints"][0]["timeAdded"] == "2025-01-01T00:00:00Z"
        assert "timeAdded" not in second["taints"][0]

    def test_unfenced_in_use(self) -> None:
        assert not unfenced_in_use(existing(members(pool()), 1)[RESOURCE_SLICES])
        assert unfenced_in_use(existing(members(pool(fence=Fence.NONE)), 1)[RESOURCE_SLICES])


class TestValidate:
    def test_good_pool(self) -> None:
        assert problems(pool(100, 8)) == []

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"driver": "x" * 64}, "driver"),
            ({"driver": "Upper"}, "driver"),
            ({"name": "a//b"}, "pool"),
            ({"devices": (Device("eth0", {}, SLOTS), Device("eth0", {}, SLOTS))}, "2 times"),
            ({"devices": (Device("Eth_0", {}, SLOTS),)}, "DNS label"),
            ({"devices": (Device("e", {f"a{n}": {"int": n} for n in range(32)}, SLOTS),)}, "attributes"),
            ({"devices": (Device("e", {}, {"slots": {"value": "1"}}),)}, "requestPolicy.default"),
            ({"devices": (Device("e", {}, SLOTS, shareable=False),)}, "not shareable"),
            ({"devices": (Device("e", {}, SLOTS, taints=({"key": "k"},) * 16),)}, "taints"),
            ({"extractors": (Extractor("a", "x"), Extractor("a", "y"))}, "2 times"),
            ({"extractors": (Extractor("a b", "x"),)}, "qualified name"),
            ({"extractors": (Extractor("a", ""),)}, "0 bytes"),
            ({"extractors": (Extractor("a", "é" * 5121),)}, "10242 bytes"),
        ],
    )
    def test_bad_pools(self, changes: dict[str, Any], expected: str) -> None:
        (problem,) = problems(pool(**changes))
        assert expected in problem
