"""What this machine cannot do. Each probe returns what is missing as text, or None; `skips.toml` names them.

A probe finds out by asking the tool that would do the work, not by guessing from user id or platform.
"""

from __future__ import annotations

import importlib.util
import shutil


def _e2e(function: str) -> str | None:
    """Ask the cluster tool's own check, `e2e.checks:FUNCTION`; a tool that is not there can run nothing."""
    if importlib.util.find_spec("e2e.checks") is None:
        return "the cluster tool is not part of this tree"
    answer = getattr(importlib.import_module("e2e.checks"), function)()
    return None if answer is None else str(answer)


def no_control_plane() -> str | None:
    return _e2e("missing_for_control_plane")


def no_nodes() -> str | None:
    return _e2e("missing_for_nodes")


def no_go() -> str | None:
    """Go comes from PATH, else from a wheel that the cluster tool fetches."""
    if shutil.which("go"):
        return None
    return _e2e("missing_for_go")
