"""``sharing-affinity simulate``: what the operator would do with the objects of a file."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sharing_affinity.cli import BAD_INPUT, GOOD


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="place all pending pods of a file, offline",
        description="Read objects (kubectl get -o yaml, or written by hand), and do what the operator would "
        "do from that state for all pending pods until nothing changes. Output repeats byte for byte.",
    )
    add_file_arguments(parser)
    from sharing_affinity.cli._output import add_output

    add_output(parser)


def add_file_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        action="extend",
        nargs="+",
        required=required,
        metavar="FILE",
        help="YAML or JSON, several documents allowed, - for standard input; may be given again",
    )
    parser.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="DRASharingAffinity, DRASharingAffinityScoring",
    )
    parser.add_argument(
        "--scheduler-names",
        default="default-scheduler",
        metavar="NAME,...",
        help="schedulers whose pods are served (default: %(default)s)",
    )
    parser.add_argument(
        "--rule-fences",
        action="store_true",
        help="let a DeviceTaintRule with the fence key count as the fence",
    )


def options_of(args: argparse.Namespace) -> Any:
    """The engine's options for an offline run: nothing waits for time to pass."""
    from sharing_affinity.cli._offline import parse_gates
    from sharing_affinity.engine import Options

    return Options(
        scheduler_names=frozenset(filter(None, args.scheduler_names.split(","))),
        rule_fences=args.rule_fences,
        fence_settle=0.0,
        **parse_gates(args.feature_gates),
    )


def run(args: argparse.Namespace) -> int:
    from sharing_affinity.cli import _offline, _output
    from sharing_affinity.cli._files import InputError

    try:
        simulation = _offline.run(_offline.load(args.filename, options_of(args)))
    except InputError as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_INPUT
    content = simulation.as_json()
    if args.output != "table":
        sys.stdout.write(_output.as_text(content, args.output))
        return GOOD
    _output.table(
        "Pods",
        ("POD", "NODE", "REASON", "MESSAGE"),
        (
            (f"{p['namespace']}/{p['name']}", p["node"] or "-", p["reason"], p["message"])
            for p in content["pods"]
        ),
    )
    _output.table(
        "Claims",
        ("CLAIM", "DEVICES"),
        ((f"{c['namespace']}/{c['name']}", _devices(c["allocation"])) for c in content["claims"]),
    )
    _output.table(
        "Devices",
        ("DRIVER", "POOL", "DEVICE", "STATE", "LOCK"),
        ((d["driver"], d["pool"], d["device"], d["state"], _lock(d["lock"])) for d in content["devices"]),
    )
    return GOOD


def _devices(allocation: Any) -> str:
    if not allocation:
        return "-"
    return ", ".join(f"{r['pool']}/{r['device']}" for r in allocation["devices"]["results"])


def _lock(lock: Any) -> str:
    from sharing_affinity.api.keys import key_map, render

    return render(key_map(lock)) if lock else "-"
