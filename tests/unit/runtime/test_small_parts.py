"""Pacing, preflight, flags and view shapes: the small pure parts of the runtime."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from prometheus_client import generate_latest

from sharing_affinity.engine import DeviceLock, DeviceState, Holder, PoolLocks, Reason, SliceStatus
from sharing_affinity.runtime import client, preflight, views
from sharing_affinity.runtime.kinds import FEEDS
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.pacing import TokenBucket, backoff
from sharing_affinity.runtime.settings import parse_gates
from sharing_affinity.runtime.writer import Outcome


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(10, 3)

    delays = [round(bucket.reserve(0.0), 3) for _ in range(5)]

    assert delays == [0.0, 0.0, 0.0, 0.1, 0.2]
    assert bucket.reserve(1.0) == 0.0


def test_a_bucket_never_saves_up_more_than_its_burst() -> None:
    bucket = TokenBucket(10, 2)
    bucket.reserve(0.0)

    assert [bucket.try_take(100.0) for _ in range(3)] == [True, True, False]


def test_backoff_doubles_to_its_limit_with_jitter() -> None:
    delays = list(itertools.islice(backoff(random.Random(1), first=1, limit=4), 5))

    for delay, least in zip(delays, (1, 2, 4, 4, 4), strict=True):
        assert least <= delay <= 1.5 * least


@pytest.mark.parametrize(
    ("major", "minor", "fine"),
    [
        ("1", "37", True),
        ("1", "36+", True),
        ("1", "35", False),
        ("1", "9", False),
        ("2", "0", True),
        ("", "", True),
    ],
)
def test_the_floor_is_1_36(major: str, minor: str, fine: bool) -> None:
    assert (preflight.version_problems({"major": major, "minor": minor}) == []) is fine


def test_gates_are_told_from_what_comes_back_of_the_probe() -> None:
    answer = preflight.probe("ns")
    assert preflight.dropped_gates(answer) == []

    exactly = answer["spec"]["devices"]["requests"][0]["exactly"]
    del exactly["capacity"]
    assert preflight.dropped_gates(answer) == ["DRAConsumableCapacity"]
    del exactly["tolerations"]
    assert preflight.dropped_gates(answer) == ["DRAConsumableCapacity", "DRADeviceTaints"]


def test_gates_by_flag() -> None:
    assert parse_gates("") == {"DRASharingAffinity": True, "DRASharingAffinityScoring": True}
    assert parse_gates(" DRASharingAffinityScoring=FALSE , ")["DRASharingAffinityScoring"] is False


@pytest.mark.parametrize("text", ["Nope=true", "DRASharingAffinity", "DRASharingAffinity=yes"])
def test_a_wrong_gate_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        parse_gates(text)


def holder(number: int) -> Holder:
    return Holder("ns", f"claim-{number}", f"uid-{number}", "nic", f"share-{number}", (("subnet", "a"),), ())


def pool(**changes: Any) -> PoolLocks:
    held = tuple(holder(number) for number in range(20))
    fields: dict[str, Any] = {
        "driver": "nic.sharingaffinity.dev",
        "pool": "node-a",
        "generation": 3,
        "node": "node-a",
        "status": True,
        "reason": "Joined",
        "message": "",
        "extractors": (("subnet", "object.subnet"),),
        "devices": (
            DeviceLock("eth1", DeviceState.CLEAN, (), (), (("slots", "0", "16"),)),
            DeviceLock("eth2", DeviceState.LOCKED, (("subnet", "a"),), held, (("slots", "20", "16"),)),
            DeviceLock("eth10", DeviceState.UNRECONSTRUCTABLE, (), held[:1], (), "no keys"),
        ),
    }
    return PoolLocks(**{**fields, **changes})


def test_a_pool_view() -> None:
    status = views.pool_status(pool())

    assert status["summary"] == "eth2 subnet=a (20), eth10 Unreconstructable (1)"
    assert status["counts"] == {"devices": 3, "clean": 1, "locked": 1, "blocked": 1, "holders": 21}
    assert [device["name"] for device in status["devices"]] == ["eth2", "eth10", "eth1"]
    locked = status["devices"][0]
    assert locked["lock"] == {"subnet": "a"}
    assert (len(locked["holders"]), locked["holderCount"]) == (16, 20)
    assert locked["freeCapacity"] == {"slots": "0"}
    assert status["devices"][2]["freeCapacity"] == {"slots": "16"}
    assert status["conditions"][0] == {"type": "Usable", "status": "True", "reason": "Joined", "message": ""}


@pytest.mark.parametrize("value", ["a", "\u20ac" * 10_000, "\0" * 10_000])
def test_a_view_stays_below_what_etcd_takes(value: str) -> None:
    """Names and values are the tenants' to choose. The server adds to it who wrote which field."""
    held = tuple(Holder("n" * 63, "c" * 253, "u" * 36, "r" * 63, "s" * 36, (), ()) for _ in range(20))
    keys = tuple((f"key{number}", value) for number in range(8))
    capacity = tuple((f"{'d' * 63}/c{number}", "1", "2") for number in range(16))
    many = [DeviceLock(f"eth{number}", DeviceState.LOCKED, keys, held, capacity) for number in range(2000)]
    status = views.pool_status(pool(devices=tuple(many)))

    assert len(client._encode("PATCH", "view", status)) < 2**20 * 3 / 4
    assert len(status["devices"]) > 20
    assert status["counts"]["devices"] == 2000
    assert list(status["devices"][0]["lock"]) == [f"key{number}" for number in range(8)]


def test_view_names_are_dns_names_and_unique() -> None:
    names = {
        views.view_name(*ids)
        for ids in [
            ("d.example.com", "p"),
            ("d.example.com", "p/q"),
            ("d.example.com", "p-q"),
            ("d", "P_q"),
            ("d", "x" * 300),
        ]
    }

    assert len(names) == 5
    for name in names:
        assert len(name) <= 253
        assert name == name.lower()
        assert all(part.strip("-") == part and part for part in name.split(".")), name


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    status = SliceStatus(True, "Compiled", "", False, "Unfenced", "eth1 carries no fence")
    wanted = views.slice_conditions(status, 4)
    stored = [
        {"type": "Accepted", "status": "True", "lastTransitionTime": "old"},
        {"type": "Joined", "status": "True", "lastTransitionTime": "old"},
    ]

    kept = views.keep_times(wanted, stored, "now")

    assert [(c["type"], c["lastTransitionTime"]) for c in kept] == [("Accepted", "old"), ("Joined", "now")]
    assert kept[1]["observedGeneration"] == 4


def exposed(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_label_values_are_there_before_their_first_increment() -> None:
    text = exposed(Metrics())

    for name, label, values in (
        ("decisions_total", "result", ["placed", *(reason.value for reason in Reason)]),
        ("claim_writes_total", "outcome", [outcome.value for outcome in Outcome]),
        ("releases_total", "outcome", [outcome.value for outcome in Outcome]),
        ("refused_objects_total", "kind", [kind.kind for kind in FEEDS]),
        ("parked_pods", "reason", [reason.value for reason in Reason]),
    ):
        for value in values:
            assert f'sharing_affinity_{name}{{{label}="{value}"}} 0.0' in text


def test_parked_pods_are_shown_by_reason_and_gone_with_leadership() -> None:
    metrics = Metrics()
    metrics.leader.set(1)
    metrics.locked_devices.set(3)
    metrics.show_parked([Reason.NO_NODE, Reason.NO_NODE, Reason.CLAIM_ERROR])
    before = exposed(metrics)
    metrics.show_parked([Reason.NO_NODE])
    less = exposed(metrics)
    metrics.step_down()
    after = exposed(metrics)

    assert 'parked_pods{reason="FailedAffinityAllocation"} 2.0' in before
    assert 'parked_pods{reason="FailedAffinityAllocation"} 1.0' in less
    assert 'parked_pods{reason="SharingAffinityClaimError"} 0.0' in less
    for name in ("leader", "locked_devices", 'parked_pods{reason="FailedAffinityAllocation"}'):
        assert f"sharing_affinity_{name} 0.0" in after


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": [1, 2], "c": None}}, '{"a":{"c":null,"d":[1,2]},"b":1}'),
        ("a&b<c>d", r'"a\u0026b\u003cc\u003ed"'),
        ('\u2028\u2029ü"\\', '"\\u2028\\u2029ü\\"\\\\"'),
    ],
)
def test_bodies_are_written_as_go_writes_json(value: object, text: str) -> None:
    """As these bytes the API server keeps an allocation's parameters; patches go through Go's encoder."""
    assert client._encode("PUT", "/", value) == text.encode()
