"""Container images without a Docker daemon: OCI archives that `ctr` and `docker load` take.

Archives repeat byte for byte: no times, no owners but root, entries sorted.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image runs. `user` is "uid:gid" or empty for root; `architecture` as Go names it."""

    architecture: str
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def layer_of_files(files: Mapping[str, Path]) -> bytes:
    """A layer (uncompressed tar) with these executables: path in the image without leading slash, file
    on the host.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in sorted(files):
            _add(archive, name, files[name].read_bytes(), 0o755)
    return buffer.getvalue()


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
