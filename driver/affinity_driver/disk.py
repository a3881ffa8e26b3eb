"""Files that are either the old ones or the new ones, whatever happens in between.

Everything the driver must not forget goes through ``Disk.write``: temporary file in the same directory,
fsync, rename, fsync of the directory. It is a class so that a test can put a kill between any two of these
steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def _nothing(step: str, path: Path) -> None:
    """The default of ``Disk.before``."""


class Disk:
    """Durable writes and removals.

    ``before`` is called ahead of each system call that changes something, with the step's name and the path.
    """

    def __init__(self, before: Callable[[str, Path], None] = _nothing) -> None:
        self._before = before

    def read(self, path: Path) -> bytes | None:
        """The file's bytes, or None where there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """Replace ``path`` by ``data`` atomically and durably; ``mode`` is set whatever the umask says."""
        temporary = path.with_name(f"spec.{path.name}.{os.getpid()}.tmp")
        try:
            self._write_new(temporary, data, mode)
            self._before("rename", path)
            temporary.rename(path)
        except OSError:  # a full disk must not be made fuller
            with suppress(OSError):
                temporary.unlink()
            raise
        self._sync_directory(path.parent)

    def _write_new(self, temporary: Path, data: bytes, mode: int) -> None:
        self._before("create", temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)
            self._before("write", temporary)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            self._before("fsync", temporary)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> bool:
        """Remove ``path`` durably; False where it was not there."""
        self._before("unlink", path)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        self._sync_directory(path.parent)
        return True

    def move(self, path: Path, target: Path) -> None:
        """Rename within one directory, durably."""
        self._before("rename", target)
        path.rename(target)
        self._sync_directory(target.parent)

    def sweep_temporaries(self, directory: Path, prefix: str = "") -> list[Path]:
        """Remove what writers killed in mid-write of files with ``prefix`` left in ``directory``.

        The caller holds the lock under which these files are written. Process ids say nothing here: in two
        containers both writers are number 1.
        """
        swept = sorted(directory.glob(f"spec.{prefix}*.tmp"))
        for path in swept:
            self.remove(path)
        return swept

    def _sync_directory(self, directory: Path) -> None:
        self._before("fsync", directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
