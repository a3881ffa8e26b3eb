"""Commands whose reader has gone (``| head``): no complaint, and the exit code of what they found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "nic-subnet.yaml")


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command",
    [
        ["sharing_affinity", "simulate", "-o", "json", "-f", EXAMPLE],
        ["sharing_affinity", "locks", "-f", EXAMPLE],
        ["affinity_driver", "status", "--kubelet-root-dir", "/nowhere"],
    ],
    ids=["simulate", "locks", "status"],
)
def test_nobody_reads(command: list[str], buffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
