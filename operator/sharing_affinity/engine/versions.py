"""Which state of which object was seen last, and what is gone for good: late and repeated events change
nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sharing_affinity.api import ObjectMeta
from sharing_affinity.engine.types import Gone

_TOMBSTONES: Final = 16_384


class Versions:
    """The last seen UID and resourceVersion of every object, and the UIDs that were seen to go."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._dead: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_late(self, kind: str, meta: ObjectMeta) -> bool:
        """An older state of what is known, or anything of what is gone. Notes the version otherwise."""
        if meta.uid and (kind, meta.uid) in self._dead:
            return True
        key = (kind, meta.namespace, meta.name)
        known = self._seen.get(key)
        if known is not None and older(meta.resource_version, known[1]):
            return True
        self._seen[key] = (meta.uid, meta.resource_version)
        return False

    def known(self, kind: str, namespace: str, name: str) -> bool:
        return (kind, namespace, name) in self._seen

    def bury(self, event: Gone) -> bool:
        """Whether the deletion is that of the object known by this name."""
        known = self._seen.get((event.kind, event.namespace, event.name))
        if event.uid:
            self._dead[(event.kind, event.uid)] = None
            if len(self._dead) > _TOMBSTONES:
                self._dead.popitem(last=False)
        return known is not None and not (event.uid and known[0] and known[0] != event.uid)

    def forget(self, kind: str, namespace: str, name: str) -> None:
        self._seen.pop((kind, namespace, name), None)

    def is_dead(self, kind: str, uid: str) -> bool:
        """Whether the object of this UID was seen to go."""
        return (kind, uid) in self._dead


def older(version: str, known: str) -> bool:
    """Whether a resourceVersion is certainly older; versions that are not numbers are never compared."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)
