"""docs/users.md on the two-node cluster: what a reader types prints what the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.transcripts import Command, Driver, File, difference, steps

from e2e import images
from e2e.cluster import Cluster, wait_for
from e2e.errors import ClusterError
from e2e.installation import AsPods
from e2e.product import PYTHON_PATH, ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture
def installed(two_nodes: Cluster) -> Iterator[AsPods]:
    made = AsPods(two_nodes, two_nodes.node("node-a"))
    try:
        made.operators("--fence-settle=1")
        yield made
    finally:
        made.stop()


def test_every_command_prints_what_the_page_says(
    two_nodes: Cluster, installed: AsPods, namespace: str, tmp_path: Path
) -> None:
    def run(argv: tuple[str, ...]) -> str:
        program, *arguments = (str(tmp_path / word) if (tmp_path / word).exists() else word for word in argv)
        if program == "kubectl":
            return two_nodes.kubectl("-n", namespace, *arguments, timeout=90)
        command = [
            sys.executable,
            "-m",
            "sharing_affinity",
            *arguments,
            f"--kubeconfig={two_nodes.kubeconfig}",
        ]
        command += ["-n", namespace] if arguments[0] == "explain" else []
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout

    def as_told(step: Command) -> None:
        if step.argv[1] in ("apply", "delete"):
            run(step.argv)
            return
        try:
            wait_for("the output", lambda: not difference(step.expected, run(step.argv)), 60, 0.5)
        except ClusterError:
            printed = run(step.argv)
            missing = difference(step.expected, printed)
            pytest.fail(
                f"$ {' '.join(step.argv)}\n{printed}\ndoes not have the line\n{missing}", pytrace=False
            )

    try:
        for step in steps((ROOT / "docs/users.md").read_text()):
            match step:
                case Driver((profile, *flags)):
                    installed.driver("--fence-settle=1", *flags, profile=profile)
                case File(name, text):
                    app = f"image: {images.TEST}\n      args: [sleep, '86400']"
                    (tmp_path / name).write_text(text.replace("image: app:1.0", app))
                case Command():
                    as_told(step)
    finally:
        two_nodes.kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=1", timeout=120)
