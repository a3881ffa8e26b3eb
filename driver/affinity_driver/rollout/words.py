"""Plans and refusals in words, for an administrator: claims are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from affinity_driver.json_types import JsonObject
from sharing_affinity.api import Extractor, keys

from .cluster import PoolNow
from .judge import DeviceChange, Judgement, PoolChange, Waiting

WAY_OUT = """\
Way out: let these claims end and run this again (apply --wait waits for them); or keep the old form beside
the new one in the expression, each guarded by its apiVersion, until they have ended; or add --force, and the
devices take nothing new until they are drained."""


def show(changes: Iterable[PoolChange], waiting: Sequence[Waiting]) -> None:
    """Print a plan for people."""
    rows = [("POOL", "DEVICE", "NOW", "THEN", "HOLDERS")]
    for change in changes:
        for device in change.devices:
            then = "same" if device.before == device.after else judgement(device.after)
            count = str(len(device.holders))
            rows.append((change.pool, device.device, judgement(device.before), then, count))
    table(rows)
    broken = False
    for change in changes:
        print(f"\npool {change.pool}: {difference(change)}")
        broken |= change.breaks
        for line in _problems(change.devices):
            print(line)
    if broken:
        print(f"\n{WAY_OUT}")
    if waiting:
        print("\nClaims that wait and would find no key any more, unless their DeviceClass supplies it:")
        for claim in waiting:
            print(f"  {claim.namespace}/{claim.claim}, request {claim.request}: {claim.problem}")


def explain(change: PoolChange, pool: PoolNow) -> None:
    """Why a pool is held back."""
    if not pool.metadata:
        print(
            f"pool {change.pool}: held back: nobody publishes metadata for it; run the driver with sharing "
            "affinity, or a metadata-sidecar beside it"
        )
        return
    lines = list(_problems(change.devices)) if change.breaks else []
    if not lines:
        print(f"pool {change.pool}: held back: in use")
        return
    print(f"pool {change.pool}: held back: {difference(change)} would break its holders")
    for line in lines:
        print(line)
    print(WAY_OUT)


def _problems(devices: Iterable[DeviceChange]) -> Iterable[str]:
    for device in devices:
        if not device.breaks:
            continue
        yield f"  device {device.device}: {device.after.problem}"
        for holder in device.holders:
            says = holder.problem or keys.render(holder.after or ())
            yield f"    {holder.namespace}/{holder.claim}, request {holder.request}: {says}"


def difference(change: PoolChange) -> str:
    """What a change does to the keys."""
    old = {extractor.name: extractor.expression for extractor in change.before}
    new = {extractor.name: extractor.expression for extractor in change.after}
    words = [
        ("adds", sorted(new.keys() - old.keys())),
        ("changes", sorted(name for name in old.keys() & new.keys() if old[name] != new[name])),
        ("retires", sorted(old.keys() - new.keys())),
    ]
    return "; ".join(f"{word} {', '.join(names)}" for word, names in words if names) or "changes nothing"


def judgement(judgement: Judgement) -> str:
    """A device's state and lock."""
    return f"{judgement.state} {keys.render(judgement.keys)}".strip()


def names(extractors: Iterable[Extractor]) -> str:
    """The keys of extractors."""
    return ",".join(extractor.name for extractor in extractors) or "-"


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns; the first is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def as_json(change: PoolChange) -> JsonObject:
    """One pool as programs read it."""
    return {
        "pool": change.pool,
        "before": [extractor.name for extractor in change.before],
        "after": [extractor.name for extractor in change.after],
        "changes": not change.same,
        "breaks": change.breaks,
        "devices": [
            {
                "device": device.device,
                "before": _state(device.before),
                "after": _state(device.after),
                "breaks": device.breaks,
                "holders": [
                    {
                        "namespace": holder.namespace,
                        "claim": holder.claim,
                        "request": holder.request,
                        "before": None if holder.before is None else dict(holder.before),
                        "after": None if holder.after is None else dict(holder.after),
                        "problem": holder.problem,
                    }
                    for holder in device.holders
                ],
            }
            for device in change.devices
        ],
    }


def _state(judgement: Judgement) -> JsonObject:
    return {"state": judgement.state, "lock": dict(judgement.keys), "problem": judgement.problem}
