"""``sharing-affinity cleanup``: what the operator left in a cluster after it was uninstalled."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sharing_affinity.cli import FINDINGS, GOOD, NO_ACCESS

if TYPE_CHECKING:
    from sharing_affinity.runtime.leftovers import Leftover


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "cleanup",
        help="take back what an uninstalled operator wrote",
        description="List what the operator wrote into the cluster, and with --yes take it back: records on "
        "claims, allocations no pod uses, conditions, pool views, fences by DeviceTaintRule, the Lease. "
        "Allocations in use stay. It refuses while an operator runs. Exit code 1 when something is left.",
    )
    add = parser.add_argument
    add("--yes", action="store_true", help="do it; without this nothing is changed")
    add("-n", "--namespace", default="sharing-affinity-system", help="of the Lease [%(default)s]")
    add("--kubeconfig", help="kubeconfig file")
    add("--context", help="context of the kubeconfig")
    from sharing_affinity.cli._output import add_output

    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """0: nothing is left; 1: something is, or an operator runs; 3: no access to the cluster."""
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError
    from sharing_affinity.runtime.leftovers import OperatorRunsError

    try:
        return asyncio.run(_run(args))
    except OperatorRunsError as error:
        print(f"sharing-affinity cleanup: an operator runs: {error}; uninstall it first", file=sys.stderr)
        return FINDINGS
    except (AccessError, ApiError, NoAnswerError) as error:
        print(f"sharing-affinity cleanup: {error}", file=sys.stderr)
        return NO_ACCESS


async def _run(args: argparse.Namespace) -> int:
    from sharing_affinity.runtime import leftovers, logs
    from sharing_affinity.runtime.client import Client, Login

    logs.configure("text", "error")
    async with Client(Login(args.kubeconfig, args.context)) as client:
        if args.yes:
            await leftovers.ensure_stopped(client, args.namespace)
        found = await leftovers.find(client, args.namespace)
        fenced = await leftovers.fenced_devices(client)
        remover = leftovers.Remover(client)
        problems = [await remover.remove(one) if args.yes else "" for one in found]
    _show(args, found, problems, fenced)
    return FINDINGS if any(problems) or (found and not args.yes) else GOOD


def _show(
    args: argparse.Namespace, found: Sequence[Leftover], problems: Sequence[str], fenced: Mapping[str, int]
) -> None:
    from sharing_affinity.cli import _output

    listed = [
        {
            "kind": one.kind,
            "namespace": one.namespace or None,
            "name": one.name,
            "action": one.action.value,
            "done": args.yes and not problem,
            "problem": problem,
        }
        for one, problem in zip(found, problems, strict=True)
    ]
    if args.output != "table":
        content: Any = {"leftovers": listed, "fencedDevices": fenced}
        sys.stdout.write(_output.as_text(content, args.output))
        return
    rows = [
        (
            str(entry["kind"]),
            "/".join(filter(None, (one.namespace, one.name))),
            f"failed: {entry['problem']}" if entry["problem"] else f"{'done: ' * args.yes}{one.action.value}",
        )
        for one, entry in zip(found, listed, strict=True)
    ]
    if rows:
        _output.table("", ("KIND", "NAME", "ACTION"), rows)
    else:
        print("nothing is left of the operator")
    for driver, count in sorted(fenced.items()):
        print(
            f"{count} devices of {driver} are still fenced: only their driver can open them, by republishing"
        )
    if any("ValidatingAdmissionPolicy" in problem for problem in problems):
        print("a policy guards the records: kubectl delete -k manifests/policies, and run this again")
    if rows and not args.yes:
        print("nothing was changed: add --yes to do this")
