"""CDI files: how a prepared device reaches its containers.

One file per claim in the runtime's CDI directory, named so that it is recognisably ours. The directory is a
tmpfs that a reboot empties and anybody may clean, so files are made again from the checkpoint at start and
before each prepare. Each file also carries the claim's checkpoint entry as an annotation: should the
checkpoint be lost while containers run, their files still tell who holds what.

``spec`` is pure; ``CdiDirectory`` writes. The version is the lowest with annotations and device names that
begin with a digit, as claim UIDs do: a runtime refuses versions it does not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .disk import Disk
from .json_types import JsonObject
from .state.checkpoint import claim_from_json, claim_to_json
from .state.model import PreparedClaim, Share

CDI_VERSION = "0.6.0"
ANNOTATION = "sharingaffinity.dev/prepared"


def device_name(claim_uid: str, share: Share) -> str:
    """The CDI device of one share; never used again, since runtimes cache what they have found once."""
    return "-".join(part for part in (claim_uid, share.device, share.share_id) if part)


def spec(kind: str, claim: PreparedClaim, environment: Mapping[str, Mapping[str, str]]) -> JsonObject:
    """The CDI spec of a claim. ``environment`` maps each CDI device name to the variables for its
    containers.
    """
    devices: list[JsonObject] = []
    for share in claim.shares:
        name = device_name(claim.uid, share)
        if name not in {device["name"] for device in devices}:
            variables = [f"{variable}={value}" for variable, value in sorted(environment[name].items())]
            devices.append({"name": name, "containerEdits": {"env": variables}})
    note = json.dumps(claim_to_json(claim), sort_keys=True, separators=(",", ":"))
    return {"cdiVersion": CDI_VERSION, "kind": kind, "annotations": {ANNOTATION: note}, "devices": devices}


class CdiDirectory:
    """Our files in the CDI directory. ``driver`` is the vendor, ``kind_class`` the class of the CDI kind."""

    def __init__(self, path: Path, driver: str, kind_class: str, disk: Disk) -> None:
        self.path = path
        self.kind = f"{driver}/{kind_class}"
        self._prefix = f"{driver}-{kind_class}_"
        self._disk = disk

    def file(self, claim_uid: str) -> Path:
        """Where the claim's spec is."""
        return self.path / f"{self._prefix}{claim_uid}.json"

    def device_id(self, claim_uid: str, share: Share) -> str:
        """The fully qualified CDI name that the kubelet hands to the runtime."""
        return f"{self.kind}={device_name(claim_uid, share)}"

    def ensure(self, claim: PreparedClaim, environment: Mapping[str, Mapping[str, str]]) -> bool:
        """Make the claim's file what it should be; False where it already was."""
        data = json.dumps(spec(self.kind, claim, environment), indent=1, sort_keys=True).encode() + b"\n"
        path = self.file(claim.uid)
        if self._disk.read(path) == data:
            return False
        self.path.mkdir(parents=True, exist_ok=True)
        self._disk.write(path, data, mode=0o644)
        return True

    def remove(self, claim_uid: str) -> bool:
        """Remove the claim's file; False where there was none."""
        return self._disk.remove(self.file(claim_uid))

    def claims(self) -> set[str]:
        """The UIDs of the claims that have a file."""
        try:
            found = os.listdir(self.path)  # noqa: PTH208 - before each prepare, and five times as fast
        except FileNotFoundError:
            return set()
        start, end = len(self._prefix), len(".json")
        return {
            name[start:-end] for name in found if name.startswith(self._prefix) and name.endswith(".json")
        }

    def recover(self) -> dict[str, PreparedClaim]:
        """The claims as their files tell of them; a file that tells nothing usable is left out."""
        found = {}
        for uid in self.claims():
            try:
                note = json.loads(self._disk.read(self.file(uid)) or b"{}")["annotations"][ANNOTATION]
                claim = claim_from_json(json.loads(note))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if claim.uid == uid:
                found[uid] = claim
        return found

    def sweep_temporaries(self) -> None:
        """Remove what a killed writer left; only of files with our prefix."""
        if self.path.is_dir():
            self._disk.sweep_temporaries(self.path, self._prefix)
