"""The nodes a decision tries, best first, without looking at those that cannot do.

The first request that holds devices is the anchor: a node without a matching device that is clean or locked
to the request's own keys cannot serve it, so only such nodes are visited. With packing, nodes with a
compatible lock come before the others; otherwise all come by name. A nominated node is first of all. What the
pod itself says about nodes narrows the choice before anything is visited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Final, NamedTuple

from sharing_affinity.allocator import KeysOf
from sharing_affinity.api import Claim, Node, Pod
from sharing_affinity.engine.cases import Case, Wish
from sharing_affinity.engine.openings import SortedNames
from sharing_affinity.engine.world import World
from sharing_affinity.extraction import Extracted

_BACKOFF_TOPOLOGY: Final = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
Names = SortedNames | Sequence[str]


class Choice(NamedTuple):
    """``packed`` nodes may need no new lock, ``open`` ones do. ``matching``: those with any matching device.

    ``only`` is what the pod's own constraints leave (``None``: not narrowed by an index), ``why`` says what
    they are.
    """

    packed: tuple[Names, ...]
    open: tuple[Names, ...]
    matching: tuple[Names, ...]
    only: Collection[str] | None
    why: str

    def tiers(self, pack: bool) -> Iterator[tuple[str, bool]]:
        """Node names in order, each once, and whether the node is in the packed tier."""
        seen: set[str] = set()
        tiers = ((self.packed, True), (self.open, False)) if pack else ((self.packed + self.open, False),)
        for names, is_packed in tiers:
            lists = [self._allowed(n) for n in names]
            for name in merge(*lists) if len(lists) > 1 else chain(*lists):
                if name not in seen:
                    seen.add(name)
                    yield name, is_packed

    def _allowed(self, names: Names) -> Iterable[str]:
        if self.only is None:
            return names
        if len(self.only) < len(names):
            return sorted(name for name in self.only if name in names)
        return (name for name in names if name in self.only)


def choose(world: World, case: Case, keys_of: KeysOf) -> Choice:
    """The nodes for a pod's claims, by the indexes."""
    only, why = _only(world, case.pod, case.allocated)
    anchor = _anchor(case)
    if anchor is None:
        # Admin access everywhere: it needs a matching device, in whatever state.
        names = _all_nodes(world, case)
        return Choice((), (names,), (names,), only, why)
    packed: list[Names] = []
    free: list[Names] = []
    matching: list[Names] = []
    for wish in anchor:
        for matches in wish.matches:
            if matches.elsewhere:
                names = sorted(world.nodes)
                return Choice((), (names,), (names,), only, why)
            matching.append(matches.where.nodes)
            for (driver, extractors), openings in matches.where.openings.items():
                pool = world.pools[next(iter(matches.sets[(driver, extractors)]))]
                extraction = keys_of(pool, wish.claim, wish.name)
                if isinstance(extraction, Extracted):
                    free.append(openings.clean)
                    if extraction.keys in openings.locked:
                        packed.append(openings.locked[extraction.keys])
    return Choice(tuple(packed), tuple(free), tuple(matching), only, why)


def _anchor(case: Case) -> tuple[Wish, ...] | None:
    """The first request that holds devices in every way to serve it."""
    return next((wishes for wishes in case.wishes if not any(w.spec.admin for w in wishes)), None)


def _all_nodes(world: World, case: Case) -> list[str]:
    found: set[str] = set()
    for matches in (m for wishes in case.wishes for wish in wishes for m in wish.matches):
        for pool_id in (*matches.affinity, *matches.stock):
            names = {m.node_name for m in world.pools[pool_id].members}
            if "" in names:
                return sorted(world.nodes)
            found |= names
    return sorted(found)


def _only(world: World, pod: Pod, allocated: Sequence[Claim]) -> tuple[Collection[str] | None, str]:
    """The smallest set of nodes that an index gives for the pod's own constraints."""
    sets: list[tuple[Collection[str], str]] = []
    for claim in allocated:
        held = world.allocation_of(claim)
        node = held.node_selector.single_node() if held is not None and held.node_selector else None
        if node is not None:
            sets.append(((node,), "node(s) where another claim of the pod is not available"))
    reason = "node(s) didn't match Pod's node affinity/selector"
    sets += [(world.labelled.get(pair, ()), reason) for pair in pod.node_selector.items()]
    if pod.node_affinity is not None:
        named = _named(world, pod)
        if named is not None:
            sets.append((named, reason))
    return min(sets, key=lambda found: len(found[0]), default=(None, ""))


def _named(world: World, pod: Pod) -> set[str] | None:
    """Nodes that required node affinity can match, where every term has an In that an index answers."""
    found: set[str] = set()
    for term in pod.node_affinity.terms if pod.node_affinity is not None else ():
        names = [r.values for r in term.fields if r.key == "metadata.name" and r.operator == "In"]
        labels = [r for r in term.expressions if r.operator == "In"]
        if names:
            found.update(names[0])
        elif labels:
            for value in labels[0].values:
                found.update(world.labelled.get((labels[0].key, value), ()))
        elif term.fields or term.expressions:
            return None
    return found


def ordered(world: World, pod: Pod, choice: Choice, now: float) -> Iterator[tuple[Node, bool]]:
    """The nodes to try, nominated first, those near an excluded node last, and whether they are packed."""
    nodes = world.nodes
    first = pod.nominated_node
    if first in nodes:
        yield nodes[first], False
    names: Iterator[tuple[str, bool]] = (
        (n, packed) for n, packed in choice.tiers(world.options.scoring) if n != first and n in nodes
    )
    failed = world.setbacks.of(pod)
    if failed:
        domains = _excluded_domains(world, pod, now)
        listed = list(names)
        # Nodes that have not failed the pod yet come first, so the search converges.
        listed.sort(
            key=lambda entry: (
                failed[entry[0]].times if entry[0] in failed else 0,
                _is_near(nodes[entry[0]], domains),
            )
        )
        names = iter(listed)
    for name, packed in names:
        yield nodes[name], packed


def _excluded_domains(world: World, pod: Pod, now: float) -> set[tuple[str, str]]:
    """Topology domains of nodes that failed the pod lately (H11)."""
    excluded = world.setbacks.of(pod)
    return {
        (key, world.nodes[name].labels[key])
        for name, exclusion in excluded.items()
        if name in world.nodes and now < exclusion.until
        for key in _BACKOFF_TOPOLOGY
        if key in world.nodes[name].labels
    }


def _is_near(node: Node, domains: set[tuple[str, str]]) -> bool:
    return any((key, node.labels.get(key)) in domains for key in _BACKOFF_TOPOLOGY)
