"""Where pods should not go for a while: nodes on which an allocation was taken back (H7, H11)."""

from __future__ import annotations

from dataclasses import dataclass

from sharing_affinity.api import Pod
from sharing_affinity.engine.types import Options, PodKey


@dataclass(frozen=True, slots=True)
class Cleared:
    """A claim that lost its allocation while a live pod still wants it (H7)."""

    node: str
    until: float


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node a pod stays off for a while, after a foreign deallocation."""

    node: str
    until: float
    times: int


class Setbacks:
    """Cleared claims by UID, and nodes excluded for a pod (by key and UID)."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.cleared: dict[str, Cleared] = {}
        self._exclusions: dict[tuple[PodKey, str], dict[str, Exclusion]] = {}

    def clear(self, claim_uid: str, node: str, now: float) -> None:
        """A claim was freed on a node while a live pod wants it: it may only return there for a while."""
        self.cleared[claim_uid] = Cleared(node, now + self._options.cool_down)

    def exclude(self, pod: Pod, node: str, now: float) -> None:
        """Keep a pod off a node for a while, longer each time."""
        mine = self._exclusions.setdefault((pod.key, pod.meta.uid), {})
        times = mine[node].times + 1 if node in mine else 1
        until = now + self._options.exclusion * min(2 ** (times - 1), 16)
        mine[node] = Exclusion(node, until, times)

    def of(self, pod: Pod) -> dict[str, Exclusion]:
        """By node: what a pod is or was kept off."""
        return self._exclusions.get((pod.key, pod.meta.uid), {})

    def forget_pod(self, pod: Pod) -> None:
        self._exclusions.pop((pod.key, pod.meta.uid), None)
