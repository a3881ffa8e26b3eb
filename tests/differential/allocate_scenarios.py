"""Random small clusters for comparing the device search with upstream's allocator.

Every pool is an affinity pool for us and an ordinary one for Go: ``fenced`` adds what only we need (the
taint, the metadata slices, the key ``k=A`` that every claim yields), so that affinity never decides and
everything else must be equal. What upstream's API validation excludes is not generated: it could not be
stored.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from harness import objects as o

JSON = dict[str, Any]

DRIVERS = ("a.example.com", "b.example.com")
ZONES = ("z1", "z2")
KEY_CONFIGS = [o.config({"k": "A"}, driver=driver) for driver in DRIVERS]
EXTRACTOR = {"name": "k", "expression": "object.k"}
SELECTORS = (
    'device.driver == "a.example.com"',
    'device.attributes["a.example.com"].kind == "x"',
    'device.attributes[device.driver].kind == "y"',
    "device.attributes[device.driver].index < 3",
    'device.attributes[device.driver].version.isGreaterThan(semver("1.1.0"))',
    "device.allowMultipleAllocations",
    'device.capacity[device.driver].slots.compareTo(quantity("4")) >= 0',
)


@dataclass
class Scenario:
    """A cluster without affinity, as Go sees it, and the features it uses."""

    nodes: list[JSON]
    classes: list[JSON]
    slices: list[JSON]
    claims: list[JSON]
    allocated: list[JSON]
    rules: list[JSON] = field(default_factory=list)
    features: set[str] = field(default_factory=set)


def generate(seed: int) -> Scenario:
    return _Generator(random.Random(seed)).scenario()


class _Generator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.features: set[str] = set()
        self.capacities: dict[tuple[str, str, str], JSON] = {}
        self.shareable: dict[tuple[str, str, str], bool] = {}
        self.places: dict[tuple[str, str, str], str] = {}

    def chance(self, percent: int, feature: str = "") -> bool:
        yes = self.rng.random() * 100 < percent
        if yes and feature:
            self.features.add(feature)
        return yes

    def scenario(self) -> Scenario:
        rng = self.rng
        nodes = [o.node(f"n{i}", {"zone": rng.choice(ZONES)}) for i in range(rng.choice((1, 1, 2)))]
        slices = [s for i in range(rng.choice((1, 2, 2, 3))) for s in self.pool(i, nodes)]
        classes = [self.device_class(i) for i in range(2)]
        claims = [self.claim(f"c{i}") for i in range(rng.choice((1, 1, 1, 2)))]
        allocated = self.holders()
        rules = []
        if self.chance(9, "rule"):
            driver = rng.choice(DRIVERS)
            selector = {"driver": driver, "device": f"d{rng.randrange(3)}"}
            taint = {"key": "rule", "value": "v", "effect": rng.choice(("NoSchedule", "NoExecute", "None"))}
            rules.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceTaintRule",
                    "metadata": o.meta("rule"),
                    "spec": {"deviceSelector": selector, "taint": taint},
                }
            )
        return Scenario(nodes, classes, slices, claims, allocated, rules, self.features)

    # --- pools ---

    def pool(self, index: int, nodes: list[JSON]) -> list[JSON]:
        rng = self.rng
        driver, name = rng.choice(DRIVERS), f"p{index}"
        where = self.where(nodes)
        counters = self.chance(30, "counters")
        members: list[JSON] = []
        number = 0
        for part in range(rng.choice((1, 1, 2))):
            devices = []
            for _ in range(rng.choice((2, 2, 3, 4))):
                devices.append(self.device(driver, name, f"d{number}", where, counters, nodes))
                number += 1
            # Names decide the order, and are not in the order of creation.
            members.append(
                o.device_slice(devices, f"s{rng.randrange(90)}-{name}-{part}", name, driver=driver)
            )
        if len(members) > 1:
            self.features.add("several slices")
        if counters:
            sets = [
                {"name": s, "counters": {c: {"value": str(rng.choice((1, 2, 3)))} for c in ("mem", "cores")}}
                for s in ("one", "two")
            ]
            members.append(o.device_slice(None, f"counters-{name}", name, driver=driver, sharedCounters=sets))
        # A duplicate makes the whole pool invalid here, and upstream only where both devices are seen.
        if "perDeviceNodeSelection" not in where and self.chance(5, "duplicate device"):
            twin = copy.deepcopy(members[0]["spec"]["devices"][0])
            members[-1]["spec"].setdefault("devices", []).append(twin)
            if counters:
                members[-1]["spec"].pop("sharedCounters", None)
        count = len(members) + (1 if self.chance(4, "incomplete") else 0)
        generation = 1
        if self.chance(6, "old generation"):
            old = copy.deepcopy(members[0])
            old["metadata"] = o.meta(f"old-{name}")
            generation = 2
            members.append(old)
        for member in members:
            spec = member["spec"]
            spec.pop("nodeName", None)
            spec.update(where)
            is_old = member["metadata"]["name"].startswith("old-")
            spec["pool"] = {
                "name": name,
                "generation": 1 if is_old else generation,
                "resourceSliceCount": 1 if is_old else count,
            }
            if "perDeviceNodeSelection" in where and "devices" not in spec:
                spec.pop("perDeviceNodeSelection")
                spec["allNodes"] = True
        return members

    def where(self, nodes: list[JSON]) -> JSON:
        kind = self.rng.choice(("node", "node", "node", "all", "selector", "device"))
        if kind == "node":
            return {"nodeName": self.rng.choice(nodes)["metadata"]["name"]}
        if kind == "all":
            self.features.add("node selection")
            return {"allNodes": True}
        self.features.add("node selection")
        if kind == "selector":
            return {"nodeSelector": self.selector()}
        return {"perDeviceNodeSelection": True}

    def selector(self) -> JSON:
        requirement = {"key": "zone", "operator": "In", "values": [self.rng.choice(ZONES)]}
        return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}

    def device(
        self, driver: str, pool: str, name: str, where: JSON, counters: bool, nodes: list[JSON]
    ) -> JSON:
        rng = self.rng
        device: JSON = {
            "name": name,
            "attributes": {
                "kind": {"string": rng.choice("xy")},
                "index": {"int": rng.randrange(5)},
                "version": {"version": f"1.{rng.randrange(3)}.0"},
            },
        }
        if self.chance(80):
            device["attributes"][f"{driver}/group" if self.chance(50) else "group"] = {
                rng.choice(("string", "string", "bool")): rng.choice(("g", "h"))
            }
            for value in device["attributes"].values():
                if "bool" in value:
                    value["bool"] = value["bool"] == "g"
        if self.chance(60, "shareable"):
            device["allowMultipleAllocations"] = True
        if self.chance(75):
            device["capacity"] = {"slots": self.capacity("allowMultipleAllocations" in device)}
            if self.chance(25):
                device["capacity"]["memory"] = {"value": rng.choice(("2", "1500m", "4Gi"))}
        if counters and self.chance(70):
            device["consumesCounters"] = [
                {"counterSet": s, "counters": {rng.choice(("mem", "cores")): {"value": rng.choice("112")}}}
                for s in rng.choice((["one"], ["two"], ["one", "two"]))
            ]
        if self.chance(8, "taint"):
            effect = rng.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": rng.choice(("t1", "t2")), "value": "v", "effect": effect}]
        if self.chance(8, "binding conditions"):
            device.update(bindingConditions=["ready"], bindingFailureConditions=["failed"])
            if self.chance(50):
                device["bindsToNode"] = True
        if "perDeviceNodeSelection" in where:
            device.update(
                rng.choice(
                    (
                        {"nodeName": rng.choice(nodes)["metadata"]["name"]},
                        {"allNodes": True},
                        {"nodeSelector": self.selector()},
                    )
                )
            )
        key = (driver, pool, name)
        self.capacities[key] = device.get("capacity", {})
        self.shareable[key] = "allowMultipleAllocations" in device
        return device

    def capacity(self, shareable: bool) -> JSON:
        rng = self.rng
        value = rng.choice((2, 3, 4, 8))
        result: JSON = {"value": str(value)}
        if not shareable or self.chance(20):
            return result
        kind = rng.choice(("default", "range", "step", "fraction", "values"))
        self.features.add(f"policy {kind}")
        match kind:
            case "default":
                result["requestPolicy"] = {"default": rng.choice("01")}
            case "range":
                result["requestPolicy"] = {"default": "1", "validRange": {"min": "1", "max": str(value)}}
            case "step":
                limits = {"min": "1", "max": str(value - (value + 1) % 2), "step": "2"}
                result["requestPolicy"] = {"default": "1", "validRange": limits}
            case "fraction":
                limits = {"min": "500m", "step": "200m"}
                result["requestPolicy"] = {"default": "500m", "validRange": limits}
            case "values":
                result["requestPolicy"] = {"default": "1", "validValues": ["1", "2"]}
        return result

    # --- classes and claims ---

    def device_class(self, index: int) -> JSON:
        rng = self.rng
        selectors = []
        if self.chance(25, "class selector"):
            selectors.append(o.cel(rng.choice(SELECTORS)))
        result = o.device_class(f"class{index}", selectors=selectors)
        if self.chance(30, "class config"):
            result["spec"]["config"] = [o.config({"from": f"class{index}"}, driver="other.example.com")]
        return result

    def claim(self, name: str) -> JSON:
        rng = self.rng
        requests = []
        for index in range(rng.choice((1, 1, 1, 1, 2, 2, 4))):
            if self.chance(25, "firstAvailable"):
                alternatives = [
                    {"name": f"s{j}", **self.spec(sub=True)} for j in range(rng.choice((2, 2, 3)))
                ]
                requests.append({"name": f"r{index}", "firstAvailable": alternatives})
            else:
                requests.append({"name": f"r{index}", "exactly": self.spec()})
        configs = list(KEY_CONFIGS)
        if self.chance(40, "config"):
            configs.append(o.config({"x": 1}, self.some_names(requests), driver="other.example.com"))
        constraints = []
        if self.chance(35):
            attribute = rng.choice(("group", "kind", "index"))
            kind = rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
            self.features.add(kind)
            constraint: JSON = {kind: f"{rng.choice(DRIVERS)}/{attribute}"}
            if self.chance(40):
                constraint["requests"] = self.some_names(requests)
            constraints.append(constraint)
        return o.claim(name, requests=requests, configs=configs, constraints=constraints)

    def some_names(self, requests: list[JSON]) -> list[str]:
        names = [r["name"] for r in requests]
        names += [f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", [])]
        return self.rng.sample(names, self.rng.randrange(1, len(names) + 1))

    def spec(self, sub: bool = False) -> JSON:
        rng = self.rng
        spec: JSON = {"deviceClassName": rng.choice(("class0", "class1"))}
        if self.chance(18, "request selector"):
            spec["selectors"] = [o.cel(rng.choice(SELECTORS))]
        if self.chance(7, "All"):
            spec["allocationMode"] = "All"
        elif self.chance(25, "count"):
            spec.update(allocationMode="ExactCount", count=rng.choice((2, 2, 3)))
        else:
            spec.update(allocationMode="ExactCount", count=1)
        if not sub and self.chance(8, "admin"):
            # Without capacity: what admin access needs of a full device is our own rule (settled semantics
            # 7).
            spec["adminAccess"] = True
            spec["selectors"] = [*spec.get("selectors", []), o.cel("!device.allowMultipleAllocations")]
        elif self.chance(35, "capacity request"):
            amounts = ("1", "2", "3", "750m", "1100m", "9223372036854775807", "2Ei")
            requests = {"slots": rng.choices(amounts, (5, 5, 3, 4, 5, 1, 1))[0]}
            if self.chance(10):
                requests["memory"] = "1"
            spec["capacity"] = {"requests": requests}
        if self.chance(15, "toleration"):
            spec["tolerations"] = [
                rng.choice(
                    (
                        {"key": "t1", "operator": "Exists"},
                        {"operator": "Exists", "effect": "NoSchedule"},
                        {"key": "t2", "operator": "Equal", "value": "v"},
                        {"key": "rule", "operator": "Exists", "effect": "NoExecute"},
                    )
                )
            ]
        return spec

    # --- what is held already ---

    def holders(self) -> list[JSON]:
        rng = self.rng
        held: list[JSON] = []
        for index, (driver, pool, device) in enumerate(sorted(self.capacities)):
            if not self.chance(12, "holder"):
                continue
            share = self.shareable[(driver, pool, device)] and not self.chance(10)
            result: JSON = {"request": "r0", "driver": driver, "pool": pool, "device": device}
            if share:
                result["shareID"] = f"00000000-0000-4000-8000-{index:012d}"
                if self.capacities[(driver, pool, device)]:
                    result["consumedCapacity"] = {"slots": rng.choice(("0", "1", "1500m", "2"))}
            raw = o.claim(f"held{index}", requests=[o.request("r0", "class0")], configs=KEY_CONFIGS)
            raw["status"] = {
                "allocation": {
                    "devices": {
                        "results": [result],
                        "config": [{"source": "FromClaim", **c} for c in KEY_CONFIGS],
                    },
                    "allocationTimestamp": o.EPOCH,
                }
            }
            held.append(raw)
        return held


def for_go(scenario: Scenario) -> JSON:
    """The oracle's request. Rules are merged into the devices, as the scheduler's tracker does."""
    slices = copy.deepcopy(scenario.slices)
    for rule in scenario.rules:
        selector = rule["spec"]["deviceSelector"]
        for member in slices:
            for device in member["spec"].get("devices", []):
                if member["spec"]["driver"] == selector["driver"] and device["name"] == selector["device"]:
                    device.setdefault("taints", []).append(rule["spec"]["taint"])
    return {
        "slices": slices,
        "classes": scenario.classes,
        "claims": scenario.claims,
        "allocated": scenario.allocated,
        "nodes": scenario.nodes,
        "features": ["DRAFractionalCapacityRange"],
    }


def fenced(scenario: Scenario) -> list[JSON]:
    """The same cluster for us: every device fenced, a metadata slice for every pool."""
    slices = copy.deepcopy(scenario.slices)
    newest: dict[tuple[str, str], int] = {}
    for member in slices:
        pool = (member["spec"]["driver"], member["spec"]["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), member["spec"]["pool"]["generation"])
        for device in member["spec"].get("devices", []):
            device["taints"] = [o.FENCE, *device.get("taints", [])]
    metadata = []
    for (driver, pool), generation in newest.items():
        count = max(
            m["spec"]["pool"]["resourceSliceCount"]
            for m in slices
            if (m["spec"]["driver"], m["spec"]["pool"]["name"]) == (driver, pool)
            and m["spec"]["pool"]["generation"] == generation
        )
        metadata.append(
            o.metadata_slice([EXTRACTOR], f"meta-{driver}-{pool}", pool, generation, count + 1, driver=driver)
        )
    return [
        *scenario.nodes,
        *scenario.classes,
        *scenario.rules,
        *slices,
        *metadata,
        *scenario.allocated,
        *scenario.claims,
    ]
