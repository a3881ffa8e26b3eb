"""Counters and gauges of one driver process, in a registry of its own; all series exist from the start."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from .state.model import NodeState
from .statuswriter import OUTCOMES as STATUS_OUTCOMES

OUTCOMES = ("ok", "error", "claim", "config", "incompatible", "busy", "hardware", "internal")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


class Metrics:
    """What the driver counts. Implements ``CallObserver``."""

    def __init__(self, driver: str, keys: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._driver = driver
        prefix = "affinity_driver"
        self._calls = Counter(
            f"{prefix}_claims_total", "Claims by operation and outcome.",
            ["driver", "operation", "outcome"], registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            f"{prefix}_claim_duration_seconds", "From the call to its answer, per claim.",
            ["driver", "operation"], buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._rejections = Counter(
            f"{prefix}_affinity_rejections_total", "Prepares refused for another value of the key.",
            ["driver", "key"], registry=self.registry,
        )  # fmt: skip
        self._prepared = Gauge(
            f"{prefix}_prepared_claims",
            "Claims in the checkpoint.",
            ["driver", "phase"],
            registry=self.registry,
        )
        self._generation = Gauge(
            f"{prefix}_pool_generation", "Generation that is published.", ["driver"], registry=self.registry
        )
        self._slices = Gauge(
            f"{prefix}_slices_published",
            "Objects of the pool, both kinds.",
            ["driver"],
            registry=self.registry,
        )
        self._writes = Counter(
            f"{prefix}_slice_writes_total", "Writes of slices.", ["driver"], registry=self.registry
        )
        self._failures = Counter(
            f"{prefix}_publish_failures_total",
            "Publishing passes that failed.",
            ["driver"],
            registry=self.registry,
        )
        self._published = Gauge(
            f"{prefix}_last_publish_timestamp_seconds", "When a publishing pass last ended well.",
            ["driver"], registry=self.registry,
        )  # fmt: skip
        self._dropped = Counter(
            f"{prefix}_dropped_fields_total", "Fields that the API server dropped from slices.",
            ["driver", "resource"], registry=self.registry,
        )  # fmt: skip
        self._recovered = Gauge(
            f"{prefix}_checkpoints_set_aside", "Unreadable checkpoints since the start.",
            ["driver"], registry=self.registry,
        )  # fmt: skip
        self._statuses = Counter(
            f"{prefix}_claim_status_writes_total", "Claims whose status.devices was looked at, by outcome.",
            ["driver", "outcome"], registry=self.registry,
        )  # fmt: skip
        self._statuses_waiting = Gauge(
            f"{prefix}_claim_status_waiting", "Claims whose status.devices is to be looked at.",
            ["driver"], registry=self.registry,
        )  # fmt: skip
        for outcome in STATUS_OUTCOMES:
            self._statuses.labels(driver, outcome)
        for operation in ("prepare", "unprepare"):
            self._seconds.labels(driver, operation)
            for outcome in OUTCOMES:
                self._calls.labels(driver, operation, outcome)
        for key in (*keys, ""):
            self._rejections.labels(driver, key)
        for phase in ("Started", "Completed"):
            self._prepared.labels(driver, phase)
        for resource in ("resourceslices", "sharingaffinityslices"):
            self._dropped.labels(driver, resource)
        for metric in (
            self._generation,
            self._slices,
            self._writes,
            self._failures,
            self._published,
            self._recovered,
            self._statuses_waiting,
        ):
            metric.labels(driver)

    def call(self, operation: str, outcome: str, seconds: float) -> None:
        """See ``CallObserver``."""
        self._calls.labels(self._driver, operation, outcome).inc()
        self._seconds.labels(self._driver, operation).observe(seconds)

    def rejected(self, key: str | None) -> None:
        """A prepare was refused; ``key`` is the affinity key that differs, None for another reason."""
        self._rejections.labels(self._driver, key or "").inc()

    def prepared(self, state: NodeState, recovered: int) -> None:
        """What the checkpoint holds now."""
        phases = [claim.phase.value for claim in state.claims.values()]
        for phase in ("Started", "Completed"):
            self._prepared.labels(self._driver, phase).set(phases.count(phase))
        self._recovered.labels(self._driver).set(recovered)

    def status(self, outcome: str, waiting: int) -> None:
        """As of ``StatusObserver``."""
        self._statuses.labels(self._driver, outcome).inc()
        self._statuses_waiting.labels(self._driver).set(waiting)

    def published(self, generation: int, slices: int, writes: int) -> None:
        """As of ``PublishObserver``."""
        self._generation.labels(self._driver).set(generation)
        self._slices.labels(self._driver).set(slices)
        self._writes.labels(self._driver).inc(writes)
        self._published.labels(self._driver).set_to_current_time()

    def publish_failed(self) -> None:
        """As of ``PublishObserver``."""
        self._failures.labels(self._driver).inc()

    def dropped_fields(self, collection: str, paths: Sequence[str]) -> None:
        """As of ``PublishObserver``."""
        self._dropped.labels(self._driver, collection.rpartition("/")[2]).inc(len(paths))
