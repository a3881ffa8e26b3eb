"""What a caller without all rights could not see of a cluster, and what that means for an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sharing_affinity.cli import NO_ACCESS, CommandError

if TYPE_CHECKING:
    from sharing_affinity.runtime.kinds import Kind
    from sharing_affinity.runtime.snapshot import Sight

VIEW: Final = "sharing-affinity-view"
_MEANS: Final = {
    "ResourceClaim": "devices may be locked or used by claims that are not counted here",
    "Pod": "nodes may be fuller than counted here, and pods there may repel this one",
    "Node": "nodes are those that slices name; their labels, taints and free resources are not considered",
    "DeviceTaintRule": "taints and fences that rules put on devices are not considered",
    "PersistentVolume": "the node affinity of volumes is not considered",
    "PersistentVolumeClaim": "the node affinity of volumes is not considered",
}


def require(sight: Sight, kinds: Iterable[Kind], command: str) -> None:
    """Raises :class:`CommandError` when one of these, without which there is no answer, was not seen at
    all."""
    unseen = {kind.kind for kind in sight.unseen if not kind.within}
    missing = [kind for kind in kinds if kind.kind in unseen]
    if missing:
        named = ", ".join(
            f"{kind.plural}.{kind.group_version.rpartition('/')[0]}".rstrip(".") for kind in missing
        )
        raise CommandError(
            f"there is no answer without the right to list {named}; the ClusterRole {VIEW} has what "
            f"{command} needs",
            NO_ACCESS,
        )


def as_json(sight: Sight) -> list[dict[str, Any]]:
    """The part ``unseen`` of a command's output; ``namespace`` is the only one that was seen."""
    return [
        {"kind": kind.kind, "namespace": kind.within or None, "means": _MEANS[kind.kind]}
        for kind in sight.unseen
    ]


def warn(unseen: Iterable[Mapping[str, Any]]) -> None:
    """The same for people, on standard error."""
    for entry in unseen:
        which = (
            f"{entry['kind']}s outside of namespace {entry['namespace']}"
            if entry["namespace"]
            else (f"any {entry['kind']}")
        )
        print(f"you may not list {which}: {entry['means']}", file=sys.stderr)
