"""What is used on each node: bound pods, nominated pods, and pods pinned to a node by an allocation of ours
(H11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sharing_affinity.api import Pod
from sharing_affinity.api.core_objects import HostPort

PodKey = tuple[str, str]


@dataclass(slots=True)
class Load:
    """The pods on one node and the sum of their requests."""

    pods: dict[PodKey, Pod] = field(default_factory=dict)
    amounts: dict[str, int] = field(default_factory=dict)

    def without(self, keys: Iterable[PodKey]) -> Load:
        """A copy without some pods."""
        gone = set(keys)
        rest = Load()
        for key, pod in self.pods.items():
            if key not in gone:
                rest.add(pod)
        return rest

    def add(self, pod: Pod) -> None:
        self.pods[pod.key] = pod
        for name, amount in pod.requests.items():
            self.amounts[name] = self.amounts.get(name, 0) + amount

    def remove(self, key: PodKey) -> None:
        pod = self.pods.pop(key)
        for name, amount in pod.requests.items():
            left = self.amounts[name] - amount
            if left:
                self.amounts[name] = left
            else:
                del self.amounts[name]

    @property
    def ports(self) -> tuple[HostPort, ...]:
        return tuple(port for pod in self.pods.values() for port in pod.host_ports)


class Usage:
    """Loads by node. A pod counts on at most one node: bound, else pinned, else nominated."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}
        self._where: dict[PodKey, str] = {}
        self._by_namespace: dict[str, dict[PodKey, None]] = {}
        self._repelling: dict[PodKey, None] = {}

    def load(self, node: str) -> Load:
        return self._loads.get(node, _EMPTY)

    def assign(self, pod: Pod, node: str) -> bool:
        """Count a pod on a node (empty: on none). Returns whether something was freed."""
        key = pod.key
        before = self._where.get(key, "")
        if before:
            same = before == node and self._loads[before].pods[key].requests == pod.requests
            self._remove(key, before)
        else:
            same = True
        if node:
            self._loads.setdefault(node, Load()).add(pod)
            self._where[key] = node
            self._by_namespace.setdefault(key[0], {})[key] = None
            if pod.pod_anti_affinity:
                self._repelling[key] = None
        return not same

    def drop(self, key: PodKey) -> bool:
        """The pod is gone. Returns whether it had been counted."""
        node = self._where.get(key, "")
        if node:
            self._remove(key, node)
        return bool(node)

    def _remove(self, key: PodKey, node: str) -> None:
        load = self._loads[node]
        self._repelling.pop(key, None)
        here = self._by_namespace[key[0]]
        del here[key]
        if not here:
            del self._by_namespace[key[0]]
        load.remove(key)
        if not load.pods:
            del self._loads[node]
        del self._where[key]

    def placed(self, namespaces: Iterable[str] | None = None) -> Iterator[tuple[Pod, str]]:
        """The counted pods of some namespaces, or of all, with their nodes."""
        for namespace in self._by_namespace if namespaces is None else dict.fromkeys(namespaces):
            yield from self._with_nodes(self._by_namespace.get(namespace, ()))

    def repelling(self) -> Iterator[tuple[Pod, str]]:
        """Counted pods with required anti-affinity, which concerns pods that have none themselves."""
        return self._with_nodes(self._repelling)

    def _with_nodes(self, keys: Iterable[PodKey]) -> Iterator[tuple[Pod, str]]:
        for key in keys:
            node = self._where[key]
            yield self._loads[node].pods[key], node

    def placements(self) -> Mapping[PodKey, str]:
        return self._where


_EMPTY = Load()
