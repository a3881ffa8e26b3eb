"""The `device` variable of DRA device selectors: its type, its sizes, and its value for a published device.

Source: `k8s.io/dynamic-resource-allocation/cel`. Attributes and capacities without a domain belong to the
driver's; `device.attributes["domain"]` and `device.capacity["domain"]` are empty maps for domains nobody
uses, so that a name that is absent is always a missing key of the inner map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes_cel import types
from kubernetes_cel.costs import Node, Range
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries.quantity import QUANTITY_TYPE, parse_quantity
from kubernetes_cel.libraries.semver import parse_semver
from kubernetes_cel.types import Type
from kubernetes_cel.values import DefaultMap

#: Limits of resource.k8s.io/v1 that bound sizes.
MAX_NAMES = 32
MAX_DOMAIN = 63
MAX_ID = 32
MAX_DRIVER = 63
MAX_VALUE = 64

DEVICE = types.struct("kubernetes.DRADevice")
FIELDS: Mapping[str, Mapping[str, Type]] = {
    DEVICE.name: {
        "driver": types.string,
        "allowMultipleAllocations": types.bool_,
        "attributes": types.map_of(types.string, types.map_of(types.string, types.dyn)),
        "capacity": types.map_of(types.string, types.map_of(types.string, QUANTITY_TYPE)),
    }
}


def _domain_and_name(name: str, driver: str) -> tuple[str, str]:
    domain, slash, rest = name.partition("/")
    return (domain, rest) if slash else (driver, name)


def size_hint(node: Node) -> Range | None:
    """Sizes of what is below `device`, from the limits of the API."""
    path = node.path
    if not path or path[0] != "device":
        return None
    size = _size(path[1:])
    return None if size is None else Range(0, size)


def _size(path: tuple[str, ...]) -> int | None:
    if not path:
        return 0
    field, *rest = path
    if field == "driver":
        return MAX_DRIVER if not rest else None
    if field == "allowMultipleAllocations":
        return 1 if not rest else None
    if field not in ("attributes", "capacity"):
        return None
    if not rest:
        return MAX_NAMES
    if rest[0] == "@keys":
        return MAX_DOMAIN if len(rest) == 1 else None
    if rest[0] not in ("@items", "@values"):
        return None
    if len(rest) == 1:
        return MAX_NAMES
    if len(rest) > 2:
        return None
    if rest[1] == "@keys":
        return MAX_ID
    if field == "attributes":
        return MAX_VALUE  # whatever the attribute's name
    return 0 if rest[1] in ("@items", "@values") else None


def device_variable(
    driver: str,
    attributes: Mapping[str, Any],
    capacity: Mapping[str, Any],
    allow_multiple: bool = False,
) -> Any:
    """The value of `device` for a device as published: `attributes` and `capacity` are the raw JSON of a v1
    device.

    Raises `EvaluationError` for an attribute without a usable value, as upstream fails such a device.
    """
    by_domain: dict[str, dict[str, Any]] = {}
    for name, attribute in attributes.items():
        domain, short = _domain_and_name(name, driver)
        by_domain.setdefault(domain, {})[short] = _attribute(name, attribute)
    capacities: dict[str, dict[str, Any]] = {}
    for name, entry in capacity.items():
        domain, short = _domain_and_name(name, driver)
        capacities.setdefault(domain, {})[short] = _quantity(name, entry)
    return {
        "driver": driver,
        "allowMultipleAllocations": allow_multiple,
        "attributes": DefaultMap(by_domain),
        "capacity": DefaultMap(capacities),
    }


def _attribute(name: str, attribute: Any) -> Any:
    """An attribute's one value. Where several are set, lists win over scalars, as upstream looks at them
    first.
    """
    for field in ("ints", "bools", "strings"):
        if attribute.get(field) is not None:
            return list(attribute[field])
    if attribute.get("versions") is not None:
        return [_version(name, version) for version in attribute["versions"]]
    for field in ("int", "bool", "string"):
        if attribute.get(field) is not None:
            return attribute[field]
    if attribute.get("version") is not None:
        return _version(name, attribute["version"])
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _version(name: str, text: str) -> Any:
    try:
        return parse_semver(text)
    except EvaluationError as problem:
        raise EvaluationError(f"attribute {name}: parse semantic version: {problem.message}") from None


def _quantity(name: str, entry: Any) -> Any:
    value = entry.get("value") if isinstance(entry, Mapping) else entry
    try:
        return parse_quantity(str(value))
    except EvaluationError as problem:
        raise EvaluationError(f"capacity {name}: {problem.message}") from None
