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
        self.repelling = 0
        """Counted pods with required anti-affinity, which concerns pods that have none themselves."""

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
            self.repelling += bool(pod.pod_anti_affinity)
        return not same

    def drop(self, key: PodKey) -> bool:
        """The pod is gone. Returns whether it had been counted."""
        node = self._where.get(key, "")
        if node:
            self._remove(key, node)
        return bool(node)

    def _remove(self, key: PodKey, node: str) -> None:
        load = self._loads[node]
        self.repelling -= bool(load.pods[key].pod_anti_affinity)
        load.remove(key)
        if not load.pods:
            del self._loads[node]
        del self._where[key]

    def placed(self) -> Iterator[tuple[Pod, str]]:
        """Every counted pod with its node."""
        for key, node in self._where.items():
            yield self._loads[node].pods[key], node

    def placements(self) -> Mapping[PodKey, str]:
        return self._where


_EMPTY = Load()
