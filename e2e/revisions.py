"""The revision before this one, as a tree of files: what an upgrade starts from."""

import io
import subprocess
import tarfile
from pathlib import Path

from e2e.errors import ClusterError
from e2e.product import ROOT

#: What is installed, and what images are made of.
PARTS = ("operator", "driver", "crds", "manifests", "e2e/images")


def previous() -> str:
    """The commit before the last change to what is installed. Raises `ClusterError` where there is no such
    history (a shallow clone, no clone at all)."""
    commits = _git("log", "-2", "--format=%H", "--", *PARTS).decode().split()
    if commits and _git("status", "--porcelain", "--", *PARTS).strip():
        return commits[0]
    if len(commits) < 2:
        raise ClusterError("this clone has no earlier revision of what is installed")
    return commits[1]


def extract(commit: str, folder: Path) -> Path:
    """Write the installed parts of a commit into a folder; returns it."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "--", *PARTS))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=False)
    except OSError as error:
        raise ClusterError(f"git: {error.strerror}") from None
    if run.returncode:
        raise ClusterError(f"git {arguments[0]}: {run.stderr.decode(errors='replace').strip()}")
    return run.stdout
