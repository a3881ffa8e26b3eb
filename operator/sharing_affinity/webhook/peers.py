"""The metadata slices of every pool, kept in step by a watch: what a new slice may collide with.

A watch, not a read per request: when many nodes start at once, every one of their slices would be a list. The
price is a moment in which a slice that was stored just now is not known yet; the operator's own check has no
such gap.
"""

from __future__ import annotations

from collections import defaultdict

import structlog

from sharing_affinity.api import BadObject, MetadataSlice, parse_metadata_slice
from sharing_affinity.runtime.kinds import Kind
from sharing_affinity.runtime.reflector import Change, Removal, Upsert

log = structlog.get_logger("peers")


class Peers:
    """Feed it through `deliver`."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], dict[str, MetadataSlice]] = defaultdict(dict)
        self._pool_of: dict[str, tuple[str, str]] = {}

    def of(self, driver: str, pool: str) -> tuple[MetadataSlice, ...]:
        """The stored slices of a pool, all generations."""
        return tuple(self._pools.get((driver, pool), {}).values())

    async def deliver(self, kind: Kind, changes: list[Change]) -> None:
        """Changes of the feed, in order."""
        for change in changes:
            match change:
                case Upsert(raw):
                    name = raw["metadata"]["name"]
                    self._forget(name)
                    try:
                        found = parse_metadata_slice(raw)
                    except BadObject as problem:
                        log.warning("object left out of account", object=name, problem=str(problem))
                        continue
                    self._pool_of[name] = (found.driver, found.pool)
                    self._pools[found.driver, found.pool][name] = found
                case Removal():
                    self._forget(change.name)
                case _:
                    pass

    def _forget(self, name: str) -> None:
        pool = self._pool_of.pop(name, None)
        if pool is not None:
            slices = self._pools[pool]
            slices.pop(name, None)
            if not slices:
                del self._pools[pool]
