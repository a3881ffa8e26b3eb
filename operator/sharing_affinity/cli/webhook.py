"""``sharing-affinity webhook``: admission of SharingAffinitySlices."""

from __future__ import annotations

import argparse
import sys

from sharing_affinity.cli import BAD_INPUT, FINDINGS, GOOD, NO_ACCESS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``webhook``. Defaults are those of `webhook.app.Settings`."""
    from sharing_affinity.cli.run import address, positive

    parser = subparsers.add_parser(
        "webhook",
        help="refuse slices that could not work, at admission",
        description="Serve the validating webhook for SharingAffinitySlices until SIGTERM or SIGINT. "
        "Times are in seconds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--kubeconfig",
        help="kubeconfig file; without it $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
    )
    add("--context", help="context of the kubeconfig")
    add("--namespace", default=None, help="namespace of Service and Secret; in a pod its own")
    add("--listen", type=address, default="0.0.0.0:9443", help="host:port of admission")
    add(
        "--http",
        type=address,
        default="0.0.0.0:8080",
        help="host:port of /healthz, /readyz, /metrics; empty for none",
    )
    add("--service", default="sharing-affinity-webhook", help="Service the certificate is for")
    add("--secret", default="sharing-affinity-webhook", help="Secret the certificate is kept in")
    add("--configuration", default="sharing-affinity", help="ValidatingWebhookConfiguration that trusts it")
    add(
        "--certificate-host",
        action="append",
        default=[],
        metavar="NAME",
        help="further name or address the certificate is for; may be given again",
    )
    add(
        "--certificate-lifetime", type=positive(float), default=90 * 86400.0, help="renewed in its last third"
    )
    add("--certificate-check", type=positive(float), default=60.0, help="between looks at the certificate")
    add("--log-format", choices=("auto", "json", "text"), default="auto", help="auto: text on a terminal")
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least level logged",
    )


def run(args: argparse.Namespace) -> int:
    """Serve. 2: a port that cannot be had; 3: no access; 1: ended by a fault."""
    from sharing_affinity.cli.run import own_namespace
    from sharing_affinity.runtime import logs
    from sharing_affinity.runtime.client import AccessError, ApiError, NoAnswerError
    from sharing_affinity.webhook import app

    settings = app.Settings(
        kubeconfig=args.kubeconfig,
        context=args.context,
        namespace=args.namespace or own_namespace(),
        listen=args.listen,
        http=args.http,
        service=args.service,
        secret=args.secret,
        configuration=args.configuration,
        hosts=tuple(args.certificate_host),
        lifetime=args.certificate_lifetime,
        check=args.certificate_check,
    )
    logs.configure(args.log_format, args.log_level)
    try:
        app.main(settings)
    except (AccessError, ApiError, NoAnswerError) as error:
        print(f"sharing-affinity webhook: {error}", file=sys.stderr)
        return NO_ACCESS
    except OSError as error:
        print(f"sharing-affinity webhook: {error}", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:
        print(f"sharing-affinity webhook: ended: {type(error).__name__}: {error}", file=sys.stderr)
        return FINDINGS
    return GOOD
