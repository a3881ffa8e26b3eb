"""Extractors that an administrator rolls out on a live pool, instead of its publisher's own; pure.

They lie in an annotation of the pool's first SharingAffinitySlice, written by ``affinity-driver extractors``.
The publisher alone writes slices, so it takes them from there and publishes them in its own order, under a
generation of its own. An override ends by itself once the publisher, of a newer version, has the very same
extractors; one that is a *hold* stays, to keep a pool as it is while publishers are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from affinity_driver.json_types import JsonObject
from sharing_affinity.api import Extractor, names

from .desired import entries
from .validate import extractor_problems


@dataclass(frozen=True, slots=True)
class Override:
    """What a pool is to be published with, whatever its publisher's own extractors are."""

    extractors: tuple[Extractor, ...]
    hold: bool = False

    def over(self, own: Sequence[Extractor]) -> bool:
        """Whether the publisher has caught up: it would publish the same by itself."""
        return not self.hold and same_extractors(self.extractors, own)


def same_extractors(one: Iterable[Extractor], other: Iterable[Extractor]) -> bool:
    """Whether both declare the same keys by the same expressions."""
    return sorted((e.name, e.expression) for e in one) == sorted((e.name, e.expression) for e in other)


def encode(override: Override) -> str:
    """The annotation's value."""
    content: JsonObject = {"sharingAffinity": entries(override.extractors)}
    if override.hold:
        content["hold"] = True
    return json.dumps(content, separators=(",", ":"))


def decode(text: str) -> Override | None:
    """The override in an annotation; None for what is none, which then counts for nothing."""
    try:
        content = json.loads(text)
        extractors = tuple(
            Extractor(str(item["name"]), str(item["expression"])) for item in content["sharingAffinity"]
        )
    except (ValueError, KeyError, TypeError):
        return None
    if not extractors or any(extractor_problems(extractors)):
        return None
    return Override(extractors, content.get("hold") is True)


def stored(metadata: Iterable[JsonObject]) -> Override | None:
    """The override among one pool's metadata slices."""
    for item in metadata:
        text = (item["metadata"].get("annotations") or {}).get(names.EXTRACTORS_ANNOTATION)
        if isinstance(text, str):
            return decode(text)
    return None


def without(item: JsonObject) -> JsonObject:
    """The metadata slice without an override."""
    kept = {
        name: value
        for name, value in (item["metadata"].get("annotations") or {}).items()
        if name != names.EXTRACTORS_ANNOTATION
    }
    return {**item, "metadata": {**item["metadata"], "annotations": kept}}


def with_override(item: JsonObject, override: Override) -> JsonObject:
    """The metadata slice with ``override``."""
    bare = without(item)["metadata"]
    annotations = {**bare["annotations"], names.EXTRACTORS_ANNOTATION: encode(override)}
    return {**item, "metadata": {**bare, "annotations": annotations}}


def carries(item: JsonObject) -> bool:
    """Whether a metadata slice carries an override, readable or not."""
    return names.EXTRACTORS_ANNOTATION in (item["metadata"].get("annotations") or {})
