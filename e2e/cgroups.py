"""Control groups of the nodes, on both kernel interfaces.

On v1 every controller has a hierarchy of its own below `/sys/fs/cgroup` (plus `unified`, where runc
makes folders too); on v2 there is one. Version 2 is written from its documentation and has not been run
yet.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def is_v2() -> bool:
    """Whether the host has the unified hierarchy only."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The folders below which a node needs its own group."""
    if is_v2():
        return [ROOT]
    return [
        path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "unified"
    ]


def create(name: str) -> None:
    """Make the group everywhere; kubelet wants its root there before it starts."""
    if is_v2():
        _delegate(ROOT)
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if hierarchy.name == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty and refuses processes
                (group / file).write_text((hierarchy / file).read_text())
        if is_v2():
            _delegate(group)


def _delegate(group: Path) -> None:
    """Let the groups below use the controllers that this one has (v2)."""
    available = (group / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in V2_CONTROLLERS if name in available)
    (group / "cgroup.subtree_control").write_text(wanted)


def named(prefix: str) -> list[str]:
    """Names of groups at the top of any hierarchy that start with `prefix`."""
    places = {*hierarchies(), ROOT / "unified"}
    return sorted({path.name for place in places if place.is_dir() for path in place.glob(f"{prefix}*")})


def destroy(name: str, patience: float = 15) -> None:
    """Kill all processes in the group and remove it from every hierarchy."""
    deadline = time.monotonic() + patience
    while True:
        left = _kill_and_remove(name)
        if not left:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"control groups that cannot be removed: {', '.join(map(str, left))}")
        time.sleep(0.05)


def kill(name: str, patience: float = 10) -> None:
    """Kill all processes in the group, leaving the group."""
    deadline = time.monotonic() + patience
    while pids := {pid for folder in _folders(name) for pid in _pids(folder)}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes in control group {name} that SIGKILL does not end: {sorted(pids)}")
        time.sleep(0.02)


def _kill_and_remove(name: str) -> list[Path]:
    left = []
    for folder in _folders(name):
        for pid in _pids(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            left.append(folder)
    return left


def _folders(name: str) -> Iterator[Path]:
    for hierarchy in {*hierarchies(), ROOT / "unified"}:
        top = hierarchy / name
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                yield Path(folder)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []
