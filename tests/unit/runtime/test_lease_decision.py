"""The decisions of leader election, without a clock or a server."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from sharing_affinity.runtime.lease import Act, Seen, Timing, decide, micro_time, missing, observe, spec


def lease(version: str, holder: str, duration: int = 15, transitions: int = 3) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": version},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "leaseTransitions": transitions,
        },
    }


def test_there_is_none() -> None:
    assert decide("me", None, 0.0) is Act.CREATE


def test_mine_is_renewed() -> None:
    assert decide("me", observe(None, lease("1", "me"), 0.0), 100.0) is Act.RENEW


def test_a_released_one_is_taken_at_once() -> None:
    assert decide("me", observe(None, lease("1", ""), 5.0), 5.0) is Act.TAKE


def test_anothers_is_taken_only_after_a_whole_duration_without_a_change() -> None:
    seen = observe(None, lease("1", "other"), 10.0)

    assert decide("me", seen, 25.0) is Act.WAIT
    assert decide("me", seen, 25.1) is Act.TAKE


def test_every_renewal_seen_starts_the_wait_anew() -> None:
    seen = observe(None, lease("1", "other"), 10.0)
    again = observe(seen, lease("2", "other"), 24.0)

    assert again.since == 24.0
    assert observe(again, lease("2", "other"), 30.0).since == 24.0
    assert decide("me", again, 38.0) is Act.WAIT


def test_the_duration_is_the_holders_not_ours() -> None:
    seen = observe(None, lease("1", "other", duration=40), 0.0)

    assert decide("me", seen, 39.0) is Act.WAIT


def test_clocks_of_other_machines_are_never_read() -> None:
    strange = lease("1", "other")
    strange["spec"]["renewTime"] = "1970-01-01T00:00:00.000000Z"

    assert decide("me", observe(None, strange, 100.0), 110.0) is Act.WAIT


def test_a_lease_deleted_under_its_holder_is_waited_out() -> None:
    seen = observe(None, lease("1", "other"), 0.0)
    gone = missing("me", seen, 8.0)

    assert gone == Seen("", "other", 15.0, 3, 8.0)
    assert decide("me", missing("me", gone, 22.0), 22.0) is Act.WAIT
    assert decide("me", missing("me", gone, 23.1), 23.1) is Act.TAKE


@pytest.mark.parametrize("before", [None, Seen("1", "me", 15, 0, 0.0), Seen("1", "", 15, 0, 0.0)])
def test_a_lease_that_was_nobody_elses_is_made_at_once(before: Seen | None) -> None:
    assert missing("me", before, 5.0) is None


def test_taking_over_counts_a_transition_and_renewing_does_not() -> None:
    wall = datetime.datetime(2026, 11, 30, 8, 0, 0, 123456, tzinfo=datetime.UTC)
    seen = Seen("1", "other", 15.0, 3, 0.0)

    taken = spec(Act.TAKE, "me", seen, Timing(), wall, "before")
    renewed = spec(Act.RENEW, "me", seen, Timing(), wall, "before")

    assert (taken["leaseTransitions"], taken["acquireTime"]) == (4, "2026-11-30T08:00:00.123456Z")
    assert (renewed["leaseTransitions"], renewed["acquireTime"]) == (3, "before")


def test_a_fraction_of_a_second_is_rounded_up() -> None:
    wall = datetime.datetime.now(datetime.UTC)

    assert spec(Act.CREATE, "me", None, Timing(2.5, 1.5, 0.3), wall, "")["leaseDurationSeconds"] == 3


def test_local_time_is_written_as_utc() -> None:
    tokyo = datetime.timezone(datetime.timedelta(hours=9))

    assert micro_time(datetime.datetime(2026, 1, 1, 9, 0, tzinfo=tokyo)) == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(("duration", "renew", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0), (5, 10, 2)])
def test_times_that_cannot_exclude_two_leaders_are_refused(
    duration: float, renew: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="lease times"):
        Timing(duration, renew, retry)
