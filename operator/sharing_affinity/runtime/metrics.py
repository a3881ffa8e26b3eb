"""Prometheus metrics: those the KEP names, under its names, and what the operator's own machinery needs.

No metric has a label whose values a tenant controls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

from sharing_affinity.engine import DeviceState, Excluded, PoolId, PoolLocks, Reason
from sharing_affinity.runtime.kinds import FEEDS
from sharing_affinity.runtime.writer import Outcome

PREFIX = "sharing_affinity_"


class Metrics:
    """All metrics of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._locks: dict[PoolId, tuple[int, int]] = {}
        # Memory, CPU, and the start time that tells restarts.
        ProcessCollector(registry=self.registry)
        # KEP-5981, "Are there any missing metrics".
        self.locked_devices = self._gauge("locked_devices", "Devices that hold at least one affinity lock.")
        self.unreconstructable_devices = self._gauge(
            "unreconstructable_devices",
            "Devices withheld because their lock cannot be told from their holders.",
        )
        self.extractor_evaluations = self._counter("extractor_evaluations", "Extractor evaluations.")
        self.lock_conflicts = self._counter(
            "lock_conflict",
            "Candidate devices passed over because their lock is incompatible with the claim.",
        )
        self.no_keys = self._counter(
            "no_keys_extracted", "Candidate devices passed over because the claim supplies no affinity key."
        )
        self.compatible_reuse = self._counter(
            "compatible_reuse", "Allocations onto a device that was already locked to the same values."
        )
        # The operator itself.
        self.leader = self._gauge("leader", "1 while this replica allocates.")
        self.pending_pods = self._gauge("pending_pods", "Unscheduled pods the operator is asked to place.")
        self.parked_pods = self._gauge(
            "parked_pods", "Pods that wait for an event that can help them.", "reason"
        )
        self.decisions = self._counter("decisions", "Decisions about pods by how they ended.", "result")
        self.decision_seconds = self._histogram(
            "decision_seconds",
            "Time of one decision.",
            (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2),
        )
        self.writes = self._counter("claim_writes", "Writes of allocations by how they ended.", "outcome")
        self.write_seconds = self._histogram(
            "claim_write_seconds",
            "From decision to known outcome of one claim.",
            (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.releases = self._counter("releases", "Own allocations given back unused.", "outcome")
        self.feed_age = self._gauge(
            "feed_age_seconds",
            "Seconds since the API server said something; +Inf before it ever did.",
            "kind",
        )
        self.feed_fresh = self._gauge("feed_fresh", "1 when decisions may rest on this feed.", "kind")
        self.feed_lists = self._gauge("feed_lists", "Lists read of this kind.", "kind")
        self.audits = self._counter("audits", "Comparisons of memory with the API server.")
        self.audit_differences = self._counter(
            "audit_differences", "Differences found by audits; 0 for ever."
        )
        self.late_wakeups = self._counter(
            "late_wakeups",
            "Pods that only the periodic retry placed: an event that should have woken them did not.",
        )
        self.loop_lag = self._gauge(
            "loop_lag_seconds", "The longest the event loop was held in the last turn."
        )
        self.events_dropped = self._counter(
            "events_dropped", "Events that were not written, for want of budget."
        )
        self.refused_objects = self._counter(
            "refused_objects", "Objects that could not be understood.", "kind"
        )
        # A series that begins with its first increment is one that rate() does not see.
        for result in ("placed", *(reason.value for reason in Reason)):
            self.decisions.labels(result)
        for outcome in Outcome:
            self.writes.labels(outcome.value)
            self.releases.labels(outcome.value)
        for kind in FEEDS:
            self.refused_objects.labels(kind.kind)
        self.show_parked(())

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=buckets, registry=self.registry)

    def show_locks(self, pool: PoolId, table: Iterable[PoolLocks]) -> None:
        """Set the device gauges anew for one pool; an empty table says that it is gone."""
        states = [device.state for locks in table for device in locks.devices]
        before = self._locks.pop(pool, (0, 0))
        now = (states.count(DeviceState.LOCKED), states.count(DeviceState.UNRECONSTRUCTABLE))
        if now != (0, 0):
            self._locks[pool] = now
        self.locked_devices.inc(now[0] - before[0])
        self.unreconstructable_devices.inc(now[1] - before[1])

    def count_excluded(self, excluded: Excluded) -> None:
        """Count the devices a decision had to pass over, by the two reasons the KEP wants to see."""
        self.lock_conflicts.inc(excluded.conflicts)
        self.no_keys.inc(excluded.no_keys)

    def show_parked(self, reasons: Iterable[Reason]) -> None:
        """Set the number of parked pods by reason; ``reasons`` has one entry for each."""
        numbers = Counter(reasons)
        for reason in Reason:
            self.parked_pods.labels(reason.value).set(numbers[reason])

    def step_down(self) -> None:
        """What only the leader knows is no more."""
        self.leader.set(0)
        self._locks.clear()
        for gauge in (self.locked_devices, self.unreconstructable_devices, self.pending_pods):
            gauge.set(0)
        self.show_parked(())
