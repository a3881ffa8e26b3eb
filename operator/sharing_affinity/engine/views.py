"""What people see of the engine: the lock table, conditions of metadata slices, and a fingerprint for
audits."""

from __future__ import annotations

from collections.abc import Iterable

from sharing_affinity.api import Quantity, names, quantity
from sharing_affinity.api.reasons import GONE, OBSOLETE, SliceReason
from sharing_affinity.engine.types import DeviceLock, DeviceState, Holder, PoolId, PoolLocks, SliceStatus
from sharing_affinity.engine.world import World
from sharing_affinity.locks import Occupancy
from sharing_affinity.pools import Pool, PoolState, told


def affinity_pools(world: World) -> tuple[PoolId, ...]:
    wanted = {i for i, pool in world.pools.items() if pool.affinity}
    return tuple(sorted(wanted | {i for i in world.ledger.pools() if i not in world.pools}))


def lock_table(world: World, pools: Iterable[PoolId] | None) -> tuple[PoolLocks, ...]:
    if pools is None:
        wanted = set(affinity_pools(world))
    else:
        wanted = {
            i for i in pools if (world.pools[i].affinity if i in world.pools else world.ledger.claims_in(i))
        }
    return tuple(_pool(world, pool_id) for pool_id in sorted(wanted))


def _pool(world: World, pool_id: PoolId) -> PoolLocks:
    pool = world.pools.get(pool_id)
    listed = {d.name: d.device.capacity for d in pool.listed} if pool is not None else {}
    held = {
        device[2]
        for uid in world.ledger.claims_in(pool_id)
        for device in world.ledger.devices_of(uid)
        if device[:2] == pool_id
    }
    here = [*listed, *sorted(held - set(listed))]
    known = pool is not None and pool.complete
    rows = tuple(
        _device(
            world,
            (*pool_id, name),
            known and name in listed,
            {c: v.value for c, v in listed.get(name, {}).items()},
        )
        for name in here
    )
    if pool is None:
        message = "no slice of it is there, and its holders keep their devices; it comes back with its driver"
        return PoolLocks(*pool_id, 0, "", False, GONE, message, (), rows)
    return PoolLocks(
        *pool_id,
        generation=pool.generation,
        node=pool.node_name,
        status=pool.usable,
        reason=pool.state.value,
        message=told(pool),
        extractors=tuple((e.name, e.expression) for e in pool.extractors),
        devices=rows,
    )


def _device(
    world: World, device: tuple[str, str, str], known: bool, totals: dict[str, Quantity]
) -> DeviceLock:
    occupancy = world.ledger.occupancy(device)
    state, reason = DeviceState(occupancy.state.value), occupancy.doubt
    if not known and occupancy.holds:
        state, reason = DeviceState.UNKNOWN, "its pool is not complete; what it holds stays held"
    holders = tuple(
        Holder(
            hold.namespace,
            hold.claim,
            hold.uid,
            hold.request,
            hold.share_id,
            hold.keys,
            tuple((name, str(amount)) for name, amount in sorted(hold.consumed.items())),
            hold.uid in world.assumed,
        )
        for hold in sorted(
            occupancy.holds, key=lambda h: (h.namespace, h.claim, h.uid, h.request, h.share_id)
        )
    )
    return DeviceLock(
        device=device[2],
        state=state,
        keys=occupancy.keys if state is DeviceState.LOCKED else (),
        holders=holders,
        capacity=_capacity(occupancy, totals),
        reason=reason,
    )


def _capacity(occupancy: Occupancy, totals: dict[str, Quantity]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (name, str(occupancy.consumed.get(name, quantity.ZERO)), str(total))
        for name, total in sorted(totals.items())
    )


def slice_status(world: World, name: str) -> SliceStatus | None:
    meta = world.published.metadata.get(name)
    if meta is None:
        return None
    accepted, reason, message = True, SliceReason.COMPILES, "all expressions compile within their cost"
    total = 0
    for extractor in meta.extractors:
        cost = world.published.estimate(extractor.expression)
        if cost is None:
            accepted, reason = False, SliceReason.DOES_NOT_COMPILE
            problem = world.extractions.evaluator.problem(extractor.expression)
            message = f"the expression of key {extractor.name} does not compile: {problem}"
            break
        total += cost
    if accepted and total > names.POOL_COST_BUDGET:
        accepted, reason = False, SliceReason.TOO_EXPENSIVE
        message = f"its expressions may cost {total}, over the budget of {names.POOL_COST_BUDGET}"
    known = total if reason is not SliceReason.DOES_NOT_COMPILE else None
    pool = world.pools[(meta.driver, meta.pool)]
    if meta.generation < pool.generation:
        return SliceStatus(
            accepted, reason, message, False, OBSOLETE, f"generation {pool.generation} replaced it", known
        )
    joined = pool.state is PoolState.JOINED
    text = told(pool) or "the pool is complete, valid and fenced"
    return SliceStatus(accepted, reason, message, joined, pool.state.value, text, known)


def fingerprint(world: World) -> object:
    holders = tuple(
        (device, tuple(sorted(_hold_facts(occupancy), key=str)), occupancy.state.value, occupancy.keys)
        for device in sorted(world.ledger.devices())
        for occupancy in (world.ledger.occupancy(device),)
    )
    pools = tuple(_pool_facts(pool) for _, pool in sorted(world.pools.items()))
    return (holders, pools, tuple(sorted(world.usage.placements().items())), world.waiting.keys())


def _hold_facts(occupancy: Occupancy) -> list[object]:
    return [
        (h.uid, h.request, h.share_id, h.keys, tuple(sorted((n, str(a)) for n, a in h.consumed.items())))
        for h in occupancy.holds
    ]


def _pool_facts(pool: Pool) -> object:
    return (pool.id, pool.generation, pool.state.value, pool.message, pool.extractors, len(pool.devices))
