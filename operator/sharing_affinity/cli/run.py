"""``sharing-affinity run``: the operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from sharing_affinity.cli import BAD_INPUT, FINDINGS, GOOD, NO_ACCESS, CommandError

T = TypeVar("T", int, float)

IN_POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``run``. Defaults are those of `runtime.settings.Settings`."""
    parser = subparsers.add_parser(
        "run",
        help="run the operator",
        description="Run the operator until SIGTERM or SIGINT. Times are in seconds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--kubeconfig",
        help="kubeconfig file; without it $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
    )
    add("--context", help="context of the kubeconfig")
    add(
        "--namespace", default=None, help="namespace of the Lease; in a pod its own [sharing-affinity-system]"
    )
    add(
        "--scheduler-names",
        default="default-scheduler",
        help="serve pods of these schedulers, comma-separated",
    )
    add(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="DRASharingAffinity, DRASharingAffinityScoring",
    )
    add(
        "--rule-fences",
        action="store_true",
        help="a DeviceTaintRule with our key counts as the fence (needs 1.37)",
    )
    add(
        "--pod-conditions",
        type=_truth,
        default=True,
        metavar="true|false",
        help="pods whose claims cannot be allocated get the condition sharingaffinity.dev/ClaimsAllocated",
    )
    add(
        "--http",
        type=address,
        default="0.0.0.0:8080",
        help="host:port of /healthz, /readyz, /metrics; empty for none",
    )
    add("--log-format", choices=("auto", "json", "text"), default="auto", help="auto: text on a terminal")
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least level logged",
    )

    group = parser.add_argument_group("leader election")
    add = group.add_argument
    add(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="hold a Lease while allocating",
    )
    add("--lease-name", default="sharing-affinity-operator", help="name of the Lease")
    add("--identity", default=None, help="holder identity, unique per process [host, pid and a random part]")
    add("--lease-duration", type=float, default=15.0, help="a standby waits this long for a silent leader")
    add(
        "--renew-deadline", type=float, default=10.0, help="a leader that could not renew for this long stops"
    )
    add("--retry-period", type=float, default=2.0, help="between attempts to take or renew the Lease")

    group = parser.add_argument_group("API server")
    add = group.add_argument
    add(
        "--kube-api-qps",
        type=positive(float),
        default=50.0,
        help="requests per second to claims; views have a tenth on top",
    )
    add("--kube-api-burst", type=positive(int), default=100, help="burst of those")
    add("--concurrency", type=positive(int), default=16, help="claims written at the same time")
    add(
        "--write-timeout",
        type=positive(float),
        default=8.0,
        help="longest wait for one write; never beyond the lease",
    )
    add(
        "--watch-silence",
        type=positive(float),
        default=75.0,
        help="a watch without a byte for this long is reconnected",
    )
    add(
        "--stale-after",
        type=positive(float),
        default=100.0,
        help="a feed not heard of for this long stops allocation",
    )
    add(
        "--audit-interval",
        type=float,
        default=600.0,
        help="between comparisons of memory with the API server",
    )
    add("--strict-audit", action="store_true", help=argparse.SUPPRESS)

    group = parser.add_argument_group("decisions")
    add = group.add_argument
    add(
        "--grace",
        type=float,
        default=120.0,
        help="an own allocation may wait unused this long while others want it",
    )
    add(
        "--fence-settle",
        type=float,
        default=10.0,
        help="a fence must have stood this long before its device is used",
    )
    add(
        "--cool-down",
        type=float,
        default=30.0,
        help="a cleared claim may only return to its node for this long",
    )
    add(
        "--exclusion",
        type=float,
        default=60.0,
        help="a node is excluded for a pod this long after the scheduler cleared its claim there; doubles",
    )


def positive(kind: Callable[[str], T]) -> Callable[[str], T]:
    """An argument's type: a number above zero."""

    def number(text: str) -> T:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"more than 0, not {text}")
        return value

    return number


def address(text: str) -> str:
    """An argument's type: ``host:port``, or nothing."""
    port = text.rpartition(":")[2]
    if text and not (port.isdecimal() and int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"host:port, not {text!r}")
    return text


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {text!r}")
    return text.lower() == "true"


def run(args: argparse.Namespace) -> int:
    """Run the operator. 2: bad flags; 3: no access, or a server that cannot carry it; 1: ended by a fault."""
    from sharing_affinity.engine import Options
    from sharing_affinity.runtime import logs
    from sharing_affinity.runtime.lease import Timing
    from sharing_affinity.runtime.settings import Settings, parse_gates

    try:
        gates = parse_gates(args.feature_gates)
        settings = Settings(
            engine=Options(
                sharing_affinity=gates["DRASharingAffinity"],
                scoring=gates["DRASharingAffinityScoring"],
                scheduler_names=frozenset(filter(None, args.scheduler_names.split(","))),
                rule_fences=args.rule_fences,
                fence_settle=args.fence_settle,
                cool_down=args.cool_down,
                exclusion=args.exclusion,
                grace=args.grace,
            ),
            kubeconfig=args.kubeconfig,
            context=args.context,
            namespace=args.namespace or own_namespace(),
            lease_name=args.lease_name,
            identity=args.identity or "",
            leader_elect=args.leader_elect,
            lease=Timing(args.lease_duration, args.renew_deadline, args.retry_period),
            qps=args.kube_api_qps,
            burst=args.kube_api_burst,
            concurrency=args.concurrency,
            write_timeout=args.write_timeout,
            watch_silence=args.watch_silence,
            stale_after=args.stale_after,
            audit_interval=args.audit_interval,
            pod_conditions=args.pod_conditions,
            http=args.http,
            strict_audit=args.strict_audit,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    logs.configure(args.log_format, args.log_level)
    return _serve(settings)


def _serve(settings: Any) -> int:
    from sharing_affinity import kopf_app
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError
    from sharing_affinity.runtime.preflight import UnfitServerError

    try:
        kopf_app.main(settings)
    except (AccessError, UnfitServerError, ApiError, NoAnswerError) as error:
        for line in str(error).splitlines():
            print(f"sharing-affinity run: {line}", file=sys.stderr)
        return NO_ACCESS
    except OSError as error:
        print(f"sharing-affinity run: {error}", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:
        print(f"sharing-affinity run: ended: {type(error).__name__}: {error}", file=sys.stderr)
        return FINDINGS
    return GOOD


def own_namespace() -> str:
    """The namespace of the pod this runs in; outside of one the namespace of the manifests."""
    try:
        with open(IN_POD_NAMESPACE, encoding="utf-8") as file:  # noqa: PTH123 - one line, read once
            return file.read().strip()
    except OSError:
        return "sharing-affinity-system"
