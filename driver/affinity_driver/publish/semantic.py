"""Is what the API server holds what we want it to hold? Pure.

The server writes back more and other bytes than it was sent: quantities in canonical form, defaults, the
taint's time. Comparing bytes would rewrite the slices for ever; not comparing would miss that a field was
dropped because its feature is off. So both questions are asked here, by value:

* ``differences(sent, got)``: every path where the sent value is not in the answer. Fields the server added
are not
  differences.
* ``same(wanted, existing)``: neither lacks anything of the other, apart from what only the server sets.
"""

from __future__ import annotations

from collections.abc import Iterator

from affinity_driver.json_types import Json
from sharing_affinity.api import quantity

SERVER_ONLY = frozenset({"timeAdded"})
"""Keys inside a spec that the server fills in and that are compared only when we set them."""

QUANTITIES = frozenset({"capacity", "counters"})
"""Fields whose strings are quantities; an attribute ``1.0`` is not the attribute ``1``."""

GATES = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "taints": "DRADeviceTaints",
    "consumesCounters": "DRAPartitionableDevices",
    "sharedCounters": "DRAPartitionableDevices",
    "perDeviceNodeSelection": "DRAPartitionableDevices",
    "bindingConditions": "DRADeviceBindingConditions",
    "bindingFailureConditions": "DRADeviceBindingConditions",
    "bindsToNode": "DRADeviceBindingConditions",
    "sharingAffinity": "DRASharingAffinity",
}
"""The feature gate without which the API server silently drops a field of a ResourceSlice."""


def differences(sent: Json, got: Json, path: str = "", quantities: bool = False) -> Iterator[str]:
    """The paths (``spec.devices[0].taints``) of all that ``got`` lacks or has otherwise."""
    if _empty(sent) and _empty(got):
        return
    if isinstance(sent, dict) and isinstance(got, dict):
        for key, value in sent.items():
            inner = quantities or key in QUANTITIES
            yield from differences(value, got.get(key), f"{path}.{key}" if path else key, inner)
    elif isinstance(sent, list) and isinstance(got, list):
        if len(sent) != len(got):
            yield f"{path} ({len(sent)} sent, {len(got)} stored)"
            return
        for index, (left, right) in enumerate(zip(sent, got, strict=True)):
            yield from differences(left, right, f"{path}[{index}]", quantities)
    elif not _equal(sent, got, quantities):
        yield path


def same(wanted: Json, existing: Json, quantities: bool = False) -> bool:
    """Whether both say the same; what only the server sets does not count."""
    if _empty(wanted) and _empty(existing):
        return True
    if isinstance(wanted, dict) and isinstance(existing, dict):
        keys = (wanted.keys() | existing.keys()) - (SERVER_ONLY - wanted.keys())
        return all(same(wanted.get(key), existing.get(key), quantities or key in QUANTITIES) for key in keys)
    if isinstance(wanted, list) and isinstance(existing, list):
        pairs = zip(wanted, existing, strict=False)
        return len(wanted) == len(existing) and all(same(left, right, quantities) for left, right in pairs)
    return _equal(wanted, existing, quantities)


def gates_of(paths: list[str]) -> list[str]:
    """The feature gates whose absence explains dropped ``paths``, sorted; empty where none is known."""
    return sorted({gate for path in paths for field, gate in GATES.items() if field in path})


def _equal(left: Json, right: Json, quantities: bool) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if quantities and isinstance(left, str) and isinstance(right, str) and left != right:
        try:
            return quantity.parse(left) == quantity.parse(right)
        except quantity.QuantityError:
            return False
    return bool(left == right)


def _empty(value: Json) -> bool:
    return value is None or value is False or value in ({}, [], "")
