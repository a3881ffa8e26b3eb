"""The schemas of our two kinds, on a real API server: every limit on both sides, and what may change.

The objects are as a driver would write them; each case changes one thing. A refusal has to name the field,
since that is all its author sees.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.errors import ApiError

SLICES = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"
POOLS = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinitypools"
LIMIT = 10240  # 10 Ki, the KEP's bound for one expression, in bytes

Object = dict[str, Any]
Change = Callable[[Object], None]


def metadata_slice() -> Object:
    return {
        "apiVersion": "sharingaffinity.dev/v1alpha1",
        "kind": "SharingAffinitySlice",
        "metadata": {"name": f"crd-{uuid.uuid4().hex[:10]}"},
        "spec": {
            "driver": "nic.sharingaffinity.dev",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 2},
            "sharingAffinity": [{"name": "subnet", "expression": "object.subnet"}],
        },
    }


def pool_view() -> Object:
    return {
        "apiVersion": "sharingaffinity.dev/v1alpha1",
        "kind": "SharingAffinityPool",
        "metadata": {"name": f"crd-{uuid.uuid4().hex[:10]}"},
        "spec": {"driver": "nic.sharingaffinity.dev", "pool": "node-a"},
    }


class Objects:
    """Creates objects on the control plane and takes away what it created."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made: list[str] = []

    def create(self, obj: Object) -> Object:
        path = SLICES if obj["kind"] == "SharingAffinitySlice" else POOLS
        stored: Object = self.cluster.request("POST", path, obj)
        self.made.append(f"{path}/{obj['metadata']['name']}")
        return stored

    def replace(self, obj: Object) -> Object:
        path = SLICES if obj["kind"] == "SharingAffinitySlice" else POOLS
        stored: Object = self.cluster.request("PUT", f"{path}/{obj['metadata']['name']}", obj)
        return stored


@pytest.fixture(params=["control_plane", "control_plane_1_36"], ids=["newest", "1.36"])
def objects(request: pytest.FixtureRequest) -> Iterator[Objects]:
    """On the newest Kubernetes and on the oldest that we support: limits of CEL rules differ by version."""
    made = Objects(request.getfixturevalue(request.param))
    yield made
    for path in made.made:
        made.cluster.request("DELETE", path)


def entries(number: int) -> Change:
    def change(obj: Object) -> None:
        names = [f"key{i}" for i in range(number)]
        obj["spec"]["sharingAffinity"] = [{"name": name, "expression": "object.subnet"} for name in names]

    return change


def expression(text: str) -> Change:
    return lambda obj: obj["spec"]["sharingAffinity"][0].update(expression=text)


def key(text: str) -> Change:
    return lambda obj: obj["spec"]["sharingAffinity"][0].update(name=text)


def spec(**fields: Any) -> Change:
    return lambda obj: obj["spec"].update(fields)


def pool(**fields: Any) -> Change:
    return lambda obj: obj["spec"]["pool"].update(fields)


def without(*path: str) -> Change:
    def change(obj: Object) -> None:
        for step in path[:-1]:
            obj = obj[step]
        del obj[path[-1]]

    return change


def node(**fields: Any) -> Change:
    """Replace the node field by the given ones."""

    def change(obj: Object) -> None:
        del obj["spec"]["nodeName"]
        obj["spec"].update(fields)

    return change


TERM = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}
FIELD_TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}

ACCEPTED: dict[str, Change] = {
    "as a driver writes it": lambda obj: None,
    "8 extractors": entries(8),
    "expression of 1 character": expression("'"),
    "expression of 10240 bytes": expression("x" * LIMIT),
    "expression of 10240 bytes, 2 per character": expression("é" * (LIMIT // 2)),
    "expression of 10240 bytes, 4 per character": expression("🦀" * (LIMIT // 4)),
    "expression that admission alone cannot judge": expression("this is not CEL"),
    "key of 63 characters": key("k" * 63),
    "key with a domain": key("example.com/subnet_id"),
    "driver of 63 characters": spec(driver="d" * 63),
    "pool name of several segments": pool(name="rack-1/shelf.2"),
    "pool name of 253 characters": pool(name="p" * 253),
    "generation 0": pool(generation=0),
    "generation 2^63-1": pool(generation=2**63 - 1),
    "count 1": pool(resourceSliceCount=1),
    "allNodes": node(allNodes=True),
    "nodeSelector on labels": node(nodeSelector={"nodeSelectorTerms": [TERM]}),
    "nodeSelector on fields": node(nodeSelector={"nodeSelectorTerms": [FIELD_TERM]}),
}

REFUSED: dict[str, tuple[Change, str]] = {
    "no extractor": (entries(0), "spec.sharingAffinity"),
    "9 extractors": (entries(9), "spec.sharingAffinity"),
    "expression of no characters": (expression(""), "spec.sharingAffinity[0].expression"),
    "expression of 10241 bytes": (expression("x" * (LIMIT + 1)), "spec.sharingAffinity[0].expression"),
    "expression of 10242 bytes, 2 per character": (
        expression("é" * (LIMIT // 2 + 1)),
        "an expression has at most 10240 bytes",
    ),
    "expression of 10241 bytes, 4 in the last character": (
        expression("x" * (LIMIT - 3) + "🦀"),
        "an expression has at most 10240 bytes",
    ),
    "key of no characters": (key(""), "spec.sharingAffinity[0].name"),
    "key of 64 characters": (key("k" * 64), "spec.sharingAffinity[0].name"),
    "key with a blank": (key("sub net"), "spec.sharingAffinity[0].name"),
    "the same key twice": (
        spec(sharingAffinity=[{"name": "a", "expression": "'x'"}, {"name": "a", "expression": "'y'"}]),
        "spec.sharingAffinity[1]",
    ),
    "extractor without name": (
        lambda obj: obj["spec"]["sharingAffinity"][0].pop("name"),
        "spec.sharingAffinity[0].name",
    ),
    "extractor without expression": (
        lambda obj: obj["spec"]["sharingAffinity"][0].pop("expression"),
        "spec.sharingAffinity[0].expression",
    ),
    "driver of no characters": (spec(driver=""), "spec.driver"),
    "driver of 64 characters": (spec(driver="d" * 64), "spec.driver"),
    "driver with upper case": (spec(driver="NIC.example.com"), "spec.driver"),
    "driver with a slash": (spec(driver="example.com/nic"), "spec.driver"),
    "pool name of no characters": (pool(name=""), "spec.pool.name"),
    "pool name of 254 characters": (pool(name="p" * 254), "spec.pool.name"),
    "pool name with an empty segment": (pool(name="a//b"), "spec.pool.name"),
    "generation -1": (pool(generation=-1), "spec.pool.generation"),
    "generation as text": (pool(generation="1"), "spec.pool.generation"),
    "count 0": (pool(resourceSliceCount=0), "spec.pool.resourceSliceCount"),
    "no spec": (without("spec"), "spec"),
    "no driver": (without("spec", "driver"), "spec.driver"),
    "no pool": (without("spec", "pool"), "spec.pool"),
    "no pool name": (without("spec", "pool", "name"), "spec.pool.name"),
    "no generation": (without("spec", "pool", "generation"), "spec.pool.generation"),
    "no count": (without("spec", "pool", "resourceSliceCount"), "spec.pool.resourceSliceCount"),
    "no extractors field": (without("spec", "sharingAffinity"), "spec.sharingAffinity"),
    "no node field": (without("spec", "nodeName"), "exactly one of nodeName, nodeSelector and allNodes"),
    "nodeName and allNodes": (spec(allNodes=True), "exactly one of nodeName, nodeSelector and allNodes"),
    "nodeName and nodeSelector": (
        spec(nodeSelector={"nodeSelectorTerms": [TERM]}),
        "exactly one of nodeName, nodeSelector and allNodes",
    ),
    "nodeSelector and allNodes": (
        node(allNodes=True, nodeSelector={"nodeSelectorTerms": [TERM]}),
        "exactly one of nodeName, nodeSelector and allNodes",
    ),
    "allNodes false": (node(allNodes=False), "spec.allNodes"),
    "nodeName of no characters": (spec(nodeName=""), "spec.nodeName"),
    "nodeName in upper case": (spec(nodeName="Node"), "spec.nodeName"),
    "nodeSelector without terms": (node(nodeSelector={"nodeSelectorTerms": []}), "spec.nodeSelector"),
    "nodeSelector with two terms": (
        node(nodeSelector={"nodeSelectorTerms": [TERM, TERM]}),
        "spec.nodeSelector",
    ),
    "nodeSelector with an unknown operator": (
        node(nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}),
        "operator",
    ),
}


@pytest.mark.parametrize("change", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_slice_is_accepted(objects: Objects, change: Change) -> None:
    obj = metadata_slice()
    change(obj)
    stored = objects.create(obj)
    assert stored["spec"] == obj["spec"]  # nothing dropped, nothing defaulted


@pytest.mark.parametrize(("change", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_slice_is_refused(objects: Objects, change: Change, named: str) -> None:
    obj = metadata_slice()
    change(obj)
    with pytest.raises(ApiError) as refusal:
        objects.create(obj)
    assert refusal.value.status == 422
    assert named in refusal.value.message


def test_key_twice_is_called_a_duplicate(objects: Objects) -> None:
    obj = metadata_slice()
    obj["spec"]["sharingAffinity"] *= 2
    with pytest.raises(ApiError, match="Duplicate value"):
        objects.create(obj)


UNCHANGEABLE: dict[str, tuple[Change, str]] = {
    "driver": (spec(driver="other.example.com"), "driver is immutable"),
    "pool.name": (pool(name="node-b"), "pool.name is immutable"),
    "nodeName": (spec(nodeName="node-b"), "nodeName is immutable"),
    "nodeName to allNodes": (node(allNodes=True), "nodeName is immutable"),
}


@pytest.mark.parametrize(("change", "named"), UNCHANGEABLE.values(), ids=UNCHANGEABLE.keys())
def test_identity_of_a_slice_cannot_change(objects: Objects, change: Change, named: str) -> None:
    stored = objects.create(metadata_slice())
    change(stored)
    with pytest.raises(ApiError) as refusal:
        objects.replace(stored)
    assert refusal.value.status == 422
    assert named in refusal.value.message


def test_node_name_cannot_be_set_later(objects: Objects) -> None:
    obj = metadata_slice()
    node(allNodes=True)(obj)
    stored = objects.create(obj)
    del stored["spec"]["allNodes"]
    stored["spec"]["nodeName"] = "node-a"
    with pytest.raises(ApiError, match="nodeName is immutable"):
        objects.replace(stored)


CHANGEABLE: dict[str, Change] = {
    "generation and count": pool(generation=2, resourceSliceCount=3),
    "expression": expression("object.subnetID"),
    "key": key("vlan"),
    "one more extractor": entries(2),
}


@pytest.mark.parametrize("change", CHANGEABLE.values(), ids=CHANGEABLE.keys())
def test_what_a_republish_changes_may_change(objects: Objects, change: Change) -> None:
    stored = objects.create(metadata_slice())
    change(stored)
    assert objects.replace(stored)["spec"] == stored["spec"]


def test_node_selector_may_change(objects: Objects) -> None:
    obj = metadata_slice()
    node(nodeSelector={"nodeSelectorTerms": [TERM]})(obj)
    stored = objects.create(obj)
    stored["spec"]["nodeSelector"] = {"nodeSelectorTerms": [FIELD_TERM]}
    assert objects.replace(stored)["spec"]["nodeSelector"] == {"nodeSelectorTerms": [FIELD_TERM]}


def test_an_update_is_held_to_the_limits_too(objects: Objects) -> None:
    stored = objects.create(metadata_slice())
    entries(9)(stored)
    with pytest.raises(ApiError) as refusal:
        objects.replace(stored)
    assert refusal.value.status == 422


def test_extractors_survive_a_round_trip_unchanged(objects: Objects) -> None:
    """What the driver wrote is what is read and listed, character for character and in the same order."""
    obj = metadata_slice()
    obj["spec"]["sharingAffinity"] = [
        {"name": "z", "expression": 'has(object.vlan) ? string(object.vlan) : ""'},
        {"name": "a", "expression": '  object.kind == "Größe" // comment\n\t? "<&>" : \'\\u00e9 🦀\'  '},
    ]
    name = objects.create(obj)["metadata"]["name"]
    read = objects.cluster.request("GET", f"{SLICES}/{name}")
    assert read["spec"] == obj["spec"]
    listed = objects.cluster.request("GET", f"{SLICES}?fieldSelector=metadata.name%3D{name}")["items"]
    assert [item["spec"] for item in listed] == [obj["spec"]]


def test_a_slice_cannot_carry_devices(objects: Objects) -> None:
    """KEP: devices and sharingAffinity never in one slice. The kind lacks the field, so it is not stored."""
    obj = metadata_slice()
    obj["spec"]["devices"] = [{"name": "eth1"}]
    assert "devices" not in objects.create(obj)["spec"]
    path = f"{SLICES}?fieldValidation=Strict"
    with pytest.raises(ApiError, match=r'unknown field "spec\.devices"'):
        objects.cluster.request("POST", path, obj)


def condition(kind: str, status: str, reason: str = "Tested") -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_status_of_a_slice_is_a_subresource(objects: Objects) -> None:
    obj = metadata_slice()
    obj["status"] = {"estimatedCost": 7}
    stored = objects.create(obj)
    assert "status" not in stored  # only through the subresource

    stored["status"] = {
        "estimatedCost": 7,
        "conditions": [condition("Accepted", "True"), condition("Joined", "False", "Unfenced")],
    }
    wanted = copy.deepcopy(stored["status"])
    stored["spec"]["pool"]["generation"] = 5
    path = f"{SLICES}/{stored['metadata']['name']}/status"
    written = objects.cluster.request("PUT", path, stored)
    assert written["status"] == wanted
    assert written["spec"]["pool"]["generation"] == 1  # a status write changes no spec
    assert written["metadata"]["generation"] == 1

    written["spec"]["pool"]["generation"] = 6
    del written["status"]
    replaced = objects.replace(written)
    assert replaced["status"] == wanted  # and a spec write no status
    assert replaced["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("conditions", "named"),
    [
        ([condition("Accepted", "yes")], "status.conditions[0].status"),
        ([condition("Accepted", "True", "")], "status.conditions[0].reason"),
        ([condition("Accepted", "True"), condition("Accepted", "False")], "status.conditions[1]"),
        ([{"type": "Accepted", "status": "True"}], "status.conditions[0]"),
    ],
    ids=["status neither True nor False", "no reason", "one type twice", "fields missing"],
)
def test_conditions_have_the_usual_shape(objects: Objects, conditions: list[Object], named: str) -> None:
    stored = objects.create(metadata_slice())
    stored["status"] = {"conditions": conditions}
    with pytest.raises(ApiError) as refusal:
        objects.cluster.request("PUT", f"{SLICES}/{stored['metadata']['name']}/status", stored)
    assert refusal.value.status == 422
    assert named in refusal.value.message


def test_slices_are_found_by_driver_node_and_pool(objects: Objects) -> None:
    """A driver watches what is its own: field selectors, as ResourceSlices have them."""
    mine = metadata_slice()
    spec(driver="select.example.com", nodeName="node-x")(mine)
    pool(name="pool-x")(mine)
    other = metadata_slice()
    objects.create(mine)
    objects.create(other)
    for selector in ("spec.driver=select.example.com", "spec.nodeName=node-x", "spec.pool.name=pool-x"):
        found = objects.cluster.request("GET", f"{SLICES}?fieldSelector={selector.replace('=', '%3D', 1)}")
        assert [item["metadata"]["name"] for item in found["items"]] == [mine["metadata"]["name"]]


def device(name: str, holders: int) -> Object:
    return {
        "name": name,
        "state": "Locked",
        "lock": {"subnet": "a", "example.com/vlan": "12"},
        "capacity": {"slots": "16"},
        "freeCapacity": {"slots": str(16 - holders)},
        "holderCount": holders,
        "holders": [
            {"namespace": "team", "name": f"claim-{i}", "uid": str(uuid.uuid4()), "request": "nic/fast"}
            for i in range(holders)
        ],
    }


def view_status(devices: list[Object]) -> Object:
    return {
        "nodeName": "node-a",
        "generation": 3,
        "keys": ["subnet", "example.com/vlan"],
        "summary": "eth1 subnet=a (16)",
        "counts": {"devices": 2, "clean": 1, "locked": 1, "blocked": 0, "holders": 16},
        "devices": devices,
        "conditions": [condition("Usable", "True")],
    }


def test_view_holds_what_people_ask_for(objects: Objects) -> None:
    stored = objects.create(pool_view())
    stored["status"] = view_status([device("eth1", 16), {"name": "eth2", "state": "Clean", "holderCount": 0}])
    written = objects.cluster.request("PUT", f"{POOLS}/{stored['metadata']['name']}/status", stored)
    assert written["status"] == stored["status"]


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ([device("eth1", 17)], "status.devices[0].holders"),
        ([{"name": "eth1", "state": "Busy"}], "status.devices[0].state"),
        ([{"name": "eth1", "state": "Clean"}] * 2, "status.devices[1]"),
        ([{"name": f"d{i}", "state": "Clean"} for i in range(1025)], "status.devices"),
    ],
    ids=["17 holders", "unknown state", "one device twice", "1025 devices"],
)
def test_view_is_bounded(objects: Objects, devices: list[Object], named: str) -> None:
    stored = objects.create(pool_view())
    stored["status"] = view_status(devices)
    with pytest.raises(ApiError) as refusal:
        objects.cluster.request("PUT", f"{POOLS}/{stored['metadata']['name']}/status", stored)
    assert refusal.value.status == 422
    assert named in refusal.value.message


def test_the_largest_view_fits_into_the_store(objects: Objects) -> None:
    """1024 devices with 16 holders each exceed what etcd takes; with one each they fit."""
    stored = objects.create(pool_view())
    stored["status"] = view_status([device(f"eth{i}", 1) for i in range(1024)])
    written = objects.cluster.request("PUT", f"{POOLS}/{stored['metadata']['name']}/status", stored)
    assert len(written["status"]["devices"]) == 1024


@pytest.mark.parametrize("field", ["driver", "pool"])
def test_a_view_stands_for_one_pool(objects: Objects, field: str) -> None:
    stored = objects.create(pool_view())
    stored["spec"][field] = "other"
    with pytest.raises(ApiError, match="spec is immutable"):
        objects.replace(stored)


def test_tables_show_state_at_a_glance(objects: Objects) -> None:
    slice_ = objects.create(metadata_slice())
    slice_["status"] = {
        "conditions": [condition("Accepted", "True"), condition("Joined", "False", "Unfenced")]
    }
    objects.cluster.request("PUT", f"{SLICES}/{slice_['metadata']['name']}/status", slice_)
    table = objects.cluster.kubectl("get", "sas", slice_["metadata"]["name"]).split()
    assert {"DRIVER", "POOL", "GENERATION", "ACCEPTED", "JOINED", "REASON", "AGE"} <= set(table)
    assert {"nic.sharingaffinity.dev", "node-a", "True", "False", "Unfenced"} <= set(table)

    view = objects.create(pool_view())
    view["status"] = view_status([device("eth1", 2)])
    objects.cluster.request("PUT", f"{POOLS}/{view['metadata']['name']}/status", view)
    shown = objects.cluster.kubectl("get", "sap", view["metadata"]["name"])
    assert "eth1 subnet=a (16)" in shown
    assert {"DRIVER", "POOL", "USABLE", "DEVICES", "CLEAN", "LOCKED", "BLOCKED", "LOCKS"} <= set(
        shown.split()
    )


def test_both_kinds_are_in_one_category(objects: Objects) -> None:
    slice_, view = objects.create(metadata_slice()), objects.create(pool_view())
    names = objects.cluster.kubectl("get", "sharing-affinity", "--output=name").split()
    assert f"sharingaffinityslice.sharingaffinity.dev/{slice_['metadata']['name']}" in names
    assert f"sharingaffinitypool.sharingaffinity.dev/{view['metadata']['name']}" in names


def test_every_field_is_explained(control_plane: Cluster) -> None:
    """`kubectl explain` reads the published schema; the descriptions are the users' reference."""
    text = control_plane.kubectl("explain", "sas.spec.sharingAffinity")
    assert "expression" in text
    assert "-required-" in text
    assert "The affinity keys of the pool" in text
