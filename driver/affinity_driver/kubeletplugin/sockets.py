"""Where the sockets are and what they are called.

A Unix socket path has at most 107 bytes, kubelet folders and driver names can be long, so each name has
shorter forms; the first one that fits is taken. Every instance has names of its own: binding a path that
another live process serves succeeds silently in gRPC and takes the socket away from it.

An instance notes its sockets, and what the kubelet said of it, in a file that it keeps locked. A file nobody
has locked belongs to a process that was killed, and its sockets are removed by the next one.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_PATH = 107
"""Bytes of a socket path: sun_path has 108 with the terminating zero."""


class SocketPathError(Exception):
    """No form of the name fits below the folder; a shorter kubelet root or driver name is needed."""


def registration_socket(registry: Path, driver: str, instance: str) -> Path:
    """The registration socket, named as the Go library names it. Raises SocketPathError."""
    short = _hash(instance, 8)
    names = [
        f"{driver}-{instance}-reg.sock",
        f"{driver}-{short}-reg.sock",
        f"dra-{_hash(f'{driver}{chr(0)}{instance}', 16)}-reg.sock",
    ]
    return _first_that_fits(registry, names)


def plugin_socket(directory: Path, instance: str) -> Path:
    """The socket that serves the DRAPlugin. Raises SocketPathError."""
    return _first_that_fits(
        directory, [f"dra-{part}.sock" for part in (instance, _hash(instance, 8), _hash(instance, 4))]
    )


def _hash(value: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(value.encode()).digest()[:size]).rstrip(b"=").decode()


def _first_that_fits(directory: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = directory / name
        if len(os.fsencode(path)) <= MAX_PATH:
            return path
    longest = MAX_PATH - len(names[-1]) - 1
    raise SocketPathError(f"{directory} is too long for a socket in it: at most {longest} bytes are possible")


class Instance:
    """This process's entry among the instances of one driver on this node."""

    def __init__(self, directory: Path, name: str, sockets: Sequence[Path]) -> None:
        self._directory = directory
        self._path = _note_of(directory, name)
        self._sockets = list(sockets)
        self._descriptor = -1

    def claim(self) -> list[Path]:
        """Note our sockets and remove those of killed instances; returns what was removed."""
        while not self._lock():
            os.close(self._descriptor)
        removed = self._remove(_sockets(self._descriptor))
        self.tell("")
        for path in sorted(self._directory.glob("instance-*.json")):
            if path != self._path:
                removed += self._sweep(path)
        return removed

    def _lock(self) -> bool:
        """Lock our note; False where another instance swept it away between our opening and locking it."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(self._descriptor).st_nlink > 0

    def tell(self, registration: str) -> None:
        """Note what the kubelet said: ``registered``, or its error; "" for nothing yet."""
        note = json.dumps([*map(str, self._sockets), *([registration] if registration else [])]).encode()
        os.pwrite(self._descriptor, note, 0)
        os.ftruncate(self._descriptor, len(note))

    def release(self) -> None:
        """Remove our sockets and our note."""
        self._remove(self._sockets)
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _sweep(self, path: Path) -> list[Path]:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            removed = self._remove(path for path in _sockets(descriptor) if path not in self._sockets)
            path.unlink(missing_ok=True)
            return removed
        except BlockingIOError:
            return []
        finally:
            os.close(descriptor)

    @staticmethod
    def _remove(paths: Iterable[Path]) -> list[Path]:
        removed = []
        for path in paths:
            if path.is_socket():
                path.unlink(missing_ok=True)
                removed.append(path)
        return removed


REGISTERED = "registered"


@dataclass(frozen=True, slots=True)
class LiveInstance:
    """A running instance: its sockets, and ``registered``, the kubelet's error, or "" for no word yet."""

    endpoint: Path
    registrar: Path
    registration: str


def live_instances(directory: Path, name: str | None = None) -> list[LiveInstance]:
    """The running instances that keep their notes in ``directory``; only that of this name, where given."""
    found = []
    notes = sorted(directory.glob("instance-*.json")) if name is None else [_note_of(directory, name)]
    for path in notes:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            noted = _noted(descriptor)
            if len(noted) >= 2:
                found.append(LiveInstance(Path(noted[0]), Path(noted[1]), "".join(noted[2:3])))
        finally:
            os.close(descriptor)
    return found


def _note_of(directory: Path, name: str) -> Path:
    return directory / f"instance-{_hash(name, 8)}.json"


def _noted(descriptor: int) -> list[str]:
    try:
        return [str(item) for item in json.loads(os.pread(descriptor, 65536, 0) or b"[]")]
    except (ValueError, TypeError):
        return []


def _sockets(descriptor: int) -> list[Path]:
    return [Path(item) for item in _noted(descriptor)[:2]]
