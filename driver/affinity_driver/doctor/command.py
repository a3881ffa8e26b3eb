"""The command: puts the checks together. Exit code 0 when nothing is wrong, 1 when something is."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from affinity_driver.cdi import CdiDirectory
from affinity_driver.disk import Disk
from affinity_driver.hardware import MockDevices, boot_id
from affinity_driver.kube import CredentialsError, KubeClient, from_kubeconfig, in_cluster
from affinity_driver.profiles import ProfileOptions, find

from . import cluster, node
from .findings import Finding, Verdict, render, wrong

GOOD, FINDINGS, BAD_INPUT = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options beyond those that say which driver and where."""
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME"), help="default: $NODE_NAME")
    parser.add_argument("--kubeconfig", type=Path, help="the driver's; default: the pod's ServiceAccount")
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="default: %(default)s")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at everything; nothing is changed, and what is created is a dry run."""
    if not arguments.node_name:
        print("affinity-driver: --node-name or $NODE_NAME is needed", file=sys.stderr)
        return BAD_INPUT
    kind = find(arguments.profile)
    driver = arguments.driver_name or kind.driver
    root = arguments.kubelet_root_dir.absolute()
    disk = Disk()
    findings: list[Finding] = list(
        node.look(root, driver, CdiDirectory(arguments.cdi_dir.absolute(), driver, kind.name, disk))
    )
    try:
        credentials = from_kubeconfig(arguments.kubeconfig) if arguments.kubeconfig else in_cluster()
    except CredentialsError as error:
        findings.append(
            wrong("API server", str(error), "run it in the driver's pod, or name the driver's --kubeconfig")
        )
    else:
        mock = MockDevices(root / "plugins" / driver / "hardware", boot_id())
        profile = kind(ProfileOptions(devices=1), mock)
        api = KubeClient(credentials, user_agent="affinity-driver-doctor")
        findings += cluster.look(api, driver, arguments.node_name, profile.devices(), profile.extractors())
    print(render(findings, arguments.output))
    return FINDINGS if any(finding.verdict is Verdict.WRONG for finding in findings) else GOOD
