"""Objects against the schema of our own CRD, without an API server.

The schema is read from the CRD that ships, so there is one truth; its CEL rules run in our own CEL.
Transition rules (those that look at `oldSelf`) need two versions of an object and are left to the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from kubernetes_cel import Environment, from_json, types
from kubernetes_cel.libraries import ADMISSION
from kubernetes_cel.standard import compile_pattern

_CRD = "sharingaffinity.dev_sharingaffinityslices.yaml"
_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
}

#: (JSON path, what is wrong)
Finding = tuple[str, str]


def slice_schema() -> Mapping[str, Any]:
    """The openAPIV3Schema of SharingAffinitySlice."""
    packaged = resources.files("sharing_affinity").joinpath("_crds", _CRD)
    if packaged.is_file():
        text = packaged.read_text(encoding="utf-8")
    else:  # an editable install: the CRDs are where the repository has them
        text = (Path(__file__).parents[3] / "crds" / _CRD).read_text(encoding="utf-8")
    crd = yaml.safe_load(text)
    schema: Mapping[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def as_stored(value: Any) -> Any:
    """Without fields that are null: the API server drops them first, since no field of ours is nullable."""
    if isinstance(value, dict):
        return {name: as_stored(item) for name, item in value.items() if item is not None}
    return [as_stored(item) for item in value] if isinstance(value, list) else value


class SchemaChecker:
    """Checks values against structural schemas."""

    def __init__(self) -> None:
        self._environment = Environment({"self": types.dyn}, ADMISSION)

    def check(self, value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Finding]:
        """All findings, by path."""
        kind = schema.get("type", "object")
        allowed = _KINDS[kind]
        checked: Any = value
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind != "boolean"):
            yield path, f"must be of type {kind}"
            return
        if "enum" in schema and value not in schema["enum"]:
            yield path, f"must be one of {', '.join(map(str, schema['enum']))}"
        if kind == "string":
            yield from self._string(checked, schema, path)
        elif kind == "integer":
            if checked < schema.get("minimum", value):
                yield path, f"must be at least {schema['minimum']}"
        elif kind == "array":
            yield from self._array(checked, schema, path)
        elif kind == "object":
            yield from self._object(checked, schema, path)
        yield from self._rules(value, schema, path)

    def _string(self, value: str, schema: Mapping[str, Any], path: str) -> Iterator[Finding]:
        if len(value) < schema.get("minLength", 0):
            yield path, f"must have at least {schema['minLength']} characters"
        if len(value) > schema.get("maxLength", len(value)):
            yield path, f"must have at most {schema['maxLength']} characters, has {len(value)}"
        pattern = schema.get("pattern")
        if pattern is not None and compile_pattern(pattern).search(value) is None:
            yield path, f"{value!r} does not match {pattern}"

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Finding]:
        if len(value) < schema.get("minItems", 0):
            yield path, f"must have at least {schema['minItems']} entries"
        if len(value) > schema.get("maxItems", len(value)):
            yield path, f"must have at most {schema['maxItems']} entries, has {len(value)}"
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen: set[tuple[str, ...]] = set()
        for i, item in enumerate(value):
            yield from self.check(item, schema["items"], f"{path}[{i}]")
            if keys and isinstance(item, dict):
                identity = tuple(str(item.get(key)) for key in keys)
                if identity in seen:
                    yield f"{path}[{i}]", f"is there twice: {', '.join(keys)} {', '.join(identity)}"
                seen.add(identity)

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Finding]:
        properties = schema.get("properties", {})
        prefix = f"{path}." if path else ""
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{prefix}{name}", "is required"
        for name, item in value.items():
            if name in properties:
                yield from self.check(item, properties[name], f"{prefix}{name}")
            elif properties:
                yield f"{prefix}{name}", "is no field of this kind"

    def _rules(self, value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Finding]:
        for rule in schema.get("x-kubernetes-validations", ()):
            if "oldSelf" in rule["rule"]:
                continue
            outcome = self._environment.compile(rule["rule"], output="bool").run({"self": from_json(value)})
            if outcome.value is not True:
                yield path + rule.get("fieldPath", ""), rule.get("message", rule["rule"])
