"""``affinity-driver extractors``: add, change and retire extractors on pools in use.

``plan`` runs the published and the wanted extractors over all allocated claims and says, device by device,
what would change. ``apply`` rolls the change out where it breaks nobody, idle pools first, and refuses it
where a device would become Unreconstructable, naming the claims. ``hold`` keeps what is published while
publishers are replaced by a version with other extractors. ``status`` shows which pools carry what.

Run by an administrator: it lists claims of all namespaces, and names them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from affinity_driver import extractors_file
from affinity_driver.kube import Api, ApiError, CredentialsError, KubeClient, from_kubeconfig, in_cluster
from affinity_driver.publish.override import Override, same_extractors
from sharing_affinity.api import Extractor
from sharing_affinity.extraction import CelEvaluator

from . import words
from .cluster import Cluster, PoolNow, read, roll_out
from .judge import PoolChange, State, Waiting, judge, left_out

GOOD, REFUSED, BAD_INPUT, NO_ACCESS = 0, 1, 2, 3
PAUSE, PATIENCE = 0.5, 10.0
"""Seconds between two looks, and for which a pool that keeps changing is judged again: the operator's status
is enough to change it."""


class UsageError(Exception):
    """What was asked for cannot be; exit code 2."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommands."""
    top = commands.add_parser(
        "extractors", help="add, change and retire extractors on pools in use", description=__doc__
    )
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = actions.add_parser("plan", help="what a change would do, device by device")
    apply = actions.add_parser("apply", help="roll a change out where it breaks nobody")
    hold = actions.add_parser("hold", help="keep what is published while publishers are replaced")
    status = actions.add_parser("status", help="which pools carry what")
    for action in (plan, apply, hold, status):
        action.add_argument("--driver", required=True, help="name of the driver")
        action.add_argument(
            "--pool", action="append", metavar="NAME", help="only this pool; may be given again"
        )
        action.add_argument("--kubeconfig", type=Path, help="default: the pod's ServiceAccount")
    for action in (plan, apply):
        change = action.add_mutually_exclusive_group(required=True)
        change.add_argument(
            "-f", "--extractors", type=Path, metavar="FILE", help="all extractors of the pools from now on"
        )
        change.add_argument("--retire", action="append", metavar="KEY", help="all but this key")
    for action in (plan, status):
        action.add_argument("-o", "--output", choices=["table", "json"], default="table")
    apply.add_argument("--idle-only", action="store_true", help="only pools that nobody uses: the first step")
    apply.add_argument("--force", action="store_true", help="also where devices become Unreconstructable")
    apply.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS",
        help="until all pools are published so, and those held back have been drained",
    )  # fmt: skip
    for action, function in ((plan, _plan), (apply, _apply), (hold, _hold), (status, _status)):
        action.set_defaults(function=_guarded(function))


def _guarded(function: Callable[[Api, argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """``function`` with an API client, and its errors as exit codes."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            credentials = from_kubeconfig(arguments.kubeconfig) if arguments.kubeconfig else in_cluster()
            return function(KubeClient(credentials, user_agent="affinity-driver-extractors"), arguments)
        except (extractors_file.FileError, UsageError) as error:
            print(error, file=sys.stderr)
            return BAD_INPUT
        except (ApiError, CredentialsError) as error:
            print(f"affinity-driver: {error}", file=sys.stderr)
            return NO_ACCESS

    return run


def _plan(api: Api, arguments: argparse.Namespace) -> int:
    now = _read(api, arguments)
    changes, waiting = _judged(now, arguments, _wanted(arguments))
    if arguments.output == "json":
        pools = [words.as_json(change) for change in changes]
        claims = [
            {"namespace": w.namespace, "claim": w.claim, "request": w.request, "problem": w.problem}
            for w in waiting
        ]
        print(json.dumps({"pools": pools, "leftOut": claims}, indent=2, ensure_ascii=False))
    else:
        words.show(changes, waiting)
    return REFUSED if any(change.breaks for change in changes) else GOOD


def _apply(api: Api, arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments)
    started = time.monotonic()
    told: set[str] = set()
    while True:
        now = _read(api, arguments)
        changes, _ = _judged(now, arguments, wanted)
        held, pending, changed = _roll_out_where_harmless(api, now, changes, arguments)
        for change in held:
            if change.pool not in told:
                told.add(change.pool)
                words.explain(change, now.pools[change.pool])
        if not held and not pending:
            print(f"{len(changes)} pool(s) carry the extractors")
            return GOOD
        patience = max(arguments.wait, PATIENCE if changed else 0.0)
        if time.monotonic() - started >= patience:
            if changed:
                print(f"not rolled out: {', '.join(changed)}; something keeps changing them")
            elif pending and arguments.wait:
                print(f"not published yet: {', '.join(pending)}; is their publisher running, and new enough?")
            return REFUSED if held or changed or (pending and arguments.wait) else GOOD
        time.sleep(PAUSE)


def _roll_out_where_harmless(
    api: Api, now: Cluster, changes: Sequence[PoolChange], arguments: argparse.Namespace
) -> tuple[list[PoolChange], list[str], list[str]]:
    """Tell publishers what they may change. Held back are changes that break somebody (or were not asked for
    in use), pending the pools that are not published so yet, and of these some changed since they were read.
    """
    held: list[PoolChange] = []
    pending: list[str] = []
    changed: list[str] = []
    for change in changes:
        pool = now.pools[change.pool]
        done = _rolled_out(pool, change.after)
        in_the_way = (change.breaks and not arguments.force) or (arguments.idle_only and not change.idle)
        if done and change.same:
            continue
        if not pool.metadata or (in_the_way and not done):
            held.append(change)
            continue
        pending.append(change.pool)
        if not done and roll_out(api, pool, Override(change.after)):
            print(f"pool {change.pool}: rolled out, {words.difference(change)}")
        elif not done:
            changed.append(change.pool)
    return held, pending, changed


def _hold(api: Api, arguments: argparse.Namespace) -> int:
    code = GOOD
    for name, pool in _read(api, arguments).pools.items():
        if not pool.metadata:
            print(f"pool {name}: has no extractors to hold")
        elif roll_out(api, pool, Override(pool.extractors, hold=True)):
            print(f"pool {name}: holds {words.names(pool.extractors)}")
        else:
            print(f"pool {name}: has just changed; run this again", file=sys.stderr)
            code = REFUSED
    return code


def _status(api: Api, arguments: argparse.Namespace) -> int:
    now = _read(api, arguments)
    published = {name: pool.extractors for name, pool in now.pools.items()}
    changes = _changes(now, arguments.driver, published, published)
    if arguments.output == "json":
        content = [
            {**words.as_json(change), "rolledOut": _origin(now.pools[change.pool])} for change in changes
        ]
        print(json.dumps({"pools": content}, indent=2, ensure_ascii=False))
        return GOOD
    rows = [("POOL", "KEYS", "ROLLED OUT", "DEVICES")]
    for change in changes:
        states = [device.before.state for device in change.devices]
        counted = ", ".join(f"{states.count(state)} {state}" for state in State if state in states)
        origin = _origin(now.pools[change.pool])
        rows.append((change.pool, words.names(change.before), origin or "-", counted or "none"))
    words.table(rows)
    return GOOD


def _read(api: Api, arguments: argparse.Namespace) -> Cluster:
    now = read(api, arguments.driver)
    for problem in now.unread:
        print(f"not looked at: {problem}", file=sys.stderr)
    chosen = arguments.pool or list(now.pools)
    missing = sorted(set(chosen) - now.pools.keys())
    if missing or not chosen:
        what = f"no pool {', '.join(missing)}" if missing else "no pool"
        raise UsageError(f"driver {arguments.driver} publishes {what}")
    return Cluster({name: now.pools[name] for name in sorted(chosen)}, now.claims, now.unread)


Wanted = Callable[[str, Sequence[Extractor]], tuple[Extractor, ...]]


def _wanted(arguments: argparse.Namespace) -> Wanted:
    """From a pool's extractors to those it is to have."""
    if arguments.extractors is not None:
        whole = extractors_file.read(arguments.extractors)
        return lambda pool, published: whole
    retired = set(arguments.retire)

    def rest(pool: str, published: Sequence[Extractor]) -> tuple[Extractor, ...]:
        left = tuple(extractor for extractor in published if extractor.name not in retired)
        if published and not left:
            raise UsageError(
                f"pool {pool}: no key would be left; publish it without sharing affinity instead "
                "(--no-affinity, or metadata-sidecar --withdraw)"
            )
        return left

    return rest


def _judged(
    now: Cluster, arguments: argparse.Namespace, wanted: Wanted
) -> tuple[tuple[PoolChange, ...], tuple[Waiting, ...]]:
    before = {name: pool.extractors for name, pool in now.pools.items()}
    there = {extractor.name for published in before.values() for extractor in published}
    if arguments.retire and not there & set(arguments.retire):
        print(f"no pool has a key {' or '.join(arguments.retire)} (any more)", file=sys.stderr)
    after = {name: wanted(name, published) for name, published in before.items()}
    evaluator = CelEvaluator()
    waiting: set[Waiting] = set()
    for old, new in {(before[name], after[name]) for name in now.pools if before[name]}:
        waiting.update(left_out(arguments.driver, old, new, now.claims, evaluator))
    order = sorted(waiting, key=lambda w: (w.namespace, w.claim, w.request))
    return _changes(now, arguments.driver, before, after, evaluator), tuple(order)


def _changes(
    now: Cluster,
    driver: str,
    before: dict[str, tuple[Extractor, ...]],
    after: dict[str, tuple[Extractor, ...]],
    evaluator: CelEvaluator | None = None,
) -> tuple[PoolChange, ...]:
    devices = {name: pool.devices for name, pool in now.pools.items()}
    return judge(driver, devices, before, after, now.claims, evaluator or CelEvaluator())


def _rolled_out(pool: PoolNow, extractors: Sequence[Extractor]) -> bool:
    """Whether the pool needs no further word to its publisher."""
    override = pool.override
    if override is None:
        return same_extractors(pool.extractors, extractors)
    return not override.hold and same_extractors(override.extractors, extractors)


def _origin(pool: PoolNow) -> str:
    override = pool.override
    if override is None:
        return ""
    if override.hold:
        return "held"
    return (
        "published" if same_extractors(override.extractors, pool.extractors) else "waiting for the publisher"
    )
