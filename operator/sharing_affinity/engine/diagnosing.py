"""Why a pod is not placed, as data: per node and device the one decisive reason, and the whole as one line.

What a pod's owner reads never names another tenant's claims: it names the device, the key, this claim's own
value and how many claims hold the device.
"""

from __future__ import annotations

from collections import Counter

from sharing_affinity.allocator import Candidate, KeysOf, Leaf, capacity
from sharing_affinity.allocator.capacity import CapacityError
from sharing_affinity.allocator.model import Requests
from sharing_affinity.api import Node
from sharing_affinity.api.keys import render, shorten
from sharing_affinity.engine.types import DeviceVerdict, Diagnosis, NodeVerdict
from sharing_affinity.engine.world import World
from sharing_affinity.extraction import Extracted, Unsatisfied
from sharing_affinity.locks import LockState

NO_DEVICE = "node(s) had no matching device of an affinity pool"
CLOSED = "node(s) whose matching devices are locked to other values, used up or withheld"
TOGETHER = "device(s) not free for all requests of the pod together"


def judge_node(world: World, node: Node, requests: Requests, keys_of: KeysOf, now: float) -> NodeVerdict:
    """The verdict on a node whose device search found nothing."""
    verdicts: list[DeviceVerdict] = []
    seen: set[tuple[str, str, str]] = set()
    unmatched = ""
    for claim in requests:
        for leaves in claim:
            if not any(leaf.candidates for leaf in leaves):
                unmatched = unmatched or f"no device on it matches request {leaves[0].name}"
            for leaf in leaves:
                for candidate in leaf.candidates:
                    if candidate.id not in seen:
                        seen.add(candidate.id)
                        verdicts.append(
                            DeviceVerdict(*candidate.id, _reason(world, leaf, candidate, keys_of, now))
                        )
    unusable = _unusable_pool(world, node)
    if unmatched and unusable:
        return NodeVerdict(node.name, unusable, tuple(verdicts))
    if unmatched:
        return NodeVerdict(node.name, unmatched, tuple(verdicts))
    reasons = Counter(v.reason for v in verdicts)
    decisive = next((r for r, _ in reasons.most_common() if r != TOGETHER), TOGETHER)
    return NodeVerdict(node.name, decisive, tuple(verdicts))


def _unusable_pool(world: World, node: Node) -> str:
    for node_pool in world.published.node_pools(node):
        pool = node_pool.pool
        if pool.affinity and not pool.usable:
            return f"pool {pool.name} is not usable ({pool.state.value}: {pool.message})"
    return ""


def _reason(world: World, leaf: Leaf, candidate: Candidate, keys_of: KeysOf, now: float) -> str:
    """The first check of the search's order that the device fails on its own."""
    occupancy = world.ledger.occupancy(candidate.id)
    device, admin = candidate.entry.device, leaf.spec.admin
    if candidate.error:
        return candidate.error
    if not admin and (occupancy.dedicated or (occupancy.shared and not device.allow_multiple)):
        return "device is in use"
    try:
        demand = capacity.demand(leaf.spec.capacity, device.capacity)
    except CapacityError as error:
        return str(error)
    if demand.problem:
        return f"device {demand.problem}"
    if candidate.pool.affinity and not admin:
        reason = _affinity_reason(world, leaf, candidate, keys_of, now)
        if reason:
            return reason
    short = "" if admin else capacity.fits(demand.amounts, device.capacity, occupancy.consumed)
    if short:
        return f"device has not enough {short} left"
    for taint in candidate.entry.taints:
        tolerated = any(t.tolerates(taint) for t in leaf.spec.tolerations)
        if taint.blocks and not taint.is_fence and not tolerated:
            return f"device has the untolerated taint {taint.key}"
    return TOGETHER


def _affinity_reason(world: World, leaf: Leaf, candidate: Candidate, keys_of: KeysOf, now: float) -> str:
    extraction = keys_of(candidate.pool, leaf.claim, leaf.name)
    if isinstance(extraction, Unsatisfied):
        keys = ", ".join(extraction.missing)
        return f"claim's opaque configs produced no value for sharing-affinity key {keys}"
    if not isinstance(extraction, Extracted):
        return extraction.message
    occupancy = world.ledger.occupancy(candidate.id)
    if occupancy.state is LockState.UNRECONSTRUCTABLE:
        return "device has unknown affinity state due to legacy or invalid active claims"
    if occupancy.state is LockState.LOCKED and occupancy.keys != extraction.keys:
        return f"device is locked to incompatible affinity values (claim has {render(extraction.keys)})"
    if world.published.settles_at(candidate.id) > now:
        return "device was fenced only moments ago"
    return ""


def fold_diagnosis(diagnosis: Diagnosis) -> str:
    """One line like the scheduler's: how many nodes, and how many of them for which reason; then the way
    out."""
    total = diagnosis.total_nodes
    reasons = Counter(verdict.reason for verdict in diagnosis.nodes)
    for reason, count in diagnosis.rest:
        reasons[reason] += count
    parts = [f"{count} {_plural(reason)}" for reason, count in sorted(reasons.items())]
    listed = ", ".join(parts[:8]) + (f", and {len(parts) - 8} more reasons" if len(parts) > 8 else "")
    line = f"0/{total} nodes are available: {listed or 'there is no node'}."
    return f"{line} {_way_out(diagnosis)}"


def _plural(reason: str) -> str:
    if reason.startswith(("node(s)", "Insufficient", "Too many", "device(s)")):
        return shorten(reason, 300)
    return "node(s): " + shorten(reason, 300)


def _way_out(diagnosis: Diagnosis) -> str:
    text = " ".join(v.reason for v in diagnosis.nodes)
    if "produced no value for sharing-affinity key" in text:
        return (
            "Give the claim a config of the driver that sets the key, or use devices outside affinity pools."
        )
    if "locked to incompatible" in text:
        return "It waits until a device is free or locked to the same values."
    if "unknown affinity state" in text:
        return "It waits until the claims that hold the device are gone."
    if "is not usable" in text:
        return "The driver has to complete or correct the pool."
    if "not enough" in text:
        return "It waits until other claims give back what it needs; add devices, or ask for less."
    if "Insufficient" in text or "Too many pods" in text:
        return "It waits until a node with matching devices has room for the pod."
    return "It waits until that changes; `kubectl sharing-affinity explain pod NAME` tells more."
