"""Views of core objects that node choice needs: pods, nodes, volumes and their claims.

Resource amounts are kept as upstream's scheduler counts them: cpu in thousandths, everything else in whole
units, both rounded up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sharing_affinity.api import names
from sharing_affinity.api.objects import ObjectMeta, read_meta
from sharing_affinity.api.reader import Reader
from sharing_affinity.api.selectors import (
    LabelSelector,
    NodeSelector,
    read_label_selector,
    read_node_selector,
)

Amounts = Mapping[str, int]
"""Resource name to amount: cpu in thousandths, others in units."""


@dataclass(frozen=True, slots=True)
class NodeTaint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class PodToleration:
    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: NodeTaint) -> bool:
        """As core/v1 ``ToleratesTaint``: Exists, Equal, and the numeric Lt and Gt."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value and bool(self.key)
            case "Exists":
                return True
        return False


@dataclass(frozen=True, slots=True)
class Node:
    """A node; ``allocatable`` includes ``pods``."""

    meta: ObjectMeta
    labels: Mapping[str, str]
    taints: tuple[NodeTaint, ...]
    unschedulable: bool
    allocatable: Amounts

    @property
    def name(self) -> str:
        return self.meta.name


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One entry of spec.resourceClaims with the claim it resolves to; ``claim`` is empty until it is
    generated.

    ``not_needed``: the controller recorded that no claim is needed for this entry.
    """

    name: str
    claim: str
    generated: bool
    not_needed: bool = False
    template: str = ""


@dataclass(frozen=True, slots=True)
class HostPort:
    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        wild = "0.0.0.0"
        same_ip = self.ip == other.ip or wild in (self.ip, other.ip)
        return self.port == other.port and self.protocol == other.protocol and same_ip


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """A required term of pod (anti-)affinity. ``namespaces`` empty with no selector: the pod's own."""

    selector: LabelSelector | None
    topology_key: str
    namespaces: tuple[str, ...]
    all_namespaces: bool
    namespace_labels: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """A DoNotSchedule topology spread constraint. Which nodes count may follow from the pod's node affinity
    and from its tolerations."""

    max_skew: int
    topology_key: str
    selector: LabelSelector | None
    by_affinity: bool
    by_taints: bool


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as far as placement goes."""

    meta: ObjectMeta
    labels: Mapping[str, str]
    node_name: str
    nominated_node: str
    scheduler: str
    priority: int
    phase: str
    gates: tuple[str, ...]
    claims: tuple[PodClaim, ...]
    node_selector: Mapping[str, str]
    node_affinity: NodeSelector | None
    tolerations: tuple[PodToleration, ...]
    requests: Amounts
    host_ports: tuple[HostPort, ...]
    pod_affinity: tuple[PodAffinityTerm, ...]
    pod_anti_affinity: tuple[PodAffinityTerm, ...]
    spread: tuple[Spread, ...]
    volumes: tuple[str, ...]
    preempts: bool
    group: str
    unsupported: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return (self.meta.namespace, self.meta.name)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume: the nodes it can be used from."""

    meta: ObjectMeta
    node_affinity: NodeSelector | None


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim and the volume it is bound to, if any."""

    meta: ObjectMeta
    volume: str


def parse_node(raw: object) -> Node:
    """A v1 Node. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "Node")
    spec, status = root.obj("spec"), root.obj("status")
    amounts = status.obj("allocatable" if status.has("allocatable") else "capacity")
    return Node(
        meta=read_meta(root),
        labels=root.obj("metadata").text_map("labels"),
        taints=spec.many("taints", lambda r: NodeTaint(r.text("key"), r.text("value"), r.text("effect"))),
        unschedulable=spec.flag("unschedulable"),
        allocatable=_amounts(amounts),
    )


def _amounts(reader: Reader) -> dict[str, int]:
    found = {}
    for name, value in reader.data.items():
        amount = reader.as_quantity(str(name), value)
        found[sys.intern(str(name))] = amount.milli if name == "cpu" else amount.value
    return found


def parse_pod(raw: object) -> Pod:
    """A v1 Pod. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "Pod")
    spec, status, metadata = root.obj("spec"), root.obj("status"), root.obj("metadata")
    affinity = spec.obj("affinity")
    required = affinity.obj("nodeAffinity").maybe("requiredDuringSchedulingIgnoredDuringExecution")
    unsupported: list[str] = []
    return Pod(
        meta=read_meta(root),
        labels=metadata.text_map("labels"),
        node_name=sys.intern(spec.text("nodeName")),
        nominated_node=status.text("nominatedNodeName"),
        scheduler=sys.intern(spec.text("schedulerName") or names.DEFAULT_SCHEDULER),
        priority=spec.integer("priority"),
        phase=sys.intern(status.text("phase")),
        gates=spec.many("schedulingGates", lambda r: r.text("name")),
        claims=_pod_claims(spec, status, unsupported),
        node_selector=spec.text_map("nodeSelector"),
        node_affinity=read_node_selector(required) if required is not None else None,
        tolerations=spec.many(
            "tolerations",
            lambda r: PodToleration(r.text("key"), r.text("operator"), r.text("value"), r.text("effect")),
        ),
        requests=pod_requests(spec),
        host_ports=_host_ports(spec),
        pod_affinity=_affinity_terms(affinity.obj("podAffinity")),
        pod_anti_affinity=_affinity_terms(affinity.obj("podAntiAffinity")),
        spread=tuple(
            Spread(
                r.integer("maxSkew", 1),
                r.text("topologyKey"),
                _maybe_selector(r, "labelSelector"),
                by_affinity=r.text("nodeAffinityPolicy") != "Ignore",
                by_taints=r.text("nodeTaintsPolicy") == "Honor",
            )
            for r in spec.each("topologySpreadConstraints")
            if r.text("whenUnsatisfiable") == "DoNotSchedule"
        ),
        volumes=tuple(
            r.obj("persistentVolumeClaim").text("claimName")
            for r in spec.each("volumes")
            if r.has("persistentVolumeClaim")
        ),
        preempts=spec.text("preemptionPolicy") != "Never",
        group=_pod_group(spec),
        unsupported=tuple(unsupported),
    )


def _pod_group(spec: Reader) -> str:
    for field, inner in (("schedulingGroup", "podGroupName"), ("workloadRef", "podGroup")):
        if spec.has(field):
            return spec.obj(field).text(inner) or field
    return ""


def _pod_claims(spec: Reader, status: Reader, unsupported: list[str]) -> tuple[PodClaim, ...]:
    generated: dict[str, tuple[str, bool]] = {}
    for entry in status.each("resourceClaimStatuses"):
        generated[entry.text("name")] = (entry.text("resourceClaimName"), not entry.has("resourceClaimName"))
    claims = []
    for entry in spec.each("resourceClaims"):
        unsupported.extend(entry.unknown("name", "resourceClaimName", "resourceClaimTemplateName"))
        name, direct = entry.text("name", None), entry.text("resourceClaimName")
        template = entry.text("resourceClaimTemplateName")
        resolved, not_needed = generated.get(name, ("", False))
        if not direct and not template:
            unsupported.append(entry.path)
        claims.append(PodClaim(name, direct or resolved, not direct, not direct and not_needed, template))
    return tuple(claims)


def _host_ports(spec: Reader) -> tuple[HostPort, ...]:
    ports = []
    for container in (*spec.each("containers"), *_sidecars(spec)):
        for entry in container.each("ports"):
            port = entry.integer("hostPort")
            if port > 0:
                ip, protocol = entry.text("hostIP") or "0.0.0.0", entry.text("protocol") or "TCP"
                ports.append(HostPort(ip, protocol, port))
    return tuple(ports)


def _sidecars(spec: Reader) -> list[Reader]:
    return [r for r in spec.each("initContainers") if r.text("restartPolicy") == "Always"]


def _affinity_terms(reader: Reader) -> tuple[PodAffinityTerm, ...]:
    return reader.many(
        "requiredDuringSchedulingIgnoredDuringExecution",
        lambda r: PodAffinityTerm(
            selector=_maybe_selector(r, "labelSelector"),
            topology_key=r.text("topologyKey"),
            namespaces=r.texts("namespaces"),
            all_namespaces=r.has("namespaceSelector") and not r.obj("namespaceSelector").data,
            namespace_labels=bool(r.obj("namespaceSelector").data),
        ),
    )


def _maybe_selector(reader: Reader, key: str) -> LabelSelector | None:
    selector = reader.maybe(key)
    return read_label_selector(selector) if selector is not None else None


_POD_LEVEL: Final = ("cpu", "memory")


def pod_requests(spec: Reader) -> dict[str, int]:
    """What the scheduler counts for a pod: containers plus sidecars, or the largest init step, plus overhead.

    An init container runs beside the sidecars started before it. Pod-level requests replace the sums where
    given.
    """
    total: dict[str, int] = {}
    for container in spec.each("containers"):
        _add(total, _container(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.each("initContainers"):
        amounts = _container(container)
        if container.text("restartPolicy") == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            step = dict(sidecars)
        else:
            step = dict(sidecars)
            _add(step, amounts)
        for name, amount in step.items():
            peak[name] = max(peak.get(name, 0), amount)
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0), amount)
    pod_level = spec.obj("resources")
    limits = _amounts(pod_level.obj("limits"))
    for name, amount in {**limits, **_amounts(pod_level.obj("requests"))}.items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            total[name] = amount
    _add(total, _amounts(spec.obj("overhead")))
    return {name: amount for name, amount in total.items() if amount}


def _container(reader: Reader) -> dict[str, int]:
    resources = reader.obj("resources")
    # Admission defaults requests to limits; a file for simulate has not been through admission.
    return {**_amounts(resources.obj("limits")), **_amounts(resources.obj("requests"))}


def _add(total: dict[str, int], amounts: Amounts) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def parse_volume(raw: object) -> Volume:
    """A v1 PersistentVolume. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "PersistentVolume")
    required = root.obj("spec").obj("nodeAffinity").maybe("required")
    return Volume(read_meta(root), read_node_selector(required) if required is not None else None)


def parse_volume_claim(raw: object) -> VolumeClaim:
    """A v1 PersistentVolumeClaim. Raises :class:`BadObject`."""
    root = Reader.document_of(raw, "PersistentVolumeClaim")
    return VolumeClaim(read_meta(root), root.obj("spec").text("volumeName"))
