"""The checkpoint: the driver's memory on disk.

Format: one line of JSON (what it is, version, sha256 and length of the rest), then the payload as JSON. The
checksum covers bytes, not a structure encoded again: a field that one version writes and another does not
would otherwise make a good file look corrupt. Reading is lenient about fields it does not know, so that an
older driver reads a newer one's file of the same version; what changes meaning gets a new version.

``decode`` and ``encode`` are pure; ``CheckpointFile`` adds the file, and sets a bad one aside instead of
failing on it at every start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from affinity_driver.disk import Disk
from affinity_driver.json_types import JsonObject

from .model import NodeState, Phase, PreparedClaim, Share

FORMAT = "affinity-driver-checkpoint"
VERSION = 1


class CheckpointError(Exception):
    """The bytes are not a checkpoint this version reads; the text says in which way."""


def encode(state: NodeState) -> bytes:
    """The file's bytes; the same state always gives the same bytes."""
    claims = [claim_to_json(state.claims[uid]) for uid in sorted(state.claims)]
    payload = (
        json.dumps({"bootID": state.boot_id, "claims": claims}, sort_keys=True, indent=1).encode() + b"\n"
    )
    digest = hashlib.sha256(payload).hexdigest()
    head = {"format": FORMAT, "version": VERSION, "sha256": digest, "length": len(payload)}
    return json.dumps(head).encode() + b"\n" + payload


def decode(data: bytes) -> NodeState:
    """The state in ``data``. Raises CheckpointError."""
    first, newline, payload = data.partition(b"\n")
    try:
        head = json.loads(first)
        if head["format"] != FORMAT:
            raise CheckpointError(f"not a checkpoint but {head['format']!r}")
        version = head["version"]
        if version != VERSION:
            raise CheckpointError(f"version {version!r}; this driver reads version {VERSION}")
        if not newline or len(payload) != head["length"]:
            raise CheckpointError(f"{len(payload)} bytes of payload, {head['length']} were written")
        if hashlib.sha256(payload).hexdigest() != head["sha256"]:
            raise CheckpointError("the checksum does not match")
        body = json.loads(payload)
        claims = [claim_from_json(item) for item in body["claims"]]
        return NodeState(str(body["bootID"]), {claim.uid: claim for claim in claims})
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not readable: {type(error).__name__}: {error}") from error


def claim_to_json(claim: PreparedClaim) -> JsonObject:
    """One claim as the checkpoint and the CDI file hold it."""
    return {
        "uid": claim.uid,
        "namespace": claim.namespace,
        "name": claim.name,
        "phase": claim.phase.value,
        "shares": [_share_to_json(share) for share in claim.shares],
    }


def claim_from_json(item: JsonObject) -> PreparedClaim:
    """The reverse of ``claim_to_json``. Raises KeyError, TypeError or ValueError on anything else."""
    return PreparedClaim(
        uid=_text(item["uid"]),
        namespace=_text(item["namespace"]),
        name=_text(item["name"]),
        phase=Phase(item["phase"]),
        shares=tuple(_share_from_json(share) for share in item["shares"]),
    )


def _share_to_json(share: Share) -> JsonObject:
    body: JsonObject = {
        "request": share.request,
        "pool": share.pool,
        "device": share.device,
        "keys": dict(share.keys),
        "settings": share.settings,
        "consumed": dict(share.consumed),
    }
    if share.share_id is not None:
        body["shareID"] = share.share_id
    if share.admin:
        body["adminAccess"] = True
    return body


def _share_from_json(item: JsonObject) -> Share:
    share_id = item.get("shareID")
    return Share(
        request=_text(item["request"]),
        pool=_text(item["pool"]),
        device=_text(item["device"]),
        share_id=None if share_id is None else _text(share_id),
        keys=_texts(item["keys"]),
        settings=dict(item["settings"]),
        consumed=_texts(item.get("consumed", {})),
        admin=item.get("adminAccess") is True,
    )


def _texts(item: Mapping[str, object]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in item.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a string is needed, not {value!r}")
    return value


class CheckpointFile:
    """The checkpoint at ``path``. Callers serialise ``load`` and ``save`` (``DeviceState`` holds the node
    lock).
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._seen: tuple[tuple[int, int, int], NodeState] | None = None

    def load(self) -> NodeState | None:
        """The stored state, None where there is none yet. Raises CheckpointError.

        Another process may have written since, and every write makes a new file, so the file's identity tells
        whether it has to be read again.
        """
        mark = self._mark()
        if mark is not None and self._seen is not None and self._seen[0] == mark:
            return self._seen[1]
        data = self._disk.read(self.path)
        if data is None:
            return None
        state = decode(data)
        self._seen = None if mark is None else (mark, state)
        return state

    def save(self, state: NodeState) -> None:
        """Store durably; when this returns, a crash finds ``state``."""
        self._disk.write(self.path, encode(state))
        mark = self._mark()
        self._seen = None if mark is None else (mark, state)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def quarantine(self) -> Path:
        """Set an unreadable file aside for people to look at, and return where; earlier ones are kept."""
        for number in range(1000):
            target = self.path.with_name(f"{self.path.name}.bad.{number}")
            if not target.exists():
                break
        self._disk.move(self.path, target)
        return target
