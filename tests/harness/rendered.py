"""Rendered manifests as mappings that can be compared."""

from __future__ import annotations

from typing import Any

import yaml

Json = dict[str, Any]
Key = tuple[str, str, str]


def by_key(rendered: str) -> dict[Key, Json]:
    """(kind, namespace, name) to object; ValueError when one is there twice."""
    found: dict[Key, Json] = {}
    for document in yaml.safe_load_all(rendered):
        if document:
            meta = document["metadata"]
            key = (document["kind"], meta.get("namespace", ""), meta["name"])
            if key in found:
                raise ValueError(f"{key} is there twice")
            found[key] = document
    return found
