"""``sharing-affinity locks``: the lock table, derived by the engine from a cluster or from files.

It asks the API server with the caller's own rights and derives the table anew, so it needs no operator to
be running and shows what an operator would see now; what the caller may not see is said.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sharing_affinity.cli import BAD_INPUT, GOOD, NO_ACCESS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "locks",
        help="show which devices are locked to what, and by whom",
        description="Show every device of every affinity pool with its lock, free capacity and holders, "
        "as it follows from the claims of a cluster, or of files.",
    )
    add = parser.add_argument
    add(
        "-f",
        "--filename",
        action="extend",
        nargs="+",
        metavar="FILE",
        default=[],
        help="read files instead (- is standard input)",
    )
    from sharing_affinity.cli._output import add_output

    add_output(parser)
    add(
        "-w",
        "--watch",
        action="store_true",
        help="show again whenever it changes; with json one line each time, with yaml one document",
    )
    add("-n", "--namespace", help="where to look for claims when not all may be listed")
    add("--pool", metavar="[DRIVER/]POOL", help="only this pool")
    add("--kubeconfig", help="kubeconfig file")
    add("--context", help="context of the kubeconfig")
    add("--rule-fences", action="store_true", help="a DeviceTaintRule with our key counts as the fence")


def run(args: argparse.Namespace) -> int:
    """0: shown; 2: files that cannot be understood; 3: no access to the cluster."""
    if args.filename:
        return _from_files(args)
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError

    try:
        asyncio.run(_from_cluster(args))
    except (AccessError, ApiError, NoAnswerError) as error:
        print(f"sharing-affinity locks: {error}", file=sys.stderr)
        return NO_ACCESS
    except KeyboardInterrupt:
        pass
    return GOOD


def _from_files(args: argparse.Namespace) -> int:
    from sharing_affinity.cli import _offline
    from sharing_affinity.cli._files import InputError
    from sharing_affinity.engine import Options

    try:
        simulation = _offline.load(args.filename, Options(rule_fences=args.rule_fences))
    except InputError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_INPUT
    simulation.engine.settle()
    show(simulation.engine.lock_table(), [], args)
    return GOOD


async def _from_cluster(args: argparse.Namespace) -> None:
    from sharing_affinity.cli import _access
    from sharing_affinity.engine import Applied, Engine, Options
    from sharing_affinity.runtime import kinds, logs, snapshot
    from sharing_affinity.runtime.client import Client, Login

    logs.configure("text", "error")
    engine = Engine(Options(rule_fences=args.rule_fences))
    login = Login(args.kubeconfig, args.context)
    async with Client(login) as client:
        sight = await snapshot.look(client, snapshot.LOCK_KINDS, args.namespace or await login.namespace())
        _access.require(sight, (kinds.SLICES, kinds.METADATA, kinds.CLAIMS), "locks")
        unseen = _access.as_json(sight)
        for raw in sight.objects:
            engine.observe(Applied(raw), time.time())
        snapshot.settle(engine)
        last = engine.lock_table()
        show(last, unseen, args)
        _access.warn(unseen)
        if args.watch:
            async for _ in snapshot.follow(client, engine, sight.kinds, time.time()):
                table = engine.lock_table()
                if table != last:
                    last = table
                    show(table, unseen, args)


def show(table: Iterable[Any], unseen: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    """Print the table in the form asked for."""
    from sharing_affinity.cli import _output

    pools = [as_json(locks) for locks in table if _wanted(locks, args.pool)]
    if args.output != "table":
        content = {"pools": pools, "unseen": unseen}
        if args.watch and args.output == "yaml":
            print("---")
        sys.stdout.write(_output.as_text(content, args.output, one_line=args.watch))
        sys.stdout.flush()
        return
    if args.watch:
        print(time.strftime("%H:%M:%S"))
    columns = ("POOL", "DEVICE", "STATE", "LOCK", "FREE", "HOLDERS", "CLAIMS")
    rows = [row for pool in pools for row in _rows(pool)]
    if rows:
        _output.table("", columns, rows)
    else:
        print("there are no affinity pools")
    for pool in pools:
        if not pool["usable"]:
            print(f"{pool['driver']}/{pool['pool']}: not allocated from: {pool['reason']}: {pool['message']}")
    sys.stdout.flush()


def _wanted(locks: Any, pool: str | None) -> bool:
    if pool is None:
        return True
    driver, slash, name = pool.partition("/")
    return locks.pool == pool or (bool(slash) and (locks.driver, locks.pool) == (driver, name))


def as_json(locks: Any) -> dict[str, Any]:
    """One pool of the lock table, as programs read it."""
    return {
        "driver": locks.driver,
        "pool": locks.pool,
        "generation": locks.generation,
        "node": locks.node or None,
        "usable": locks.status,
        "reason": locks.reason,
        "message": locks.message,
        "keys": [name for name, _ in locks.extractors],
        "devices": [
            {
                "device": device.device,
                "state": device.state.value,
                "lock": dict(device.keys) if device.state.value == "Locked" else None,
                "reason": device.reason,
                "capacity": {
                    name: {"consumed": used, "total": total} for name, used, total in device.capacity
                },
                "holders": [
                    {
                        "namespace": holder.namespace,
                        "claim": holder.name,
                        "uid": holder.uid,
                        "request": holder.request,
                        "shareID": holder.share_id or None,
                        "keys": None if holder.keys is None else dict(holder.keys),
                        "consumed": dict(holder.consumed),
                    }
                    for holder in device.holders
                ],
            }
            for device in locks.devices
        ],
    }


def _rows(pool: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    from sharing_affinity.api import keys, quantity

    for device in pool["devices"]:
        free = []
        for name, amount in device["capacity"].items():
            left = quantity.parse(amount["total"]) - quantity.parse(amount["consumed"])
            free.append(f"{name.rpartition('/')[2]} {left}/{amount['total']}")
        claims = [f"{holder['namespace']}/{holder['claim']}" for holder in device["holders"]]
        shown = ", ".join(claims[:4]) + (f", and {len(claims) - 4} more" if len(claims) > 4 else "")
        lock = " ".join(f"{key}={keys.shorten(value)}" for key, value in (device["lock"] or {}).items())
        yield (
            pool["pool"],
            device["device"],
            device["state"],
            lock or device["reason"],
            ", ".join(free),
            str(len(claims)),
            shown,
        )
