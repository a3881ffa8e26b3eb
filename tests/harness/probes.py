"""What this machine cannot do. Each probe returns what is missing as text, or None; `skips.toml` names them.

A probe finds out by asking the tool that would do the work, not by guessing from user id or platform.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys


def no_control_plane() -> str | None:
    """etcd and the API server are plain Go programs on loopback ports: they run wherever Linux does."""
    return None if sys.platform == "linux" else f"this is {sys.platform}, the cluster tool needs Linux"


def no_nodes() -> str | None:
    """The cluster tool's own check, which tries namespaces, mounts, cgroups and overlayfs."""
    if importlib.util.find_spec("e2e.checks") is None:
        return "the cluster tool cannot start nodes yet"
    answer = importlib.import_module("e2e.checks").missing_for_nodes()
    return None if answer is None else str(answer)


def no_go() -> str | None:
    return None if shutil.which("go") else "no Go toolchain on PATH"
