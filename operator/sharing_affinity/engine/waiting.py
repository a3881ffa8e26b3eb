"""Unscheduled pods that may be ours, in the order in which they are decided on (H12)."""

from __future__ import annotations

from bisect import bisect_left, insort

from sharing_affinity.api import Pod
from sharing_affinity.engine.types import PodKey


class Waiting:
    """Keys of pods, by priority descending, creationTimestamp, namespace and name; kept in order, since it
    is asked for much more often than it changes much."""

    def __init__(self) -> None:
        self._places: dict[PodKey, tuple[int, str, PodKey]] = {}
        self._order: list[tuple[int, str, PodKey]] = []
        self._keys: frozenset[PodKey] | None = None
        self._led: set[PodKey] = set()
        self._following: frozenset[PodKey] | None = None

    def put(self, pod: Pod) -> None:
        if (pod.pod_affinity or pod.spread) and pod.key not in self._led:
            self._led.add(pod.key)
            self._following = None
        place = (-pod.priority, pod.meta.created, pod.key)
        if self._places.get(pod.key) == place:
            return
        self._leave(pod.key)
        self._places[pod.key] = place
        insort(self._order, place)
        self._keys = None

    def drop(self, key: PodKey) -> None:
        if key in self._led:
            self._led.discard(key)
            self._following = None
        self._leave(key)

    def _leave(self, key: PodKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
            self._keys = None

    def following(self) -> frozenset[PodKey]:
        """Those whom a pod on a node may help: they want to be near others, or spread beside them."""
        if self._following is None:
            self._following = frozenset(self._led)
        return self._following

    def keys(self) -> frozenset[PodKey]:
        """All of them, as a set."""
        if self._keys is None:
            self._keys = frozenset(self._places)
        return self._keys

    def in_order(self) -> tuple[PodKey, ...]:
        return tuple([place[2] for place in self._order])

    def __contains__(self, key: PodKey) -> bool:
        return key in self._places
