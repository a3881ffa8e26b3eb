"""The record annotation on a claim: what an allocation of ours was decided with (H1, H2).

One JSON object: ``{"attempt": id, "allocationTimestamp": RFC 3339 seconds, "results": [{"request", "driver",
"pool", "device", "shareID", "keys": {name: value}}]}``. ``attempt`` tells one write from the next;
``results`` has one entry per allocation result, in order, with an empty ``shareID`` for a device that is not
shared and empty ``keys`` for one outside affinity pools.

A lock is never read from here. The record only *compares*: when it fits the stored allocation, and the keys
extracted today are not the recorded ones, the device is Unreconstructable until it drains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sharing_affinity.api.keys import KeyMap

MAX_RECORD_LENGTH: Final = 256 * 1024
"""What the API server takes of all annotations together: a record that is stored is read."""


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """One allocation result and the keys it was decided with."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str
    keys: KeyMap

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        return (self.request, self.driver, self.pool, self.device, self.share_id)


@dataclass(frozen=True, slots=True)
class Record:
    """A whole record. ``attempt`` is empty in the engine's decisions; the writer fills it in per attempt."""

    attempt: str
    timestamp: str
    results: tuple[RecordedResult, ...]

    def with_attempt(self, attempt: str) -> Record:
        return replace(self, attempt=attempt)


def encode(record: Record) -> str:
    """The annotation's value, the same bytes for the same record."""
    return json.dumps(
        {
            "attempt": record.attempt,
            "allocationTimestamp": record.timestamp,
            "results": [
                {
                    "request": r.request,
                    "driver": r.driver,
                    "pool": r.pool,
                    "device": r.device,
                    "shareID": r.share_id,
                    "keys": dict(r.keys),
                }
                for r in record.results
            ],
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def decode(text: str) -> Record | None:
    """Read an annotation; ``None`` for anything that is not a record (a hand-written or damaged one counts
    for nothing, H2)."""
    if len(text) > MAX_RECORD_LENGTH:
        return None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("results"), list):
        return None
    attempt, timestamp = raw.get("attempt", ""), raw.get("allocationTimestamp", "")
    if not isinstance(attempt, str) or not isinstance(timestamp, str):
        return None
    results = []
    for entry in raw["results"]:
        result = _decode_result(entry)
        if result is None:
            return None
        results.append(result)
    return Record(attempt, timestamp, tuple(results))


def _decode_result(entry: Any) -> RecordedResult | None:
    if not isinstance(entry, Mapping):
        return None
    request, driver, pool, device, share = (
        entry.get(name, "") for name in ("request", "driver", "pool", "device", "shareID")
    )
    keys = entry.get("keys", {})
    if not all(isinstance(field, str) for field in (request, driver, pool, device, share)) or not isinstance(
        keys, Mapping
    ):
        return None
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in keys.items()):
        return None
    return RecordedResult(request, driver, pool, device, share, tuple(sorted(keys.items())))


def matches(record: Record, timestamp: str, results: Sequence[tuple[str, str, str, str, str]]) -> bool:
    """Whether a record counts for an allocation: same timestamp, same results (H2).

    ``results`` are (request, driver, pool, device, shareID or empty) of the stored allocation. Order is not
    significant; the server keeps it, but a rewrite by a tool may not.
    """
    return record.timestamp == timestamp and sorted(r.identity for r in record.results) == sorted(results)
