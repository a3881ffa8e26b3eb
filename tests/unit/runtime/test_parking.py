"""Parked pods come back when something wakes them or their time comes, and no more often than that."""

from __future__ import annotations

import pytest
from harness.controllers import controller

from sharing_affinity.engine import Reason
from sharing_affinity.runtime.controller import FLUSH

POD = ("default", "pod")
MINUTES = 60


class Parking:
    """A controller whose decision about the one pod is always no; time moves only when told to."""

    def __init__(self, reason: Reason = Reason.NO_NODE) -> None:
        self.now, self.reason = 1000.0, reason
        self.controller = controller(clock=lambda: self.now, wall=lambda: self.now)
        self.controller._park(POD, reason, None)

    def tries(self, seconds: float, *, woken_every: int = 0, retry_after: float | None = None) -> int:
        """How often the pod is decided on meanwhile."""
        tried, tested = 0, self.controller
        for second in range(int(seconds)):
            self.now += 1
            if woken_every and second % woken_every == 0:
                tested._wake([POD])
            tested._wake_due(self.now)
            if POD in tested._ready:
                tested._ready.clear()
                retry_at = None if retry_after is None else self.now + retry_after
                tested._park(POD, self.reason, retry_at)
                tried += 1
        return tried


@pytest.mark.parametrize("reason", [Reason.NO_NODE, Reason.WAITING])
def test_events_of_the_past_do_not_make_a_pod_be_tried_again(reason: Reason) -> None:
    parking = Parking(reason)
    assert parking.tries(10 * MINUTES, woken_every=10) >= 60
    parking.tries(FLUSH)

    assert parking.tries(4 * FLUSH) == 4
    assert len(parking.controller._timers) == 1


def test_a_pod_that_nothing_wakes_is_tried_again_as_a_net() -> None:
    parking = Parking()

    assert parking.tries(FLUSH - 1) == 0
    assert parking.tries(1) == 1
    assert POD in parking.controller._by_net


def test_a_time_that_may_change_the_answer_comes_before_the_net() -> None:
    parking = Parking()
    parking.controller._park(POD, Reason.NO_NODE, parking.now + 30)

    assert parking.tries(29) == 0
    assert parking.tries(2, retry_after=60) == 1
    assert parking.tries(59) == 0
    assert parking.tries(3) == 1
    assert POD not in parking.controller._by_net


def test_a_pod_that_is_woken_while_it_pauses_waits_for_the_end_of_its_pause() -> None:
    parking = Parking()
    for _ in range(10):
        parking.controller._park(POD, Reason.NO_NODE, None)
    parking.controller._wake([POD])

    assert parking.tries(4) == 0
    assert parking.tries(2) == 1
