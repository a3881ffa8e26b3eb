"""What the device search of this version does not take: each refused as a whole, with the field's path; and
nothing else stops for it."""

from __future__ import annotations

from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World

from sharing_affinity.engine import Placed, Reason

JSON = dict[str, Any]
SLICES: dict[str, tuple[JSON, JSON, str]] = {
    # Feature: fields of the slice's spec, fields of its device, and the path that is named.
    "lists of strings": ({}, {"attributes": {"a": {"strings": ["x"]}}}, "devices[0].attributes.a.strings"),
    "lists of ints": ({}, {"attributes": {"a": {"ints": [1]}}}, "devices[0].attributes.a.ints"),
    "lists of bools": ({}, {"attributes": {"a": {"bools": [True]}}}, "devices[0].attributes.a.bools"),
    "lists of versions": ({}, {"attributes": {"a": {"versions": ["1.0.0"]}}}, "attributes.a.versions"),
    "compatibility groups": (
        {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "4"}}}]},
        {
            "consumesCounters": [
                {"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["g"]}
            ]
        },
        "devices[0].consumesCounters[0].compatibilityGroups",
    ),
    "node-allocatable mappings": (
        {},
        {"nodeAllocatableResourceMappings": {"cpu": {"quantity": "1"}}},
        "devices[0].nodeAllocatableResourceMappings",
    ),
    "node-allocatable resources": (
        {},
        {"nodeAllocatableResources": {"cpu": "1"}},
        "devices[0].nodeAllocatableResources",
    ),
    "optional node operations": ({"skipNodeOperations": ["Prepare"]}, {}, "spec.skipNodeOperations"),
    "partition types": ({"partitionTypeAttribute": "type"}, {}, "spec.partitionTypeAttribute"),
    "shared consumable capacity": (
        {},
        {"capacity": {"c": {"value": "1", "consumesCounters": [{"counterSet": "s"}]}}},
        "devices[0].capacity.c.consumesCounters",
    ),
    "a policy of tomorrow": (
        {},
        {"capacity": {"c": {"value": "1", "requestPolicy": {"default": "1", "curve": "log"}}}},
        "devices[0].capacity.c.requestPolicy.curve",
    ),
    "a taint of tomorrow": ({}, {"taints": [{**o.FENCE, "until": "noon"}]}, "devices[0].taints[1].until"),
}
CLAIMS: dict[str, tuple[JSON, str]] = {
    "derived attributes": (
        {"requests": [o.request(derivedAttributes={"a": {"expression": "1"}})]},
        "spec.devices.requests[0].exactly.derivedAttributes",
    ),
    "derived attributes of an alternative": (
        {
            "requests": [
                {
                    "name": "nic",
                    "firstAvailable": [
                        {
                            "name": "a",
                            "deviceClassName": o.CLASS,
                            "derivedAttributes": {"a": {}, "b": {"x": 1}},
                        }
                    ],
                }
            ]
        },
        "spec.devices.requests[0].firstAvailable[0].derivedAttributes",
    ),
    "a mode of tomorrow": (
        {"requests": [o.request(allocationMode="Some")]},
        "spec.devices.requests[0].exactly.allocationMode",
    ),
    "a constraint of tomorrow": (
        {"constraints": [{"nearAttribute": "a/b"}]},
        "spec.devices.constraints[0]",
    ),
    "a config of tomorrow": ({"config": [{"clear": {"x": 1}}]}, "spec.devices.config[0]"),
    "a selector of tomorrow": (
        {"requests": [o.request(selectors=[{"rego": {"expression": "x"}}])]},
        "spec.devices.requests[0].exactly.selectors[0]",
    ),
    "a field of tomorrow": ({"fairness": {"share": 1}}, "spec.devices.fairness"),
}


@pytest.mark.parametrize("feature", SLICES)
def test_a_pool_that_uses_it_takes_nothing_and_says_which_field(feature: str) -> None:
    spec, device, path = SLICES[feature]
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device(**device)], **spec))
    table = w.engine.lock_table()[0]
    assert (table.status, table.reason) == (False, "Unsupported")
    assert path in table.message
    assert path in w.refuse("pod", "A").message
    # Another pool goes on.
    w.show(o.node("node-b"), o.metadata_slice(pool="node-b"), o.device_slice(pool="node-b"))
    assert isinstance(w.decide("pod"), Placed)


@pytest.mark.parametrize("feature", CLAIMS)
def test_a_claim_that_uses_it_is_refused_and_says_which_field(feature: str) -> None:
    devices, path = CLAIMS[feature]
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice())
    raw = o.claim("odd", "A")
    raw["spec"]["devices"].update(devices)
    w.show(raw, o.pod("odd"))
    refused = w.decide("odd")
    assert refused.reason is Reason.UNSUPPORTED  # type: ignore[union-attr]
    assert path in refused.message  # type: ignore[union-attr]
    assert w.place("plain", "A") == ["eth1"]


def test_a_class_that_uses_fields_of_tomorrow_is_refused_and_named() -> None:
    w = World(o.node(), o.device_class(shape={"round": True}), o.metadata_slice(), o.device_slice())
    refused = w.refuse("pod", "A")
    assert refused.reason is Reason.UNSUPPORTED
    assert f"DeviceClass {o.CLASS} uses spec.shape" in refused.message
    w.show(o.device_class())
    assert isinstance(w.decide("pod"), Placed)
