"""What a search works on, prepared for one pod on one node, and what it finds.

Values that every decision makes anew are named tuples: they are made in a third of a frozen dataclass's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sharing_affinity.api import Claim, DeviceClass, KeyMap, Quantity, RequestSpec
from sharing_affinity.extraction import Extraction
from sharing_affinity.locks import DeviceId
from sharing_affinity.pools import Pool, PoolDevice


class NodeError(Exception):
    """The node cannot be judged or used at all for these claims (settled semantics 15); the text says why."""


class Abort(Exception):  # noqa: N818 - it ends the pod's attempt, on every node
    """A slice or claim author's error met inside a search: the pod's allocation ends."""

    def __init__(self, cause: Extraction) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device on the node that a request's selectors match; ``error`` when evaluating them failed."""

    id: DeviceId
    entry: PoolDevice
    pool: Pool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One way to serve a request: the request itself, or one of its alternatives.

    ``name`` is the result's request name. ``candidates`` are in upstream's search order; in mode All they are
    the devices that all have to be taken.
    """

    claim: int
    name: str
    spec: RequestSpec
    device_class: DeviceClass
    candidates: tuple[Candidate, ...]
    all_devices: bool
    count: int


Requests = tuple[tuple[tuple[Leaf, ...], ...], ...]
"""By claim, by request, by alternative."""

KeysOf = Callable[[Pool, int, str], Extraction]
"""The extraction for (pool, claim index, result name): already evaluated, never evaluated here."""


class Chosen(NamedTuple):
    """One device given to one request. ``share`` tells that the result needs a share ID."""

    leaf: Leaf
    candidate: Candidate
    share: bool
    consumed: Mapping[str, Quantity]
    keys: KeyMap


class Solution(NamedTuple):
    """Results by claim, in order of allocation. ``new_locks`` counts the devices that are locked by it,
    ``reused`` those that were locked to the same keys before."""

    results: tuple[tuple[Chosen, ...], ...]
    selected: Mapping[tuple[int, int], Leaf]
    new_locks: int
    reused: int


def always_settled(_device: DeviceId) -> bool:
    return True


class Problem(NamedTuple):
    """Everything one search needs. ``settled`` is False for a device whose fence is too young to rely on
    (H4); only devices of affinity pools are asked about."""

    claims: tuple[Claim, ...]
    requests: Requests
    pack: bool
    max_steps: int
    settled: Callable[[DeviceId], bool] = always_settled
