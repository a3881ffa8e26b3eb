"""``sharing-affinity explain pod NAME``: why a pod is pending, node by node and device by device.

Against a cluster it asks with the caller's own rights, and says what it could not see and what that means for
the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
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
    parser.add_argument(
        "-n", "--namespace", help="namespace of the pod (default: that of the kubeconfig's context)"
    )
    add_file_arguments(parser, required=False)
    parser.add_argument("--kubeconfig", help="kubeconfig file of the cluster to ask when no file is given")
    parser.add_argument("--context", help="context of the kubeconfig")
    from sharing_affinity.cli._output import add_output

    add_output(parser)


def arrange(argv: Sequence[str]) -> list[str]:
    """``-f FILE... pod NAME``: the files end where the pod begins."""
    words = list(argv)
    if "pod" not in words[:-1]:
        return words
    at = words.index("pod")
    return [*words[at : at + 2], *words[:at], *words[at + 2 :]]


def run(args: argparse.Namespace) -> int:
    from sharing_affinity.cli import _access, _offline, _output
    from sharing_affinity.cli._files import InputError
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError

    namespace, _, name = args.name.rpartition("/")
    unseen: list[dict[str, Any]] = []
    try:
        if args.filename:
            key = (namespace or args.namespace or "default", name)
            simulation = _offline.load(args.filename, options_of(args))
        else:
            key, sight = asyncio.run(_look(args, namespace or args.namespace, name))
            unseen = _access.as_json(sight)
            simulation = _of_cluster(sight.objects, unseen, args)
    except InputError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_INPUT
    except (AccessError, ApiError, NoAnswerError) as error:
        print(f"sharing-affinity explain: {error}", file=sys.stderr)
        return NO_ACCESS
    content = explanation(simulation, key)
    if content is None:
        which = "there is no pod" if args.filename else "there is no unfinished pod"
        print(f"{which} {key[0]}/{key[1]}", file=sys.stderr)
        return BAD_INPUT
    content["unseen"] = unseen
    if args.output == "table":
        _show(content)
    else:
        sys.stdout.write(_output.as_text(content, args.output))
    _access.warn(unseen)
    return GOOD if content["node"] is not None else FINDINGS


async def _look(args: argparse.Namespace, namespace: str | None, name: str) -> tuple[tuple[str, str], Any]:
    """Everything the operator looks at, as far as the caller may list it."""
    from sharing_affinity.cli import _access
    from sharing_affinity.runtime import kinds, logs, snapshot
    from sharing_affinity.runtime.client import Client, Login

    logs.configure("text", "error")
    login = Login(args.kubeconfig, args.context)
    key = (namespace or await login.namespace(), name)
    async with Client(login) as client:
        sight = await snapshot.look(client, kinds.FEEDS, key[0])
    needed = (kinds.SLICES, kinds.METADATA, kinds.CLASSES, kinds.CLAIMS, kinds.PODS)
    _access.require(sight, needed, "explain")
    return key, sight


def _of_cluster(objects: list[dict[str, Any]], unseen: list[dict[str, Any]], args: argparse.Namespace) -> Any:
    """The engine over a cluster's objects; what it does not understand is left out, as the operator does."""
    from sharing_affinity.api import BadObject, parse_pod
    from sharing_affinity.cli import _offline
    from sharing_affinity.engine import Applied, Engine

    engine = Engine(options_of(args))
    pods = {}
    if any(entry["kind"] == "Node" for entry in unseen):
        objects = [*objects, *_offline.nodes_of_slices(objects)]
    for raw in objects:
        problem = engine.observe(Applied(raw), _offline.EPOCH).problem
        if problem is not None:
            print(f"not understood and left out: {problem}", file=sys.stderr)
        elif raw["kind"] == "Pod":
            try:
                pod = parse_pod(raw)
            except BadObject:
                continue
            pods[pod.key] = pod
    return _offline.Simulation(engine, {}, pods, {})


def explanation(simulation: Any, key: tuple[str, str]) -> dict[str, Any] | None:
    """The decision on one pod from the given state alone, as data; ``None`` when there is no such pod.

    ``devices`` are those it would get; ``nodes`` the reasons against every node looked at, ``rest`` how many
    more there are for which reason; ``unseen`` what of a cluster could not be looked at.
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
        "unseen": [],
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
