"""``affinity-driver metadata-sidecar``: metadata and fence for a driver that publishes neither.

Runs beside the driver on each node, or once for all nodes. The driver needs no change; the operator needs
--rule-fences, since the fence is a DeviceTaintRule (Kubernetes 1.37, or 1.36 with the feature gate
DRADeviceTaintRules).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from affinity_driver import extractors_file
from affinity_driver.events import DriverEvents
from affinity_driver.kube import ApiError, CredentialsError, KubeClient, from_kubeconfig, in_cluster
from affinity_driver.logs import configure
from sharing_affinity.api import Extractor

from .fence import RULES
from .sidecar import Sidecar, SidecarOptions

GOOD, BAD_INPUT, NO_ACCESS = 0, 2, 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "metadata-sidecar", help="metadata for a driver that publishes none", description=__doc__
    )
    command.add_argument("--driver", required=True, help="name of the driver whose devices are shared")
    command.add_argument("--extractors", type=Path, metavar="FILE", help="YAML: sharingAffinity, a list of "
                         "name and expression; read again when it changes")  # fmt: skip
    command.add_argument("--node-name", default=os.environ.get("NODE_NAME"), help="default: $NODE_NAME")
    command.add_argument(
        "--all-nodes", action="store_true", help="slices of all nodes and of network-attached devices"
    )
    command.add_argument("--kubeconfig", type=Path, help="default: the pod's ServiceAccount")
    command.add_argument("--fence-settle", type=float, default=30.0, metavar="SECONDS",
                         help="wait from fence to metadata; default: %(default)s")  # fmt: skip
    command.add_argument("--withdraw", action="store_true",
                         help="delete metadata and fence on all nodes, and end")  # fmt: skip
    command.add_argument("--log-format", choices=["auto", "json", "console"], default="auto")
    command.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    command.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Mirror until SIGTERM."""
    if problem := _contradiction(arguments):
        print(f"affinity-driver: {problem}", file=sys.stderr)
        return BAD_INPUT
    everywhere = arguments.all_nodes or arguments.withdraw
    options = SidecarOptions(
        arguments.driver, None if everywhere else arguments.node_name, arguments.fence_settle
    )
    try:
        api = KubeClient(
            from_kubeconfig(arguments.kubeconfig) if arguments.kubeconfig else in_cluster(),
            user_agent="affinity-driver-metadata-sidecar",
        )
        api.list(RULES, {"limit": "1"})
    except CredentialsError as error:
        print(f"affinity-driver: {error}", file=sys.stderr)
        return NO_ACCESS
    except ApiError as error:
        hint = "; DeviceTaintRules need Kubernetes 1.37" if error.code == 404 else ""
        print(f"affinity-driver: cannot read DeviceTaintRules: {error}{hint}", file=sys.stderr)
        return NO_ACCESS
    configure(arguments.log_format, arguments.log_level)
    events = DriverEvents(api, arguments.node_name or "", f"metadata-sidecar.{arguments.driver}")

    def warn(reason: str, message: str) -> None:
        structlog.get_logger("affinity_driver.mirror").error("needs a person", reason=reason, problem=message)
        if arguments.node_name:  # else there is nothing to write an Event about
            events.warn(reason, message)

    if arguments.withdraw:
        return _withdraw(Sidecar(api, options, tuple, warn))
    try:
        source = Source(arguments.extractors, warn)
    except extractors_file.FileError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    sidecar = Sidecar(api, options, source.extractors, warn)
    sidecar.loop.start()
    stopping.wait()
    # What is written stays: without it the devices would be withheld from everybody.
    sidecar.loop.stop()
    sidecar.loop.join(10.0)
    return GOOD


class Source:
    """The extractors in a file, read again when its content changes; a bad change is told and not taken."""

    def __init__(self, path: Path, warn: Callable[[str, str], None]) -> None:
        self._path = path
        self._warn = warn
        self._text = extractors_file.load(path)
        self._good = extractors_file.parse(self._text, str(path))

    def extractors(self) -> Sequence[Extractor]:
        """What the file says now, or said last when it was good."""
        try:
            text = extractors_file.load(self._path)
            if text != self._text:
                self._text = text
                self._good = extractors_file.parse(text, str(self._path))
        except extractors_file.FileError as error:
            self._warn("BadExtractors", f"kept the extractors from before: {error}")
        return self._good


def _contradiction(arguments: argparse.Namespace) -> str:
    if arguments.withdraw:
        return ""
    if arguments.extractors is None:
        return "--extractors FILE is needed"
    if not arguments.node_name and not arguments.all_nodes:
        return "--node-name, $NODE_NAME or --all-nodes is needed"
    return ""


def _withdraw(sidecar: Sidecar) -> int:
    try:
        sidecar.withdraw()
    except ApiError as error:
        print(f"affinity-driver: {error}", file=sys.stderr)
        return NO_ACCESS
    return GOOD
