"""Unscheduled pods that may be ours, in the order in which they are decided on (H12)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from sharing_affinity.api import Pod
from sharing_affinity.api.core_objects import PodAffinityTerm
from sharing_affinity.engine.types import PodKey


class Waiting:
    """Keys of pods, by priority descending, creationTimestamp, namespace and name; kept in order, since it
    is asked for much more often than it changes much."""

    def __init__(self) -> None:
        self._places: dict[PodKey, tuple[int, str, PodKey]] = {}
        self._order: list[tuple[int, str, PodKey]] = []
        self._keys: frozenset[PodKey] | None = None
        self._near, self._away = _Lookouts(), _Lookouts()

    def put(self, pod: Pod) -> None:
        self._near.put(pod.key, _namespaces(pod, pod.pod_affinity, spread=bool(pod.spread)))
        self._away.put(pod.key, _namespaces(pod, pod.pod_anti_affinity))
        place = (-pod.priority, pod.meta.created, pod.key)
        if self._places.get(pod.key) == place:
            return
        self._leave(pod.key)
        self._places[pod.key] = place
        insort(self._order, place)
        self._keys = None

    def drop(self, key: PodKey) -> None:
        self._near.put(key, frozenset())
        self._away.put(key, frozenset())
        self._leave(key)

    def _leave(self, key: PodKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
            self._keys = None

    def following(self, namespace: str) -> frozenset[PodKey]:
        """Those whom a pod of a namespace may help on a node: they want to be near others, or spread beside
        them."""
        return self._near.at(namespace)

    def minding(self, namespace: str) -> frozenset[PodKey]:
        """Those to whom labels of a pod of a namespace may matter."""
        return self._near.at(namespace) | self._away.at(namespace)

    def keys(self) -> frozenset[PodKey]:
        """All of them, as a set."""
        if self._keys is None:
            self._keys = frozenset(self._places)
        return self._keys

    def in_order(self) -> tuple[PodKey, ...]:
        return tuple([place[2] for place in self._order])

    def __contains__(self, key: PodKey) -> bool:
        return key in self._places


class _Lookouts:
    """Pods by the namespaces of the others that they look at; "" stands for all of these."""

    def __init__(self) -> None:
        self._namespaces: dict[PodKey, frozenset[str]] = {}
        self._by: dict[str, set[PodKey]] = {}
        self._at: dict[str, frozenset[PodKey]] = {}

    def put(self, key: PodKey, namespaces: frozenset[str]) -> None:
        before = self._namespaces.get(key, frozenset())
        if before == namespaces:
            return
        for namespace in before - namespaces:
            self._by[namespace].discard(key)
            if not self._by[namespace]:
                del self._by[namespace]
        for namespace in namespaces - before:
            self._by.setdefault(namespace, set()).add(key)
        self._namespaces[key] = namespaces
        if not namespaces:
            del self._namespaces[key]
        self._at.clear()

    def at(self, namespace: str) -> frozenset[PodKey]:
        """Those who look at a namespace."""
        found = self._at.get(namespace)
        if found is None:
            found = frozenset(self._by.get(namespace, ())) | frozenset(self._by.get("", ()))
            self._at[namespace] = found
        return found


def _namespaces(pod: Pod, terms: Iterable[PodAffinityTerm], *, spread: bool = False) -> frozenset[str]:
    found = {pod.meta.namespace} if spread else set()
    for term in terms:
        everywhere = term.all_namespaces or term.namespace_labels
        found.update(("",) if everywhere else term.namespaces or (pod.meta.namespace,))
    return frozenset(found)
