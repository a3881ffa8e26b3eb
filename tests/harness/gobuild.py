"""Go programs of the tests, built at most once per content.

The binary lies in the user's cache under a key made of its sources, its pins and the Go version, so test runs
and test processes share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from pathlib import Path

from e2e import paths, toolchain
from e2e.errors import ClusterError

BUILD_TIMEOUT_S = 1500.0


class BuildError(Exception):
    """There is no Go, or it refused the program; the text is what it said."""


def go() -> tuple[str, dict[str, str]]:
    """The Go that also builds the clusters (PATH, else the wheel), and its environment: one build cache."""
    try:
        found = toolchain.find_go()
    except ClusterError as error:
        raise BuildError(str(error)) from None
    return str(found), dict(toolchain.environment(found))


def build(sources: Path) -> Path:
    """Build the module in ``sources`` unless this very content is built already; the path of the binary."""
    program, environment = go()
    digest = hashlib.sha256()
    digest.update(
        subprocess.run(
            [program, "version"], env=environment, check=True, capture_output=True, timeout=60
        ).stdout
    )
    for path in sorted([*sources.glob("*.go"), sources / "go.mod", sources / "go.sum"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    directory = paths.cache_dir() / sources.name / digest.hexdigest()[:24]
    binary = directory / sources.name
    if binary.exists():
        return binary
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if binary.exists():
            return binary
        temporary = directory / "new"
        done = subprocess.run(
            [program, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(temporary), "."],
            cwd=sources,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"go build in {sources.name} failed:\n{done.stdout}{done.stderr}")
        temporary.replace(binary)
    return binary
