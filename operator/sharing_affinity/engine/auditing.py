"""Checking memory against the objects, and rebuilding it from them (H9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sharing_affinity.api import BadObject, Claim, parse_claim
from sharing_affinity.api.reasons import NoticeReason
from sharing_affinity.engine.types import Applied, Changes, Notice
from sharing_affinity.engine.versions import older
from sharing_affinity.engine.world import World, merged, salvage_claim

STEP: Final = 200
"""Claims that are looked at before others get their turn: about 10 ms."""


def _understood(claims: Iterable[Mapping[str, Any]]) -> dict[str, Claim]:
    found = {}
    for raw in claims:
        try:
            claim: Claim | None = parse_claim(raw)
        except BadObject:
            claim = salvage_claim(raw)
        if claim is not None:
            found[claim.meta.uid] = claim
    return found


def audit(
    world: World, claims: Iterable[Mapping[str, Any]], version: str = "", step: int = STEP
) -> Iterator[tuple[str, ...]]:
    """Lines about claims whose holds in memory are not those of the list, from ``step`` claims at a time, so
    that others get their turn. Assumed claims are not compared.

    ``version`` is the list's resourceVersion: what memory has seen change after it cannot be judged by it.
    That is true of every claim alone, so memory may change between two steps.
    """
    listed: set[str] = set()
    rest = iter(claims)
    while chunk := list(islice(rest, step)):
        understood = _understood(chunk)
        listed.update(understood)
        yield tuple(
            line
            for uid, claim in sorted(understood.items())
            for line in _compare(world, uid, claim, _known(world, claim), version)
        )
    unlisted = sorted(set(world.ledger.claims()) - listed)
    known = {claim.meta.uid: claim for claim in world.claims.values()} if unlisted else {}
    for start in range(0, len(unlisted), step):
        yield tuple(
            line
            for uid in unlisted[start : start + step]
            # One that is not held any more has left since.
            if world.ledger.devices_of(uid)
            for line in _compare(world, uid, None, known.get(uid), version)
        )


def _known(world: World, listed: Claim) -> Claim | None:
    known = world.claims.get(listed.key)
    return known if known is not None and known.meta.uid == listed.meta.uid else None


def _compare(
    world: World, uid: str, listed: Claim | None, known: Claim | None, version: str
) -> Iterator[str]:
    if uid in world.assumed or _changed_since(world, known, listed, version):
        return
    expected = _results(listed) if listed is not None else ()
    actual = _held(world, uid)
    if expected != actual:
        yield f"claim {uid}: the list says {list(expected)}, memory says {list(actual)}"


def _changed_since(world: World, known: Claim | None, listed: Claim | None, version: str) -> bool:
    """Whether memory has seen the claim change, come or go after the list was made."""
    if known is None:
        return listed is not None and world.versions.is_dead("ResourceClaim", listed.meta.uid)
    return older(listed.meta.resource_version if listed is not None else version, known.meta.resource_version)


def _results(claim: Claim) -> tuple[tuple[str, ...], ...]:
    if claim.allocation is None:
        return ()
    return tuple(
        sorted((r.driver, r.pool, r.device, r.share_id) for r in claim.allocation.results if not r.admin)
    )


def _held(world: World, uid: str) -> tuple[tuple[str, ...], ...]:
    found = []
    for device in set(world.ledger.devices_of(uid)):
        found += [
            (*device, hold.share_id) for hold in world.ledger.occupancy(device).holds if hold.uid == uid
        ]
    return tuple(sorted(found))


def misplaced(world: World) -> tuple[Notice, ...]:
    """Bound pods with a claim allocated for another node."""
    found = []
    for key in {key for keys in world.pods_of_claim.values() for key in keys}:
        pod = world.pods[key]
        node = world.nodes.get(pod.node_name)
        if node is None or pod.finished:
            continue
        for entry in pod.claims:
            claim = world.claims.get((pod.meta.namespace, entry.claim))
            selector = claim.allocation.node_selector if claim is not None and claim.allocation else None
            if selector is not None and not selector.matches(node.name, node.labels):
                text = (
                    f"it runs on {node.name}, but claim {entry.claim} is allocated for another node; "
                    "delete the pod"
                )
                found.append(Notice(NoticeReason.MISPLACED, "Pod", *pod.key, text))
    return tuple(sorted(found, key=lambda notice: (notice.namespace, notice.name)))


def rebuild(world: World, claims: Iterable[Mapping[str, Any]] | None, now: float) -> Changes:
    """Drop what is derived from claims and derive it again; assumptions are re-applied on top."""
    changes = Changes()
    if claims is not None:
        listed = list(claims)
        names = {(c.meta.namespace, c.meta.name) for c in _understood(listed).values()}
        for key in set(world.claims) - names:
            changes = merged(changes, world.remove_claim(key))
        for raw in listed:
            changes = merged(changes, world.observe(Applied(raw), now))
    for step in world.rederive_steps(STEP):
        changes = merged(changes, step)
    return changes
