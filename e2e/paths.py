"""Where the cluster tool keeps things: a per-user cache of what is expensive to make, and a folder per
running cluster.

The two live apart on purpose. The cache may sit at a long path (a clone in a CI workspace, `XDG_CACHE_HOME`
somewhere deep); a cluster's folder holds Unix sockets, whose paths may have 107 bytes at most, and files
that containers execute. So clusters live in a short folder of the system's persistent temporary directory,
owned by one user and closed to others.
"""

import contextlib
import os
import pwd
import re
import tempfile
from pathlib import Path

from e2e.errors import ClusterError

PROJECT = "dra-sharing-affinity"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


def home() -> Path | None:
    """The user's home folder; without `$HOME` the one of the password database, None if that does not
    exist.
    """
    text = os.environ.get("HOME", "")
    if not text:
        try:
            text = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    path = Path(text)
    return path if path.is_absolute() and os.access(path, os.W_OK) else None


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/dra-sharing-affinity`, `~/.cache/...`, or a private folder under the temporary
    directory.
    """
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():
        path = Path(xdg) / PROJECT
    elif (where := home()) is not None:
        path = where / ".cache" / PROJECT
    else:
        path = private_dir(Path(tempfile.gettempdir()) / f"{PROJECT}-{os.getuid()}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def clusters_dir() -> Path:
    """The folder with one subfolder for each cluster of this user (`E2E_CLUSTERS` overrides it)."""
    override = os.environ.get("E2E_CLUSTERS", "")
    if override:
        return private_dir(Path(override).absolute())
    base = Path("/var/tmp")
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    return private_dir(base / f"dra-e2e-{os.getuid()}")


def cluster_dir(name: str) -> Path:
    """The folder of the cluster called `name`: lower-case letters, digits and dashes, at most 20
    characters.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ClusterError(f"cluster name {name!r}: use at most 20 lower-case letters, digits and dashes")
    path = clusters_dir() / name
    if len(os.fsencode(path)) > 40:
        raise ClusterError(
            f"{path} is too long for Unix sockets below it: set E2E_CLUSTERS to a shorter folder"
        )
    return path


def forget_clusters_dir() -> None:
    """Remove the clusters' folder if it is empty."""
    with contextlib.suppress(OSError):  # clusters are in there
        clusters_dir().rmdir()


def private_dir(path: Path) -> Path:
    """Create `path` for this user alone; refuse one that somebody else could have prepared."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if info.st_uid != os.getuid() or path.is_symlink():
        raise ClusterError(
            f"{path} belongs to another user: remove it or set E2E_CLUSTERS to a folder of your own"
        )
    return path
