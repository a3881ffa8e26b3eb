"""``sharing-affinity explain pod NAME``: why a pod is pending, node by node and device by device."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sharing_affinity.cli import BAD_INPUT, FINDINGS, GOOD
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
    add_file_arguments(parser)
    from sharing_affinity.cli._output import add_output

    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from sharing_affinity.cli import _offline, _output
    from sharing_affinity.cli._files import InputError

    try:
        simulation = _offline.load(args.filename, options_of(args))
    except InputError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_INPUT
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


def explanation(simulation: Any, key: tuple[str, str]) -> dict[str, Any] | None:
    """The decision on one pod from the given state alone, as data."""
    from sharing_affinity.cli import _offline
    from sharing_affinity.engine import Placed, Unplaced

    pod = simulation.every_pod.get(key)
    if pod is None:
        return None
    head = {"namespace": key[0], "name": key[1]}
    where = simulation.settled_on(pod)
    if where is not None:
        return {
            **head,
            "node": where,
            "reason": "AlreadyAllocated",
            "message": "",
            "devices": [],
            "nodes": [],
        }
    decision = _offline.decide(simulation.engine, key)
    if isinstance(decision, Placed):
        devices = [
            {k: r[k] for k in ("request", "driver", "pool", "device")}
            for write in decision.writes
            for r in write.allocation["devices"]["results"]
        ]
        return {
            **head,
            "node": decision.node,
            "reason": "Allocatable",
            "message": "",
            "devices": devices,
            "nodes": [],
        }
    nodes = []
    if isinstance(decision, Unplaced):
        nodes = [
            {
                "node": n.node,
                "reason": n.reason,
                "devices": [
                    {"driver": d.driver, "pool": d.pool, "device": d.device, "reason": d.reason}
                    for d in n.devices
                ],
            }
            for n in sorted(decision.diagnosis.nodes, key=lambda n: n.node)
        ]
    message = decision.message or simulation.notes.get(key, "")
    return {
        **head,
        "node": None,
        "reason": decision.reason.value,
        "message": message,
        "devices": [],
        "nodes": nodes,
    }


def _show(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
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
    console.print(tree)
