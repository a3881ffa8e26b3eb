"""The ``affinity-driver`` command: ``run`` serves, ``status`` shows, ``probe`` asks whether a driver is
alive, ``doctor`` what is wrong, ``metadata-sidecar`` publishes extractors for other drivers, ``extractors``
changes what is published.

Exit codes: 0 good, 1 not alive (``probe``), something wrong (``doctor``) or findings (``extractors``), 2 bad
input, 3 no access to the API server or the node's folders.
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

from . import probes, status
from .doctor import command as doctor
from .driver import Driver, DriverOptions, instance_name
from .hardware import MockDevices, boot_id
from .kube import CredentialsError, KubeClient, from_kubeconfig, in_cluster
from .kubeletplugin.sockets import SocketPathError
from .logs import configure
from .mirror import command as mirror
from .profiles import PROFILES, ProfileError, ProfileOptions, find
from .publish.controller import PublisherOptions
from .publish.desired import Fence
from .rollout import command as rollout

GOOD, NOT_ALIVE, BAD_INPUT, NO_ACCESS = 0, 1, 2, 3


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="affinity-driver",
        description="A DRA driver for mock hardware that is shared by affinity.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="publish devices and serve the kubelet", description=_run.__doc__)
    _add_place(run)
    run.add_argument(
        "--node-name", default=os.environ.get("NODE_NAME"), help="this node; default: $NODE_NAME"
    )
    run.add_argument("--kubeconfig", type=Path, help="default: the pod's ServiceAccount")
    run.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="default: %(default)s")
    run.add_argument("--devices", type=_positive, default=2, help="number of devices; default: %(default)s")
    run.add_argument("--slots", type=_positive, help="shares of a device; default: the profile's")
    run.add_argument("--pkey", action="store_true", help="nic: claims must agree on an InfiniBand pkey too")
    run.add_argument("--program-seconds", type=float, help="how long programming a device takes")
    run.add_argument(
        "--fence", choices=[fence.value for fence in Fence], default=Fence.TAINT.value,
        help="what keeps stock kube-scheduler off the devices; default: %(default)s",
    )  # fmt: skip
    run.add_argument("--no-affinity", action="store_true", help="publish neither fence nor metadata")
    run.add_argument("--fence-settle", type=float, default=30.0, metavar="SECONDS",
                     help="wait from fencing open devices to metadata; default: %(default)s")  # fmt: skip
    run.add_argument("--no-publish", action="store_true", help="serve the kubelet, publish nothing")
    run.add_argument(
        "--publish-unregistered", action="store_true", help="publish before any kubelet has registered us"
    )
    run.add_argument(
        "--metrics-port", type=int, default=0, help="serve /metrics, /healthz and /readyz there; 0: do not"
    )
    run.add_argument("--metrics-address", default="127.0.0.1", help="default: %(default)s")
    run.add_argument("--log-format", choices=["auto", "json", "console"], default="auto")
    run.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    run.set_defaults(function=_run)
    show = commands.add_parser("status", help="what is prepared on this node, with the holders' names")
    _add_place(show)
    show.add_argument("-o", "--output", choices=["table", "json"], default="table")
    show.set_defaults(function=_status)
    probe = commands.add_parser("probe", help="call the driver through its own sockets")
    _add_place(probe)
    probe.add_argument("--timeout", type=float, default=5.0, help="seconds; default: %(default)s")
    probe.add_argument("--registered", action="store_true", help="the kubelet must have accepted it")
    probe.set_defaults(function=_probe)
    examine = commands.add_parser(
        "doctor",
        help="what keeps the driver from working here, and the way out",
        description=doctor.run.__doc__,
    )
    _add_place(examine)
    doctor.add_arguments(examine)
    mirror.add_parser(commands)
    rollout.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = parser().parse_args(argv)
    code: int = GOOD
    try:
        code = arguments.function(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has gone: not an error of ours, and what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--profile", type=_profile, default="nic",
        help=f"{', '.join(sorted(PROFILES))}, a Python file, or a module with one; default: %(default)s",
    )  # fmt: skip
    command.add_argument("--driver-name", help="default: the profile's")
    command.add_argument(
        "--kubelet-root-dir", type=Path, default=Path("/var/lib/kubelet"), help="default: %(default)s"
    )


def _profile(text: str) -> str:
    try:
        find(text)
    except ProfileError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _run(arguments: argparse.Namespace) -> int:
    """Publish this node's devices and serve the kubelet until SIGTERM."""
    configure(arguments.log_format, arguments.log_level)
    log = structlog.get_logger("affinity_driver")
    if not arguments.node_name:
        print("affinity-driver: --node-name or $NODE_NAME is needed", file=sys.stderr)
        return BAD_INPUT
    options = DriverOptions(
        profile=arguments.profile,
        node=arguments.node_name,
        kubelet_root=arguments.kubelet_root_dir.absolute(),
        cdi=arguments.cdi_dir.absolute(),
        driver=arguments.driver_name,
        instance=instance_name(),
        fence=Fence(arguments.fence),
        affinity=not arguments.no_affinity,
        publish=not arguments.no_publish,
        wait_for_kubelet=not arguments.publish_unregistered,
        profile_options=ProfileOptions(
            devices=arguments.devices,
            slots=arguments.slots,
            pkey=arguments.pkey,
            program_seconds=arguments.program_seconds,
        ),
        publisher=PublisherOptions(settle=arguments.fence_settle),
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        credentials = from_kubeconfig(arguments.kubeconfig) if arguments.kubeconfig else in_cluster()
        driver = Driver(options, KubeClient(credentials))
        # Before the driver: one that has started has sockets that the kubelet calls.
        stop_metrics = _serve_metrics(arguments, driver)
        driver.start()
    except CredentialsError as error:
        print(f"affinity-driver: {error}", file=sys.stderr)
        return NO_ACCESS
    except SocketPathError as error:
        print(f"affinity-driver: {error}", file=sys.stderr)
        return BAD_INPUT
    except (OSError, RuntimeError) as error:
        print(f"affinity-driver: cannot start: {error}", file=sys.stderr)
        return NO_ACCESS
    stopping.wait()
    log.info("stopping")
    driver.stop()
    stop_metrics()
    log.info("stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still wait for slow hardware are left behind: the checkpoint is good at every moment.
    os._exit(GOOD)


def _serve_metrics(arguments: argparse.Namespace, driver: Driver) -> Callable[[], None]:
    """Serve metrics and probes where they are asked for, until the returned function is called. Raises
    OSError.
    """
    if not arguments.metrics_port:
        return lambda: None
    checks = {"/healthz": driver.unhealthy, "/readyz": driver.unready}
    return probes.serve(arguments.metrics_address, arguments.metrics_port, driver.metrics.registry, checks)


def _status(arguments: argparse.Namespace) -> int:
    kind = find(arguments.profile)
    directory = arguments.kubelet_root_dir / "plugins" / (arguments.driver_name or kind.driver)
    hardware = MockDevices(directory / "hardware", boot_id(), survives_reboot=kind.survives_reboot)
    return status.show(directory, arguments.output, hardware)


def _probe(arguments: argparse.Namespace) -> int:
    name = arguments.driver_name or find(arguments.profile).driver
    directory = arguments.kubelet_root_dir / "plugins" / name
    return status.probe(directory, arguments.timeout, os.environ.get("POD_UID"), arguments.registered)
