"""``sharing-affinity explain pod NAME``: why a pod is pending, node by node and device by device."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sharing_affinity.cli import BAD_INPUT, FINDINGS, GOOD, NO_ACCESS
from sharing_affinity.cli.simulate import add_file_arguments, options_of


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="why a pod is pending, device by device",
        description="Say where the pod's claims would go, or for every node the one reason against it, and "
        "for every device of the node likewise. Exit code 0 when the pod is or would be placed, 1 when not.",
    )
    parser.add_argument("what", choices=("pod",), help="kind of object")
    parser.add_argument("name", help="name of the pod, or NAMESPACE/NAME")
    parser.add_argument("-n", "--namespace", default="default", help="namespace (default: %(default)s)")
    add_file_arguments(parser, required=False)
    parser.add_argument("--kubeconfig", help="kubeconfig file of the cluster to ask when no file is given")
    parser.add_argument("--context", help="context of the kubeconfig")
    from sharing_affinity.cli._output import add_output

    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from sharing_affinity.cli import _offline, _output
    from sharing_affinity.cli._files import InputError
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError

    try:
        if args.filename:
            simulation = _offline.load(args.filename, options_of(args))
        else:
            simulation = _offline.build(_from_cluster(args), options_of(args))
    except InputError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_INPUT
    except (AccessError, ApiError, NoAnswerError) as error:
        print(f"sharing-affinity explain: {error}", file=sys.stderr)
        return NO_ACCESS
    namespace, _, name = args.name.rpartition("/")
    key = (namespace or args.namespace, name)
    content = explanation(simulation, key)
    if content is None:
        print(f"there is no pod {key[0]}/{key[1]}", file=sys.stderr)
        return BAD_INPUT
    if args.output == "table":
        _show(content)
    else:
        sys.stdout.write(_output.as_text(content, args.output))
    return GOOD if content["node"] is not None else FINDINGS


def _from_cluster(args: argparse.Namespace) -> list[Any]:
    """Everything the operator looks at, listed with the caller's own rights."""
    import asyncio

    from sharing_affinity.cli._files import Document
    from sharing_affinity.runtime import logs, snapshot
    from sharing_affinity.runtime.client import Client, Login
    from sharing_affinity.runtime.kinds import FEEDS

    async def listed() -> list[dict[str, Any]]:
        async with Client(Login(args.kubeconfig, args.context)) as client:
            return await snapshot.read(client, FEEDS)

    logs.configure("text", "error")
    return [Document(raw, "cluster", 0, "", "") for raw in asyncio.run(listed())]


def explanation(simulation: Any, key: tuple[str, str]) -> dict[str, Any] | None:
    """The decision on one pod from the given state alone, as data; ``None`` when there is no such pod.

    ``devices`` are those it would get; ``nodes`` the reasons against every node looked at, ``rest`` how many
    more there are for which reason.
    """
    from sharing_affinity.cli import _offline
    from sharing_affinity.engine import Placed, Unplaced

    pod = simulation.every_pod.get(key)
    if pod is None:
        return None
    content: dict[str, Any] = {
        "namespace": key[0],
        "name": key[1],
        "node": simulation.settled_on(pod),
        "reason": "AlreadyAllocated",
        "message": "",
        "devices": [],
        "nodes": [],
        "rest": [],
    }
    if content["node"] is not None:
        return content
    decision = _offline.decide(simulation.engine, key)
    if isinstance(decision, Placed):
        content.update(node=decision.node, reason="Allocatable")
        content["devices"] = [
            {name: result[name] for name in ("request", "driver", "pool", "device")}
            for write in decision.writes
            for result in write.allocation["devices"]["results"]
        ]
        return content
    if isinstance(decision, Unplaced):
        decision = simulation.engine.explain(key, _offline.EPOCH)
    content.update(reason=decision.reason.value, message=decision.message or simulation.notes.get(key, ""))
    if isinstance(decision, Unplaced):
        content["rest"] = [{"reason": reason, "nodes": count} for reason, count in decision.diagnosis.rest]
        content["nodes"] = [
            {
                "node": node.node,
                "reason": node.reason,
                "devices": [
                    {"driver": d.driver, "pool": d.pool, "device": d.device, "reason": d.reason}
                    for d in node.devices
                ],
            }
            for node in decision.diagnosis.nodes
        ]
    return content


def _show(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    # A pipe has no width; nothing is broken that somebody may want to find.
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    title = f"pod {content['namespace']}/{content['name']}: "
    if content["node"] is not None:
        title += f"{content['reason']} on {content['node']}"
    else:
        title += f"{content['reason']}: {content['message']}" if content["message"] else content["reason"]
    tree = Tree(Text(title))
    for device in content["devices"]:
        tree.add(Text(f"request {device['request']}: {device['pool']}/{device['device']}"))
    for node in content["nodes"]:
        branch = tree.add(Text(f"node {node['node']}: {node['reason']}"))
        for device in node["devices"]:
            branch.add(Text(f"{device['pool']}/{device['device']}: {device['reason']}"))
    for entry in content["rest"]:
        tree.add(Text(f"{entry['nodes']} more: {entry['reason']}"))
    console.print(tree)
