"""What a claim's status says of its devices, and how notes of changes become writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from harness.driver_rig import nic_claim

from affinity_driver.claims.errors import BusyError, HardwareError, IncompatibleError
from affinity_driver.claims.report import (
    MAX_MESSAGE,
    DeviceReport,
    prepared_entries,
    refusal_of,
    refused_entries,
    timed,
)
from affinity_driver.events import REMEMBERED, DriverEvents
from affinity_driver.kube import ApiError
from affinity_driver.state.model import NodeState, Phase, PreparedClaim, Share
from affinity_driver.statuswriter import MAX_WAITING, StatusWriter

DRIVER = "nic.example.com"


def report(share: Share) -> DeviceReport:
    return DeviceReport({"keys": dict(share.keys)})


def types(entry: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in entry["conditions"]}


class TestEntries:
    def test_one_for_each_share(self) -> None:
        first, second = prepared_entries(DRIVER, nic_claim("1", "a", "eth1", "eth2"), report)
        assert (first["device"], second["device"]) == ("eth1", "eth2")
        assert types(first) == {"Ready": ("True", "Prepared"), "AffinityLocked": ("True", "Locked")}
        assert first["data"] == {"keys": {"subnet": "a"}}
        assert "networkData" not in first

    def test_admin_access_locks_nothing_and_one_device_is_told_of_once(self) -> None:
        claim = nic_claim("1", "a")
        (share,) = claim.shares
        watcher = replace(share, admin=True, share_id=None)
        (entry,) = prepared_entries(DRIVER, replace(claim, shares=(watcher, watcher)), report)
        assert types(entry)["AffinityLocked"] == ("False", "AdminAccess")
        assert "shareID" not in entry

    def test_refusals(self) -> None:
        claim = nic_claim("1", "a")
        refusal = refusal_of(claim, IncompatibleError("x" * 5000, "subnet"))
        assert refusal is not None
        (entry,) = refused_entries(DRIVER, refusal)
        assert types(entry) == {
            "Ready": ("False", "Incompatible"),
            "AffinityLocked": ("False", "NotPrepared"),
        }
        assert len(entry["conditions"][0]["message"]) == MAX_MESSAGE
        assert "data" not in entry
        assert refusal_of(claim, HardwareError("no")) is not None
        assert refusal_of(claim, BusyError("wait")) is None

    def test_times_change_with_the_status_alone(self) -> None:
        claim = nic_claim("1", "a")
        before = timed(prepared_entries(DRIVER, claim, report), [], "T1")
        assert {c["lastTransitionTime"] for c in before[0]["conditions"]} == {"T1"}
        assert timed(prepared_entries(DRIVER, claim, report), before, "T2") == before
        refusal = refusal_of(claim, HardwareError("no"))
        assert refusal is not None
        after = timed(refused_entries(DRIVER, refusal), before, "T2")
        assert {c["lastTransitionTime"] for c in after[0]["conditions"]} == {"T2"}


class Observed:
    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.problems: list[str] = []

    def status(self, outcome: str, waiting: int) -> None:
        self.outcomes.append(outcome)

    def claim_problem(self, claim: Any, reason: str, message: str) -> None:
        self.problems.append(reason)

    def problem(self, reason: str, message: str) -> None:
        self.problems.append(reason)


def writer(api: Any, observed: Observed, *prepared: PreparedClaim) -> StatusWriter:
    state = NodeState("boot", {claim.uid: replace(claim, phase=Phase.COMPLETED) for claim in prepared})
    return StatusWriter(api, DRIVER, "node-a", lambda: state, report, observed)


def test_notes_are_bounded_and_the_oldest_goes() -> None:
    observed = Observed()
    made = writer(None, observed)
    for number in range(MAX_WAITING + 3):
        made.changed("default", "c", f"u{number}")
    assert len(made._notes) == MAX_WAITING
    assert observed.outcomes == ["dropped"] * 3
    assert "u2" not in made._notes
    made.stop(1)


@pytest.mark.parametrize(
    ("error", "outcome", "problems"),
    [
        (ApiError(404, "NotFound", "gone"), "unchanged", []),
        (ApiError(409, "Conflict", 'conflict with "x": .status.devices'), "conflict", ["StatusContested"]),
        (ApiError(422, "Invalid", "status.allocation: Invalid value"), "unpatchable", ["StatusUnpatchable"]),
        (ApiError(403, "Forbidden", "no"), "retried", ["StatusForbidden"]),
        (ApiError(422, "Invalid", "requires resourceclaims/driver"), "retried", ["StatusForbidden"]),
        (ApiError(500, "", "down"), "retried", []),
        (ApiError(0, "", "no answer"), "retried", []),
    ],
)
def test_every_refusal_of_the_server_has_its_outcome(
    error: ApiError, outcome: str, problems: list[str]
) -> None:
    claim = nic_claim("1", "a")

    class Refusing:
        def get(self, path: str) -> Any:
            result = {
                "driver": DRIVER,
                "pool": "node-a",
                "device": "eth1",
                "shareID": claim.shares[0].share_id,
            }
            return {
                "metadata": {"uid": "1", "name": claim.name, "namespace": "default"},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }

        def apply_status(self, *_: Any, **__: Any) -> Any:
            raise error

    observed = Observed()
    made = writer(Refusing(), observed, claim)
    made.start(made._state())
    deadline = threading.Event()
    while not observed.outcomes:
        deadline.wait(0.01)
    assert observed.outcomes[0] == outcome
    assert observed.problems == problems
    assert (set(made._notes) == {"1"}) == (outcome == "retried")
    made.stop(2)
    assert not made._thread.is_alive()


@pytest.mark.parametrize("still_known", [False, True])
def test_a_claim_that_moved_on_is_left_to_the_driver_of_its_new_node(still_known: bool) -> None:
    """A late note, or one of a start: the entries there are another node's; to write them is forbidden."""
    claim = nic_claim("1", "a")
    where = {"driver": DRIVER, "pool": "node-b", "device": "eth1", "shareID": "s"}
    entry = {**where, "conditions": []}

    class Moved:
        def get(self, path: str) -> Any:
            return {
                "metadata": {"uid": "1", "name": claim.name, "namespace": "default"},
                "status": {"allocation": {"devices": {"results": [where]}}, "devices": [entry]},
            }

    observed = Observed()
    made = writer(Moved(), observed, *([claim] if still_known else []))
    made.changed("default", claim.name, "1")
    made.start(NodeState("boot", {}))
    made.stop(10)
    assert observed.outcomes == ["unchanged"]


def test_events_are_remembered_for_a_bounded_number() -> None:
    written: list[Any] = []

    class Api:
        def create(self, path: str, body: Any) -> Any:
            written.append(json.dumps(body))

    events = DriverEvents(Api(), "n", DRIVER)  # type: ignore[arg-type]
    claims = [
        {"metadata": {"namespace": "d", "name": "c" * 253, "uid": f"u{n}"}} for n in range(REMEMBERED + 1)
    ]
    for claim in (*claims, claims[-1], claims[0]):
        events.warn_claim(claim, "R", "m")
    assert len(written) == REMEMBERED + 2  # the last one is remembered, the first one no more
    assert all(len(json.loads(body)["metadata"]["name"]) <= 253 for body in written[:2])
