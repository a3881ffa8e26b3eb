"""Container images without a Docker daemon: OCI archives that `ctr` and `docker load` take.

Archives repeat byte for byte: no times, no owners but root, entries sorted.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image runs. `user` is "uid:gid" or empty for root; `architecture` as Go names it."""

    architecture: str
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Layer:
    """A file system layer in the making. Names are relative to the root; missing parent folders are added."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def file(self, name: str, content: bytes, mode: int) -> None:
        entry = self._entry(name, tarfile.REGTYPE, mode)
        entry.size = len(content)
        self._entries[name] = (entry, content)

    def folder(self, name: str, mode: int) -> None:
        self._entries[name] = (self._entry(name, tarfile.DIRTYPE, mode), b"")

    def symlink(self, name: str, target: str) -> None:
        entry = self._entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = target
        self._entries[name] = (entry, b"")

    def tree(self, source: Path, target: str) -> None:
        """Copy a folder of the host, compiled Python excepted."""
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
                self.file(f"{target}/{path.relative_to(source)}", path.read_bytes(), mode)

    def merge(self, archive: IO[bytes], place: Callable[[str], str | None]) -> None:
        """Add the members of a tar stream under the names that `place` gives them; None leaves a member
        out.
        """
        with tarfile.open(fileobj=archive, mode="r|") as members:
            for member in members:
                name = place(member.name.removeprefix("./").rstrip("/"))
                if not name or name == "." or (member.isdir() and name in self._entries):
                    continue
                entry = self._entry(name, member.type, member.mode & 0o7777)
                entry.uid, entry.gid = member.uid, member.gid
                entry.linkname = member.linkname
                if member.islnk():
                    entry.linkname = place(member.linkname.removeprefix("./")) or ""
                content = b""
                if member.isreg() and (file := members.extractfile(member)) is not None:
                    content = file.read()
                    entry.size = len(content)
                self._entries[name] = (entry, content)

    def content(self) -> bytes:
        """The layer as an uncompressed tar. Hard links come after everything else, so that their
        targets are there.
        """
        for name in list(self._entries):
            for parent in Path(name).parents:
                if str(parent) != "." and str(parent) not in self._entries:
                    self.folder(str(parent), 0o755)
        ordered = sorted(self._entries.items(), key=lambda item: (item[1][0].islnk(), item[0]))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for _, (entry, content) in ordered:
                archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
        return buffer.getvalue()

    @staticmethod
    def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = kind, mode
        return entry


def write_archive(target: Path, names: Sequence[str], layers: Sequence[bytes], config: ImageConfig) -> None:
    """Write the image under all `names` (full references with a tag) to `target`, which appears by a
    rename.
    """
    environment = {"PATH": PATH, **config.environment}
    settings: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
    }
    if config.user:
        settings["User"] = config.user
    rootfs = {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]}
    image = _json({"architecture": config.architecture, "os": "linux", "config": settings, "rootfs": rootfs})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("config.v1+json", image),
            "layers": [_descriptor("layer.v1.tar", layer) for layer in layers],
        }
    )
    entries = [
        {
            **_descriptor("manifest.v1+json", manifest),
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        for name in names
    ]
    partial = target.with_name(f"{target.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": entries}), 0o644)
        for blob in dict.fromkeys([image, *layers, manifest]):
            _add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob, 0o644)
    partial.replace(target)


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
