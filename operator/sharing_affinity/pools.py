"""Pools: joining device slices with metadata slices, and the only rules about what makes a pool usable.

A pool is (driver, pool name). It is an *affinity pool* when any of its devices carries the fence or any
metadata names it (H3); otherwise it is a stock pool and none of our business, except that its devices may
have to serve other claims of a pod. Everything that may be wrong with a pool is decided in :func:`validate`;
lint, admission and the engine ask there and nowhere else.

Completeness (H5), in the newest generation of either side: all metadata slices agree on N; device slices plus
metadata slices are N; the device slices declare either their own number (taint fence) or N (count fence).
Fewer is incomplete, disagreement or more is invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sharing_affinity.api import Device, Extractor, MetadataSlice, Quantity, ResourceSlice, TaintRule, names
from sharing_affinity.api.objects import Taint
from sharing_affinity.api.reasons import PoolState as PoolState

WAY_OUT: Final = {
    PoolState.INCOMPLETE: "it can be used when its driver has published the rest",
    PoolState.INVALID: "its driver has to publish a corrected generation",
    PoolState.UNSUPPORTED: "publish without it, or use a version of the operator that knows it",
    PoolState.UNFENCED: "its driver has to fence every device, or to publish no metadata",
    PoolState.FENCED_WITHOUT_METADATA: "its driver has to publish metadata, or to drop the fence",
    PoolState.GATE_OFF: "turn the gate on, or have the driver drop fence and metadata",
}
"""What ends each state that withholds a pool."""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """A device with what it inherits: its slice, and the taints of rules. ``order`` is upstream's search
    order."""

    device: Device
    slice: ResourceSlice
    taints: tuple[Taint, ...]
    fenced: bool

    @property
    def name(self) -> str:
        return self.device.name


@dataclass(frozen=True, slots=True)
class Pool:
    """A validated pool. ``devices`` is empty unless it is usable; ``listed`` are all of the newest
    generation.

    ``extractors`` are sorted by name; they are known also in states that take nothing new, because holders
    are judged by them. ``complete`` tells whether all members are there and valid, fenced or not.
    """

    driver: str
    name: str
    generation: int
    affinity: bool
    state: PoolState
    message: str
    complete: bool
    extractors: tuple[Extractor, ...]
    devices: tuple[PoolDevice, ...]
    counter_sets: Mapping[str, Mapping[str, Quantity]]
    listed: tuple[PoolDevice, ...]
    members: tuple[ResourceSlice, ...]
    node_name: str

    @property
    def id(self) -> tuple[str, str]:
        return (self.driver, self.name)

    @property
    def usable(self) -> bool:
        """Whether its devices may be allocated, by us (affinity pools) or by the scheduler (stock pools)."""
        return self.state is PoolState.JOINED or (self.state is PoolState.STOCK and self.complete)


def serves(member: ResourceSlice, node: str, labels: Mapping[str, str]) -> bool:
    """Whether a slice has anything for a node."""
    if member.node_name:
        return member.node_name == node
    if member.all_nodes:
        return True
    if member.node_selector is not None:
        return member.node_selector.matches(node, labels)
    return member.per_device and any(device_serves(d, node, labels) for d in member.devices)


def device_serves(device: Device, node: str, labels: Mapping[str, str]) -> bool:
    """Node selection of one device in a slice with perDeviceNodeSelection."""
    if device.node_name:
        return device.node_name == node
    if device.all_nodes:
        return True
    return device.node_selector is not None and device.node_selector.matches(node, labels)


Estimate = Callable[[str], int | None]
"""Worst-case cost of an expression, ``None`` when it does not compile."""


def told(pool: Pool) -> str:
    """What people read about a pool: its message and the way out."""
    hint = WAY_OUT.get(pool.state)
    return f"{pool.message}; {hint}" if pool.message and hint else pool.message


def validate(
    driver: str,
    name: str,
    slices: Iterable[ResourceSlice],
    metadata: Iterable[MetadataSlice],
    *,
    rules: Sequence[TaintRule] = (),
    rule_fences: bool = False,
    gate: bool = True,
    estimate: Estimate,
) -> Pool:
    """Judge one pool by all slices of its (driver, name), any generation.

    ``rules`` are the DeviceTaintRules that may select its devices; they count as fence only with
    ``rule_fences`` (H3). ``gate`` off withholds every affinity pool. The message of a pool that is not usable
    names the object or number at fault.
    """
    all_slices, all_metadata = tuple(slices), tuple(metadata)
    generation = max([s.generation for s in all_slices] + [m.generation for m in all_metadata], default=0)
    members = sorted((s for s in all_slices if s.generation == generation), key=lambda s: s.meta.name)
    meta = sorted((m for m in all_metadata if m.generation == generation), key=lambda m: m.meta.name)
    devices = tuple(_device(d, s, rules, rule_fences) for s in members for d in s.devices)
    native = any(s.extractors for s in members)
    counted = bool(meta) and all(s.count == len(members) + len(meta) for s in members)
    fenced = (bool(devices) and all(d.fenced for d in devices)) or (bool(members) and counted)
    # Fences of older generations count for whether the pool is ours: it must not slip to stock half-way.
    any_fence = any(d.fenced for d in devices) or any(
        t.is_fence for s in all_slices for d in s.devices for t in d.taints
    )
    affinity = any_fence or bool(all_metadata) or native or any(s.extractors for s in all_slices)
    extractors = _extractors(members, meta, native)
    node_names = {s.node_name for s in members}

    def pool(state: PoolState, message: str = "", complete: bool = False) -> Pool:
        takes = state in (PoolState.JOINED, PoolState.STOCK) and complete
        return Pool(
            driver=driver,
            name=name,
            generation=generation,
            affinity=affinity,
            state=state,
            message=message,
            complete=complete,
            extractors=extractors,
            devices=tuple(d for d in devices if not d.slice.counter_sets) if takes else (),
            counter_sets={n: c for s in members for n, c in s.counter_sets} if takes else {},
            listed=devices,
            members=tuple(members),
            node_name=node_names.pop() if len(node_names) == 1 else "",
        )

    if affinity and not gate:
        return pool(
            PoolState.GATE_OFF, "the feature gate DRASharingAffinity is off; its devices are withheld"
        )
    unsupported = [(s.meta.name, p) for s in members for p in s.unsupported]
    unsupported += [(m.meta.name, p) for m in meta for p in m.unsupported]
    unsupported += [(s.meta.name, p) for s in members for d in s.devices for p in d.unsupported]
    if unsupported:
        owner, path = unsupported[0]
        return pool(
            PoolState.UNSUPPORTED, f"slice {owner} uses {path}, which this version does not implement"
        )
    state, problem = _count(members, meta, bool(all_metadata), native) if affinity else _stock_count(members)
    if problem:
        return pool(state, problem)
    problem = _structure(members, devices)
    if problem:
        return pool(PoolState.INVALID if affinity else PoolState.STOCK, problem)
    if not affinity:
        return pool(PoolState.STOCK, complete=True)
    if native and not fenced:
        return pool(
            PoolState.MANAGED_BY_SCHEDULER, "publishes sharingAffinity natively and is not fenced", True
        )
    if meta and not extractors:
        return pool(PoolState.INVALID, f"slice {meta[0].meta.name} declares no sharing-affinity key")
    if not extractors:
        return pool(
            PoolState.FENCED_WITHOUT_METADATA,
            f"its devices carry the taint {names.FENCE_KEY}, but no {names.SLICE_KIND} names the pool",
        )
    problem = _extractor_problem(members, meta, native, estimate)
    if problem:
        return pool(PoolState.INVALID, problem)
    if not fenced:
        bare = next((d.name for d in devices if not d.fenced), "")
        problem = f"device {bare} lacks the taint {names.FENCE_KEY}:{names.FENCE_EFFECT}"
        return pool(PoolState.UNFENCED, problem if bare else "has no fenced device", True)
    if not gate:
        message = "the feature gate DRASharingAffinity is off; its devices are withheld"
        return pool(PoolState.GATE_OFF, message, True)
    return pool(PoolState.JOINED, complete=True)


def _device(
    device: Device, member: ResourceSlice, rules: Sequence[TaintRule], rule_fences: bool
) -> PoolDevice:
    added = tuple(
        r.taint for r in rules if r.taint is not None and r.selects(member.driver, member.pool, device.name)
    )
    fenced = any(t.is_fence for t in device.taints) or (
        rule_fences and any(r.fences(member.driver, member.pool, device.name) for r in rules)
    )
    return PoolDevice(device, member, device.taints + added, fenced)


def _extractors(
    members: Sequence[ResourceSlice], meta: Sequence[MetadataSlice], native: bool
) -> tuple[Extractor, ...]:
    """The union; the native field replaces ours. Of a duplicate name the first stays (the pool is
    invalid)."""
    found: dict[str, Extractor] = {}
    for owner in members if native else meta:
        for extractor in owner.extractors:
            found.setdefault(extractor.name, extractor)
    return tuple(found[name] for name in sorted(found))


def _count(
    members: Sequence[ResourceSlice], meta: Sequence[MetadataSlice], has_metadata: bool, native: bool
) -> tuple[PoolState, str]:
    """Completeness of an affinity pool (H5): a state and what is wrong, or no text when all members are
    there."""
    generation = members[0].generation if members else meta[0].generation if meta else 0
    if not meta and has_metadata and not native:
        return PoolState.INCOMPLETE, f"no {names.SLICE_KIND} of generation {generation} yet"
    if not members:
        return PoolState.INCOMPLETE, f"no ResourceSlice of generation {generation} yet"
    own, declared = len(members), sorted({s.count for s in members})
    if not meta:
        # Fenced without metadata, or native: only the device slices' own number is there to compare with.
        if len(declared) > 1 or own > declared[0]:
            return PoolState.INVALID, _disagree("ResourceSlices", declared, own)
        if own < declared[0]:
            return PoolState.INCOMPLETE, f"{own} of {declared[0]} ResourceSlices are there"
        return PoolState.JOINED, ""
    totals = sorted({m.count for m in meta})
    if len(totals) > 1:
        return PoolState.INVALID, _disagree(f"{names.SLICE_KIND}s", totals, own + len(meta))
    total, present = totals[0], own + len(meta)
    if present > total:
        return PoolState.INVALID, f"{present} slices are there, but resourceSliceCount says {total}"
    if present < total:
        return PoolState.INCOMPLETE, f"{present} of {total} slices of generation {generation} are there"
    if declared not in ([own], [total]):
        return PoolState.INVALID, (
            f"its ResourceSlices declare resourceSliceCount {', '.join(map(str, declared))}; "
            f"right is {own} (their own number) or {total} (all members)"
        )
    return PoolState.JOINED, ""


def _stock_count(members: Sequence[ResourceSlice]) -> tuple[PoolState, str]:
    if len(members) != members[0].count:
        return PoolState.STOCK, f"{len(members)} of {members[0].count} ResourceSlices are there"
    return PoolState.STOCK, ""


def _disagree(what: str, numbers: Sequence[int], present: int) -> str:
    return f"its {what} declare resourceSliceCount {', '.join(map(str, numbers))}, and {present} are there"


def _structure(members: Sequence[ResourceSlice], devices: Sequence[PoolDevice]) -> str:
    """Duplicate devices or counter sets, devices drawing from counters that do not exist, mixed slices."""
    for member in members:
        if member.extractors and member.devices:
            return f"slice {member.meta.name} has both devices and sharingAffinity"
        if member.counter_sets and member.devices:
            return f"slice {member.meta.name} has both devices and sharedCounters"
    seen: set[str] = set()
    for entry in devices:
        if entry.name in seen:
            return f"device name {entry.name} is used twice (slice {entry.slice.meta.name})"
        seen.add(entry.name)
    sets: dict[str, Mapping[str, Quantity]] = {}
    for member in members:
        for set_name, counters in member.counter_sets:
            if set_name in sets:
                return f"counter set {set_name} is declared twice (slice {member.meta.name})"
            sets[set_name] = counters
    for entry in devices:
        for use in entry.device.counters:
            if use.counter_set not in sets:
                return f"device {entry.name} consumes counter set {use.counter_set}, which does not exist"
            lacking = [counter for counter in use.counters if counter not in sets[use.counter_set]]
            if lacking:
                return f"device {entry.name} consumes counter {lacking[0]}, not in set {use.counter_set}"
    return ""


@dataclass(frozen=True, slots=True)
class ExtractorProblem:
    """A rule about the extractors of one generation of a pool that does not hold.

    ``index`` is the place of the second declaration in ``owner.extractors``, None for the sum of costs.
    """

    owner: ResourceSlice | MetadataSlice
    index: int | None
    message: str


def extractor_problems(
    owners: Sequence[ResourceSlice] | Sequence[MetadataSlice], estimate: Estimate
) -> Iterator[ExtractorProblem]:
    """What the extractors of one generation of a pool may not be together: two of one name, or too
    expensive."""
    declared: dict[str, str] = {}
    cost = 0
    for owner in owners:
        for index, extractor in enumerate(owner.extractors):
            if extractor.name in declared:
                message = (
                    f"sharing-affinity key {extractor.name} is declared twice "
                    f"(slices {declared[extractor.name]} and {owner.meta.name})"
                )
                yield ExtractorProblem(owner, index, message)
            declared.setdefault(extractor.name, owner.meta.name)
            # What does not compile has no estimate; it ends the allocations that would run it.
            cost += estimate(extractor.expression) or 0
    if cost > names.POOL_COST_BUDGET:
        message = f"its extractors may cost {cost}, over the shared budget of {names.POOL_COST_BUDGET}"
        yield ExtractorProblem(owners[-1], None, message)


def _extractor_problem(
    members: Sequence[ResourceSlice], meta: Sequence[MetadataSlice], native: bool, estimate: Estimate
) -> str:
    first = next(extractor_problems(members if native else meta, estimate), None)
    return "" if first is None else first.message
