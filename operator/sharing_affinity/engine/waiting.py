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
        #: Who wants to be near others, or beside them, by the others' namespace; "" stands for all of these.
        self._led: dict[PodKey, frozenset[str]] = {}
        self._led_by: dict[str, set[PodKey]] = {}
        self._following: dict[str, frozenset[PodKey]] = {}

    def put(self, pod: Pod) -> None:
        if (pod.pod_affinity or pod.spread or pod.key in self._led) and self._led.get(pod.key) != (
            leaders := _leaders(pod)
        ):
            self._lead(pod.key, leaders)
        place = (-pod.priority, pod.meta.created, pod.key)
        if self._places.get(pod.key) == place:
            return
        self._leave(pod.key)
        self._places[pod.key] = place
        insort(self._order, place)
        self._keys = None

    def drop(self, key: PodKey) -> None:
        if key in self._led:
            self._lead(key, frozenset())
        self._leave(key)

    def _lead(self, key: PodKey, leaders: frozenset[str]) -> None:
        for namespace in self._led.pop(key, ()):
            self._led_by[namespace].discard(key)
            if not self._led_by[namespace]:
                del self._led_by[namespace]
        for namespace in leaders:
            self._led_by.setdefault(namespace, set()).add(key)
        if leaders:
            self._led[key] = leaders
        self._following.clear()

    def _leave(self, key: PodKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
            self._keys = None

    def following(self, namespace: str) -> frozenset[PodKey]:
        """Those whom a pod of a namespace may help on a node: they want to be near others, or spread beside
        them."""
        found = self._following.get(namespace)
        if found is None:
            here, anywhere = (self._led_by.get(name, frozenset()) for name in (namespace, ""))
            found = self._following[namespace] = frozenset(here) | anywhere
        return found

    def keys(self) -> frozenset[PodKey]:
        """All of them, as a set."""
        if self._keys is None:
            self._keys = frozenset(self._places)
        return self._keys

    def in_order(self) -> tuple[PodKey, ...]:
        return tuple([place[2] for place in self._order])

    def __contains__(self, key: PodKey) -> bool:
        return key in self._places


def _leaders(pod: Pod) -> frozenset[str]:
    found = {pod.meta.namespace} if pod.spread else set()
    for term in pod.pod_affinity:
        everywhere = term.all_namespaces or term.namespace_labels
        found.update(("",) if everywhere else term.namespaces or (pod.meta.namespace,))
    return frozenset(found)
