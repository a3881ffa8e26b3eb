"""Every field that resource.k8s.io/v1 of 1.37 has is either taken or known not to be: read from the Go types,
so that a newer version of the pins tells what is new."""

from __future__ import annotations

import re

import pytest
from harness import oracle

from sharing_affinity.api import objects

pytestmark = pytest.mark.differential

TAKEN = {
    "ResourceSliceSpec": {*objects._SLICE_FIELDS} - {"sharingAffinity"},
    "Device": {*objects._DEVICE_FIELDS},
    "DeviceAttribute": {"int", "bool", "string", "version"},
    "DeviceCapacity": {"value", "requestPolicy"},
    "CapacityRequestPolicy": {"default", "validValues", "validRange"},
    "CapacityRequestPolicyRange": {"min", "max", "step"},
    "DeviceCounterConsumption": {"counterSet", "counters"},
    "DeviceClaim": {"requests", "constraints", "config"},
    "DeviceRequest": {"name", "exactly", "firstAvailable"},
    "ExactDeviceRequest": {*objects._SPEC_FIELDS} - {"name"},
    "DeviceSubRequest": {*objects._SPEC_FIELDS} - {"adminAccess"},
    "DeviceConstraint": {"requests", "matchAttribute", "distinctAttribute"},
    "DeviceToleration": {"key", "operator", "value", "effect", "tolerationSeconds"},
}
#: Refused with a diagnosis; tests/unit/engine/test_not_taken.py has each of them.
NOT_TAKEN = {
    "ResourceSliceSpec": {"skipNodeOperations", "partitionTypeAttribute"},
    "Device": {"nodeAllocatableResourceMappings", "nodeAllocatableResources"},
    "DeviceAttribute": {"ints", "bools", "strings", "versions"},
    "DeviceCounterConsumption": {"compatibilityGroups"},
    "ExactDeviceRequest": {"derivedAttributes"},
    "DeviceSubRequest": {"derivedAttributes"},
}


@pytest.fixture(scope="module")
def source() -> str:
    return (oracle.module_directory("k8s.io/api") / "resource/v1/types.go").read_text()


@pytest.mark.parametrize("name", TAKEN)
def test_all_fields_are_known(source: str, name: str) -> None:
    body = re.search(rf"\ntype {name} struct {{(.*?)\n}}", source, re.DOTALL)
    assert body is not None
    assert set(re.findall(r'json:"([^",]+)', body[1])) == TAKEN[name] | NOT_TAKEN.get(name, set())
