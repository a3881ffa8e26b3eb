"""What answers mean, and whether what is stored is what was sent."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sharing_affinity.runtime.client import ApiError
from sharing_affinity.runtime.writer import Outcome, classify, missing_fields, same_devices

ALLOCATION: dict[str, Any] = {
    "devices": {
        "results": [
            {
                "request": "nic",
                "driver": "nic.example.com",
                "pool": "node-a",
                "device": "eth1",
                "shareID": "6f3ad9d5-9d5e-4d9a-9a3e-6d6b5a2f1c00",
                "consumedCapacity": {"slots": "1", "nic.example.com/bandwidth": "1000M"},
            }
        ],
        "config": [
            {
                "requests": ["nic"],
                "source": "FromClaim",
                "opaque": {"driver": "nic.example.com", "parameters": {"subnet": "a", "none": None}},
            }
        ],
    },
    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name"}]}]},
    "allocationTimestamp": "2026-11-30T08:00:00Z",
}


def stored() -> Any:
    return copy.deepcopy(ALLOCATION)


def test_the_same_is_the_same() -> None:
    assert same_devices(ALLOCATION, stored())
    assert missing_fields(ALLOCATION, stored()) == []


def test_quantities_compare_by_value() -> None:
    answer = stored()
    answer["devices"]["results"][0]["consumedCapacity"] = {"slots": "1", "nic.example.com/bandwidth": "1G"}

    assert missing_fields(ALLOCATION, answer) == []


def test_fields_the_server_added_do_not_matter() -> None:
    answer = stored()
    answer["devices"]["results"][0]["adminAccess"] = False

    assert missing_fields(ALLOCATION, answer) == []


@pytest.mark.parametrize("field", ["shareID", "consumedCapacity"])
def test_a_dropped_field_is_named(field: str) -> None:
    answer = stored()
    del answer["devices"]["results"][0][field]

    assert any(field in path for path in missing_fields(ALLOCATION, answer))


def test_a_changed_amount_is_named() -> None:
    answer = stored()
    answer["devices"]["results"][0]["consumedCapacity"]["slots"] = "2"

    assert missing_fields(ALLOCATION, answer) == ["allocation.devices.results[0].consumedCapacity.slots"]


def test_a_null_lost_inside_opaque_parameters_is_noticed() -> None:
    answer = stored()
    del answer["devices"]["config"][0]["opaque"]["parameters"]["none"]

    assert missing_fields(ALLOCATION, answer) == ["allocation.devices.config[0].opaque.parameters"]


def test_a_dropped_timestamp_is_fine_and_a_changed_one_is_not() -> None:
    answer = stored()
    del answer["allocationTimestamp"]
    changed = {**stored(), "allocationTimestamp": "2026-11-30T08:00:01Z"}

    assert missing_fields(ALLOCATION, answer) == []
    assert missing_fields(ALLOCATION, changed) == ["allocation.allocationTimestamp"]


@pytest.mark.parametrize("field", ["device", "pool", "shareID", "request"])
def test_another_share_or_device_is_somebody_elses_allocation(field: str) -> None:
    answer = stored()
    answer["devices"]["results"][0][field] = "other"

    assert not same_devices(ALLOCATION, answer)


def test_no_allocation_is_not_ours() -> None:
    assert not same_devices(ALLOCATION, None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ApiError(409, "Conflict", "the object has been modified"), Outcome.CONFLICT),
        (ApiError(404, "NotFound", "not found"), Outcome.GONE),
        (ApiError(403, "Forbidden", "namespace ns is being terminated"), Outcome.GONE),
        (ApiError(403, "Forbidden", "cannot patch"), Outcome.FORBIDDEN),
        (ApiError(401, "Unauthorized", "Unauthorized"), Outcome.FORBIDDEN),
        (ApiError(429, "TooManyRequests", "later"), Outcome.RETRY),
        (
            ApiError(422, "Invalid", "status.allocation.devices.results[0].shareID: Invalid value"),
            Outcome.REJECTED,
        ),
        (ApiError(400, "BadRequest", "bad"), Outcome.REJECTED),
    ],
)
def test_answers(error: ApiError, outcome: Outcome) -> None:
    assert classify(error)[0] is outcome


def test_a_missing_binding_permission_comes_as_422_and_is_a_missing_permission() -> None:
    text = (
        'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", '
        'verb="update" permission'
    )
    error = ApiError(422, "Invalid", "claim is invalid", (f"Forbidden: {text}",))

    outcome, message = classify(error)

    assert outcome is Outcome.FORBIDDEN
    assert "resourceclaims/binding" in message
