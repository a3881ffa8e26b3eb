"""Views of the DRA objects and of the metadata slice: classes, claims, slices, taint rules.

Raw JSON survives in two places only, because it leaves again as it came: opaque parameters (kept as JSON
text, equal texts being one string) and the attributes and capacities that CEL sees.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sharing_affinity.api import names, record
from sharing_affinity.api.quantity import Quantity
from sharing_affinity.api.reader import Reader, once
from sharing_affinity.api.record import Record
from sharing_affinity.api.selectors import NodeSelector, read_node_selector

FROM_CLASS: Final = "FromClass"
FROM_CLAIM: Final = "FromClaim"


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Identity of an object. ``created`` is the creationTimestamp as text (it sorts), ``deleting`` its
    end."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created: str = ""
    deleting: bool = False


def read_meta(root: Reader) -> ObjectMeta:
    meta = root.obj("metadata")
    return ObjectMeta(
        namespace=sys.intern(meta.text("namespace")),
        name=meta.text("name", None),
        uid=meta.text("uid"),
        resource_version=meta.text("resourceVersion"),
        created=meta.text("creationTimestamp"),
        deleting=meta.has("deletionTimestamp"),
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One opaque config: of a claim, a class, or a stored allocation.

    ``requests`` empty means all. ``text`` is the JSON of the parameters, in their own key order.
    """

    source: str
    requests: tuple[str, ...]
    driver: str
    text: str

    @property
    def parameters(self) -> Any:
        """The decoded parameters, a fresh copy."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A device toleration; empty ``effect`` and, with Exists, empty ``key`` match all."""

    key: str
    operator: str
    value: str
    effect: str
    seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        if self.key and self.key != taint.key:
            return False
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and self.value == taint.value and bool(self.key)

    def as_json(self) -> dict[str, Any]:
        fields = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        result: dict[str, Any] = {name: value for name, value in fields.items() if value}
        if self.seconds is not None:
            result["tolerationSeconds"] = self.seconds
        return result


@dataclass(frozen=True, slots=True)
class Taint:
    """A device taint. ``added`` is its timeAdded in seconds, ``None`` when not stated."""

    key: str
    value: str
    effect: str
    added: float | None = None

    @property
    def is_fence(self) -> bool:
        return self.key == names.FENCE_KEY and self.effect == names.FENCE_EFFECT

    @property
    def blocks(self) -> bool:
        """Only these effects keep an allocator off; None and unknown ones do not."""
        return self.effect in ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What one request or subrequest asks for."""

    device_class: str
    selectors: tuple[str, ...]
    mode: str
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    capacity: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class SubRequest:
    """One alternative of a firstAvailable request."""

    name: str
    spec: RequestSpec


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request: ``exactly`` one spec, or the first of ``first_available`` that can be had."""

    name: str
    exactly: RequestSpec | None
    first_available: tuple[SubRequest, ...] = ()

    def alternatives(self) -> tuple[tuple[str, RequestSpec], ...]:
        """(result name, spec) of every way to serve it."""
        if self.exactly is not None:
            return ((self.name, self.exactly),)
        return tuple((f"{self.name}/{sub.name}", sub.spec) for sub in self.first_available)


@dataclass(frozen=True, slots=True)
class Constraint:
    """matchAttribute (``distinct`` False) or distinctAttribute over ``requests`` (empty: all)."""

    requests: tuple[str, ...]
    attribute: str
    distinct: bool


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """One allocated device. ``share_id`` is empty when the device is not shared; a negative stored
    consumption is read as nothing, so that it can never give capacity back."""

    request: str
    driver: str
    pool: str
    device: str
    admin: bool
    share_id: str
    consumed: Mapping[str, Quantity]

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        return (self.request, self.driver, self.pool, self.device, self.share_id)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A stored ``status.allocation``."""

    results: tuple[AllocationResult, ...]
    configs: tuple[DeviceConfig, ...]
    node_selector: NodeSelector | None
    timestamp: str
    binding_conditions: bool = False

    def fits(self, written: Record) -> bool:
        """Whether a claim's record is of this very allocation (H2)."""
        return record.matches(written, self.timestamp, [result.identity for result in self.results])


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim. ``owner_pod`` is the UID of the pod it was generated for, or empty."""

    meta: ObjectMeta
    owner_pod: str
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[DeviceConfig, ...]
    allocation: Allocation | None
    reserved_for: tuple[str, ...]
    record: Record | None
    pod_claim_name: str
    unsupported: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return (self.meta.namespace, self.meta.name)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass; ``configs`` have source FromClass and no requests."""

    meta: ObjectMeta
    selectors: tuple[str, ...]
    configs: tuple[DeviceConfig, ...]
    extended_resource: str
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extractor:
    """One affinity key and the CEL expression that produces its value."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How requests for a capacity are filled and rounded (KEP-5075)."""

    default: Quantity | None
    valid_values: tuple[Quantity, ...]
    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None
    has_range: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    value: Quantity
    policy: RequestPolicy | None


@dataclass(frozen=True, slots=True)
class CounterUse:
    """What a device draws from one counter set."""

    counter_set: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Device:
    """A device as published. ``attributes`` and ``capacity_json`` are raw, for CEL; ``content`` is all that
    CEL can see but the driver, as one string that equal devices share."""

    name: str
    attributes: Mapping[str, Any]
    capacity_json: Mapping[str, Any]
    capacity: Mapping[str, Capacity]
    allow_multiple: bool
    taints: tuple[Taint, ...]
    counters: tuple[CounterUse, ...]
    node_name: str
    node_selector: NodeSelector | None
    all_nodes: bool
    binds_to_node: bool
    binding_conditions: tuple[str, ...] | None
    binding_failure_conditions: tuple[str, ...]
    content: str
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A stock slice; ``extractors`` is the native field, should a server ever serve it."""

    meta: ObjectMeta
    driver: str
    pool: str
    generation: int
    count: int
    node_name: str
    node_selector: NodeSelector | None
    node_selector_json: Mapping[str, Any] | None
    all_nodes: bool
    per_device: bool
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Mapping[str, Quantity]], ...]
    extractors: tuple[Extractor, ...] = ()
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataSlice:
    """A SharingAffinitySlice. ``count`` counts all members of the pool, device and metadata slices
    together."""

    meta: ObjectMeta
    driver: str
    pool: str
    generation: int
    count: int
    extractors: tuple[Extractor, ...]
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule; an empty ``driver``, ``pool`` or ``device`` selects all."""

    meta: ObjectMeta
    driver: str
    pool: str
    device: str
    taint: Taint | None
    unsupported: tuple[str, ...] = ()

    def selects(self, driver: str, pool: str, device: str) -> bool:
        return (
            (not self.driver or self.driver == driver)
            and (not self.pool or self.pool == pool)
            and (not self.device or self.device == device)
        )

    def fences(self, driver: str, pool: str, device: str) -> bool:
        """Whether the rule surely puts the fence on a device: one with unknown fields may select fewer."""
        fence = self.taint is not None and self.taint.is_fence
        return fence and not self.unsupported and self.selects(driver, pool, device)


# --- claims -------------------------------------------------------------------------------------------------


def parse_claim(raw: object) -> Claim:
    """A ResourceClaim v1. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "ResourceClaim")
    metadata, status = root.obj("metadata"), root.obj("status")
    spec = _read_spec(root.obj("spec"))
    annotations = metadata.text_map("annotations")
    text = annotations.get(names.RECORD_ANNOTATION)
    return Claim(
        meta=read_meta(root),
        owner_pod=_owner_pod(metadata),
        requests=spec.requests,
        constraints=spec.constraints,
        configs=spec.configs,
        allocation=_allocation(status.obj("allocation")) if status.has("allocation") else None,
        reserved_for=tuple(r.text("uid") for r in status.each("reservedFor")),
        record=record.decode(text) if text is not None else None,
        pod_claim_name=annotations.get(names.POD_CLAIM_ANNOTATION, ""),
        unsupported=spec.unsupported,
    )


class _ClaimSpec(NamedTuple):
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[DeviceConfig, ...]
    unsupported: tuple[str, ...]


def _claim_spec(spec: Reader) -> _ClaimSpec:
    devices = spec.obj("devices")
    unsupported: list[str] = [*spec.unknown("devices"), *devices.unknown("requests", "constraints", "config")]
    requests = devices.many("requests", lambda r: _request(r, unsupported))
    seen: set[str] = set()
    for request in requests:
        if request.name in seen:
            raise devices.fail("requests", f"name {request.name!r} is used twice")
        seen.add(request.name)
    constraints = devices.many("constraints", lambda r: _constraint(r, unsupported))
    configs = _configs(devices, FROM_CLAIM, unsupported)
    return _ClaimSpec(requests, constraints, configs, tuple(unsupported))


_read_spec: Final = once(_claim_spec, "spec")


def parse_allocation(raw: object, claim_name: str = "") -> Allocation:
    """A ``status.allocation`` on its own, as it is read back or about to be written."""
    if not isinstance(raw, Mapping):
        raise Reader({}, "", ("ResourceClaim", "", claim_name)).fail("status.allocation", "is not an object")
    return _allocation(Reader(raw, "status.allocation", ("ResourceClaim", "", claim_name)))


def _owner_pod(metadata: Reader) -> str:
    for owner in metadata.each("ownerReferences"):
        if owner.flag("controller") and owner.text("kind") == "Pod":
            return owner.text("uid")
    return ""


def _request(reader: Reader, unsupported: list[str]) -> DeviceRequest:
    unsupported.extend(reader.unknown("name", "exactly", "firstAvailable"))
    name = reader.text("name", None)
    exactly = reader.maybe("exactly")
    subrequests = reader.many(
        "firstAvailable", lambda r: SubRequest(r.text("name", None), _request_spec(r, unsupported, True))
    )
    if exactly is not None and subrequests:
        raise reader.fail("", "has both exactly and firstAvailable")
    if exactly is None and not subrequests:
        # A request type of the future: understood as a request that nothing can serve.
        unsupported.append(reader.at("exactly"))
    return DeviceRequest(name, _request_spec(exactly, unsupported, False) if exactly else None, subrequests)


_SPEC_FIELDS: Final = (
    "name", "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations",
    "capacity",
)  # fmt: skip


def _request_spec(reader: Reader, unsupported: list[str], sub: bool) -> RequestSpec:
    unsupported.extend(reader.unknown(*_SPEC_FIELDS))
    if sub and reader.flag("adminAccess"):
        unsupported.append(reader.at("adminAccess"))
    selectors = _selectors(reader, unsupported)
    mode = reader.text("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        unsupported.append(reader.at("allocationMode"))
    count = reader.integer("count")
    if count < 0:
        raise reader.fail("count", "is negative")
    capacity = reader.obj("capacity")
    unsupported.extend(capacity.unknown("requests"))
    return RequestSpec(
        device_class=reader.text("deviceClassName"),
        selectors=selectors,
        mode=mode,
        count=count or (1 if mode == "ExactCount" else 0),
        admin=False if sub else reader.flag("adminAccess"),
        tolerations=reader.many("tolerations", lambda r: _toleration(r, unsupported)),
        capacity=capacity.quantities("requests"),
    )


def _selectors(reader: Reader, unsupported: list[str]) -> tuple[str, ...]:
    found = []
    for selector in reader.each("selectors"):
        unsupported.extend(selector.unknown("cel"))
        cel = selector.maybe("cel")
        if cel is None:
            unsupported.append(selector.path)
            continue
        unsupported.extend(cel.unknown("expression"))
        found.append(sys.intern(cel.text("expression", None)))
    return tuple(found)


def _toleration(reader: Reader, unsupported: list[str]) -> Toleration:
    unsupported.extend(reader.unknown("key", "operator", "value", "effect", "tolerationSeconds"))
    seconds = reader.integer("tolerationSeconds") if reader.has("tolerationSeconds") else None
    return Toleration(
        reader.text("key"), reader.text("operator"), reader.text("value"), reader.text("effect"), seconds
    )


def _constraint(reader: Reader, unsupported: list[str]) -> Constraint:
    unsupported.extend(reader.unknown("requests", "matchAttribute", "distinctAttribute"))
    match, distinct = reader.text("matchAttribute"), reader.text("distinctAttribute")
    if not match and not distinct:
        unsupported.append(reader.path)
    return Constraint(reader.texts("requests"), match or distinct, not match)


#: One encoder for all: `json.dumps` makes a new one for every call with options.
_compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _configs(reader: Reader, source: str, unsupported: list[str]) -> tuple[DeviceConfig, ...]:
    return reader.many("config", lambda r: _config(r, source, unsupported))


def _config(reader: Reader, source: str, unsupported: list[str]) -> DeviceConfig:
    unsupported.extend(reader.unknown("requests", "opaque", "source"))
    opaque = reader.maybe("opaque")
    if opaque is None:
        unsupported.append(reader.at("opaque"))
        return DeviceConfig(source, reader.texts("requests"), "", "null")
    unsupported.extend(opaque.unknown("driver", "parameters"))
    parameters = opaque.data.get("parameters")
    try:
        text = _compact(parameters)
    except (TypeError, ValueError, RecursionError) as error:
        raise opaque.fail("parameters", f"is not JSON: {error}") from None
    return DeviceConfig(source, reader.texts("requests"), sys.intern(opaque.text("driver")), sys.intern(text))


def _allocation(reader: Reader) -> Allocation:
    devices = reader.obj("devices")
    results = devices.many("results", _result)
    selector = reader.maybe("nodeSelector")
    return Allocation(
        results=results,
        configs=tuple(map(_read_config, devices.each("config"))),
        node_selector=_read_selector(selector) if selector is not None else None,
        timestamp=reader.text("allocationTimestamp"),
        binding_conditions=any(r.items("bindingConditions") for r in devices.each("results")),
    )


def _allocated_config(reader: Reader) -> DeviceConfig:
    source = reader.text("source")
    return _config(reader, FROM_CLASS if source == FROM_CLASS else FROM_CLAIM, [])


_read_config: Final = once(_allocated_config)
_read_selector: Final = once(read_node_selector)


def _result(reader: Reader) -> AllocationResult:
    consumed = {}
    for name, amount in reader.quantities("consumedCapacity").items():
        if amount.nano >= 0:
            consumed[sys.intern(name)] = amount
    return AllocationResult(
        request=sys.intern(reader.text("request")),
        driver=sys.intern(reader.text("driver", None)),
        pool=sys.intern(reader.text("pool", None)),
        device=sys.intern(reader.text("device", None)),
        admin=reader.flag("adminAccess"),
        share_id=reader.text("shareID"),
        consumed=consumed,
    )


# --- classes and slices -------------------------------------------------------------------------------------


def parse_class(raw: object) -> DeviceClass:
    """A DeviceClass v1. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "DeviceClass")
    spec = root.obj("spec")
    unsupported = list(spec.unknown("selectors", "config", "extendedResourceName", "suitableNodes"))
    return DeviceClass(
        meta=read_meta(root),
        selectors=_selectors(spec, unsupported),
        configs=_configs(spec, FROM_CLASS, unsupported),
        extended_resource=spec.text("extendedResourceName"),
        unsupported=tuple(unsupported),
    )


_SLICE_FIELDS: Final = (
    "driver", "pool", "nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection", "devices",
    "sharedCounters", "sharingAffinity",
)  # fmt: skip
_DEVICE_FIELDS: Final = (
    "name", "attributes", "capacity", "allowMultipleAllocations", "taints", "consumesCounters", "nodeName",
    "nodeSelector", "allNodes", "bindsToNode", "bindingConditions", "bindingFailureConditions",
)  # fmt: skip


def parse_slice(raw: object) -> ResourceSlice:
    """A ResourceSlice v1. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "ResourceSlice")
    spec = root.obj("spec")
    pool = spec.obj("pool")
    unsupported = [*spec.unknown(*_SLICE_FIELDS), *pool.unknown("name", "generation", "resourceSliceCount")]
    selector = spec.maybe("nodeSelector")
    return ResourceSlice(
        meta=read_meta(root),
        driver=sys.intern(spec.text("driver", None)),
        pool=sys.intern(pool.text("name", None)),
        generation=pool.integer("generation"),
        count=pool.integer("resourceSliceCount", None),
        node_name=sys.intern(spec.text("nodeName")),
        node_selector=read_node_selector(selector) if selector is not None else None,
        node_selector_json=selector.data if selector is not None else None,
        all_nodes=spec.flag("allNodes"),
        per_device=spec.flag("perDeviceNodeSelection"),
        devices=spec.many("devices", _device),
        counter_sets=tuple((r.text("name", None), _counters(r)) for r in spec.each("sharedCounters")),
        extractors=_extractors(spec),
        unsupported=tuple(unsupported),
    )


def _device(reader: Reader) -> Device:
    unsupported = list(reader.unknown(*_DEVICE_FIELDS))
    attributes, capacity = reader.obj("attributes"), reader.obj("capacity")
    for name in attributes.data:
        unsupported.extend(_check_attribute(attributes.obj(str(name))))
    for taint in reader.each("taints"):
        unsupported.extend(taint.unknown("key", "value", "effect", "timeAdded"))
    selector = reader.maybe("nodeSelector")
    counters = []
    for use in reader.each("consumesCounters"):
        unsupported.extend(use.unknown("counterSet", "counters"))
        counters.append(CounterUse(use.text("counterSet", None), _counters(use)))
    conditions = reader.texts("bindingConditions") if reader.has("bindingConditions") else None
    allow_multiple = reader.flag("allowMultipleAllocations")
    visible = (attributes.data, capacity.data, allow_multiple)
    return Device(
        name=sys.intern(reader.text("name", None)),
        attributes=attributes.data,
        capacity_json=capacity.data,
        capacity={
            sys.intern(str(name)): _capacity(capacity.obj(str(name)), unsupported) for name in capacity.data
        },
        allow_multiple=allow_multiple,
        taints=reader.many("taints", _taint),
        counters=tuple(counters),
        node_name=sys.intern(reader.text("nodeName")),
        node_selector=read_node_selector(selector) if selector is not None else None,
        all_nodes=reader.flag("allNodes"),
        binds_to_node=reader.flag("bindsToNode"),
        binding_conditions=conditions,
        binding_failure_conditions=reader.texts("bindingFailureConditions"),
        content=sys.intern(json.dumps(visible, sort_keys=True, separators=(",", ":"), default=str)),
        unsupported=tuple(unsupported),
    )


def _check_attribute(attribute: Reader) -> tuple[str, ...]:
    """One value of a known kind; kinds of newer versions are reported as unsupported."""
    unknown = attribute.unknown("string", "int", "bool", "version")
    present = [kind for kind in ("string", "int", "bool", "version") if attribute.has(kind)]
    if len(present) != 1 and not unknown:
        raise attribute.fail("", "has not exactly one value")
    for kind in present:
        if kind == "int":
            attribute.integer(kind)
        elif kind == "bool":
            attribute.flag(kind)
        else:
            attribute.text(kind)
    return unknown


def _counters(reader: Reader) -> dict[str, Quantity]:
    counters = reader.obj("counters")
    return {sys.intern(str(name)): counters.obj(str(name)).quantity("value") for name in counters.data}


def _capacity(reader: Reader, unsupported: list[str]) -> Capacity:
    unsupported.extend(reader.unknown("value", "requestPolicy"))
    policy = reader.maybe("requestPolicy")
    return Capacity(reader.quantity("value"), _policy(policy, unsupported) if policy is not None else None)


def _policy(reader: Reader, unsupported: list[str]) -> RequestPolicy:
    unsupported.extend(reader.unknown("default", "validValues", "validRange"))
    limits = reader.maybe("validRange")
    if limits is not None:
        unsupported.extend(limits.unknown("min", "max", "step"))

    def bound(name: str) -> Quantity | None:
        return limits.quantity(name) if limits is not None and limits.has(name) else None

    step = bound("step")
    if step is not None and step.nano <= 0:
        raise reader.fail("validRange.step", "is not positive")
    if step is not None and bound("min") is None:
        raise reader.fail("validRange.min", "is missing")
    return RequestPolicy(
        default=reader.quantity("default") if reader.has("default") else None,
        valid_values=tuple(
            reader.as_quantity(f"validValues[{i}]", value)
            for i, value in enumerate(reader.items("validValues"))
        ),
        minimum=bound("min"),
        maximum=bound("max"),
        step=step,
        has_range=limits is not None,
    )


def _taint(reader: Reader) -> Taint:
    return Taint(
        sys.intern(reader.text("key")),
        sys.intern(reader.text("value")),
        sys.intern(reader.text("effect")),
        reader.time("timeAdded"),
    )


def _extractors(spec: Reader) -> tuple[Extractor, ...]:
    return spec.many("sharingAffinity", lambda r: Extractor(sys.intern(r.text("name", None)), _expression(r)))


def _expression(reader: Reader) -> str:
    return sys.intern(reader.text("expression", None))


def parse_metadata_slice(raw: object) -> MetadataSlice:
    """A SharingAffinitySlice. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, names.SLICE_KIND)
    spec = root.obj("spec")
    pool = spec.obj("pool")
    known = ("driver", "pool", "nodeName", "nodeSelector", "allNodes", "sharingAffinity")
    unsupported = [*spec.unknown(*known), *pool.unknown("name", "generation", "resourceSliceCount")]
    for entry in spec.each("sharingAffinity"):
        unsupported.extend(entry.unknown("name", "expression"))
    return MetadataSlice(
        meta=read_meta(root),
        driver=sys.intern(spec.text("driver", None)),
        pool=sys.intern(pool.text("name", None)),
        generation=pool.integer("generation"),
        count=pool.integer("resourceSliceCount", None),
        extractors=_extractors(spec),
        unsupported=tuple(unsupported),
    )


def parse_taint_rule(raw: object) -> TaintRule:
    """A DeviceTaintRule of any version. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "DeviceTaintRule")
    spec = root.obj("spec")
    selector = spec.obj("deviceSelector")
    taint = spec.maybe("taint")
    unsupported = [*spec.unknown("deviceSelector", "taint"), *selector.unknown("driver", "pool", "device")]
    if taint is not None:
        unsupported.extend(taint.unknown("key", "value", "effect", "timeAdded"))
    return TaintRule(
        meta=read_meta(root),
        driver=selector.text("driver"),
        pool=selector.text("pool"),
        device=selector.text("device"),
        taint=_taint(taint) if taint is not None else None,
        unsupported=tuple(unsupported),
    )
