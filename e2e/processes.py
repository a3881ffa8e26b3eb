"""Processes of a cluster: started in sessions of their own, found again by a mark in their environment.

No pid files: a pid in a file may be somebody else's by the time it is read, and a tool that was killed
between starting a process and writing the file has lost it. The mark is inherited, so it also finds what
the daemons started (container shims, `kubectl exec`). Its name is one that no caller exports, or the tool
would find and kill itself.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "DRA_E2E_CLUSTER_FOLDER"
COMPONENT = "DRA_E2E_COMPONENT"
SHIM = "containerd-shim-runc-v2"


@dataclass(frozen=True, slots=True)
class Process:
    """A live process of the cluster: its pid, the component it was started for, the name of its program."""

    pid: int
    component: str
    program: str

    def memory(self) -> int:
        """Resident memory in KiB, 0 when the process is gone."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


Match = Callable[[Process], bool]


def environment(folder: Path, component: str, search: Sequence[Path] = ()) -> dict[str, str]:
    """What a daemon gets: the mark and a PATH, nothing of the caller's (proxies, credentials,
    kubeconfigs).
    """
    path = ":".join([*map(str, search), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    return {"PATH": path, MARK: str(folder), COMPONENT: component}


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a daemon that outlives us; its output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )


def on_host(argv: Sequence[str], env: Mapping[str, str], log: Path | None) -> subprocess.Popen[bytes]:
    """Start a process that belongs to no cluster folder; output goes to `log`, else to a pipe."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), **env}
    if log is None:
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    with log.open("ab") as output:
        return subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def find(folder: Path) -> list[Process]:
    """Every live process that carries the mark of this cluster, zombies excepted."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            if mark not in variables:
                continue
            if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                continue
            program = (entry / "exe").readlink().name.removesuffix(" (deleted)")
        except OSError:  # it ended meanwhile, or it's another user's
            continue
        prefix = f"{COMPONENT}=".encode()
        component = next((v[len(prefix) :].decode() for v in variables if v.startswith(prefix)), "")
        found.append(Process(int(entry.name), component, program))
    return found


def is_component(name: str) -> Match:
    """The daemon itself, without the container shims that inherit its mark."""
    return lambda process: process.component == name and process.program != SHIM


def stop(folder: Path, match: Match, sig: int = signal.SIGTERM, patience: float = 10) -> list[Process]:
    """Send `sig` to the matching processes, SIGKILL to what lives after `patience` seconds; returns when
    all are gone.

    Searches again until nothing matches, since a process may have forked while we looked.
    Returns the processes that even SIGKILL did not end within 10 s (stuck in the kernel).
    """
    deadline = time.monotonic() + patience
    end = deadline + 10
    signalled: dict[int, int] = {}
    while True:
        alive = [process for process in find(folder) if match(process)]
        if not alive or time.monotonic() > end:
            return alive
        now = signal.SIGKILL if time.monotonic() >= deadline else sig
        watched = []
        for process in alive:
            try:
                watched.append(os.pidfd_open(process.pid))
            except ProcessLookupError:
                continue
            if signalled.get(process.pid) != now:
                signalled[process.pid] = now
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(watched[-1], now)
        limit = end if now == signal.SIGKILL else deadline
        _wait_gone(watched, limit)


def _wait_gone(pidfds: list[int], deadline: float) -> None:
    # A pidfd turns readable when the process is really gone; /proc/PID/environ empties while its ports are
    # still bound.
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    left = set(pidfds)
    while left and (wait := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(min(wait, 1) * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)
