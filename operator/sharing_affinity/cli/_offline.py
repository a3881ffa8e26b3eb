"""The operator over a file: one engine, all pending pods, until nothing changes.

A pure function of its input. Claims of templates are made as the controller makes them; names, share IDs and
times are derived from UIDs (and UIDs, where the file has none, from names); nothing is ever released; time
stands still.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sharing_affinity.api import Claim, Pod, names, parse_claim, parse_pod
from sharing_affinity.api import record as records
from sharing_affinity.api.reader import format_time
from sharing_affinity.cli._files import (
    NAMESPACED,
    Document,
    InputError,
    check_version,
    located,
    read,
)
from sharing_affinity.engine import (
    Applied,
    ClaimWrite,
    Decision,
    DeviceState,
    Engine,
    Options,
    Placed,
    PodKey,
    Reason,
    Unplaced,
)

JSON = dict[str, Any]
GATES: Final = {"DRASharingAffinity": "sharing_affinity", "DRASharingAffinityScoring": "scoring"}
_KNOWN: Final = (
    "Node", "DeviceClass", "DeviceTaintRule", "ResourceSlice", names.SLICE_KIND, "PersistentVolume",
    "PersistentVolumeClaim", "ResourceClaim", "Pod",
)  # fmt: skip
_TEMPLATE: Final = "ResourceClaimTemplate"
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
EPOCH: Final = 1_767_225_600
_SPACE: Final = uuid.UUID("9b1f3f0e-6d5c-5a52-8f4e-0d6a5f1c7b11")


def parse_gates(text: str) -> dict[str, bool]:
    """``A=true,B=false`` as options of the engine. Raises :class:`InputError`."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in GATES:
            raise InputError([f"unknown feature gate {name!r}; known are {', '.join(GATES)}"])
        if value not in ("true", "false"):
            raise InputError([f"feature gate {name}: {value!r} is neither true nor false"])
        found[GATES[name]] = value == "true"
    return found


@dataclass(slots=True)
class Simulation:
    """What came of it: decisions by pod, claims as they are at the end, and the engine that knows why."""

    engine: Engine
    pods: dict[PodKey, Pod]
    every_pod: dict[PodKey, Pod]
    claims: dict[PodKey, JSON]
    decisions: dict[PodKey, Decision] = field(default_factory=dict)
    notes: dict[PodKey, str] = field(default_factory=dict)

    def as_json(self) -> JSON:
        """The contract of ``simulate -o json``."""
        return {
            "pods": [self._pod(key) for key in sorted(self.pods)],
            "claims": [
                {
                    "namespace": key[0],
                    "name": key[1],
                    "allocation": (self.claims[key].get("status") or {}).get("allocation"),
                }
                for key in sorted(self.claims)
            ],
            "devices": device_rows(self.engine),
        }

    def _pod(self, key: PodKey) -> JSON:
        decision = self.decisions[key]
        node, message = self.settled_on(self.every_pod[key]), ""
        if isinstance(decision, Placed):
            node, reason = decision.node, "Allocated"
        elif node is not None:
            reason = "AlreadyAllocated"
        else:
            reason, message = decision.reason.value, decision.message or self.notes.get(key, "")
        return {"namespace": key[0], "name": key[1], "node": node, "reason": reason, "message": message}

    def settled_on(self, pod: Pod) -> str | None:
        """The node of a pod for which there is nothing left to decide: bound, or all claims allocated
        there."""
        return pod.node_name or self.engine.pinned_node(pod.key) or None


def device_rows(engine: Engine) -> list[JSON]:
    """All devices of affinity pools with state and lock."""
    rows = []
    for pool in engine.lock_table():
        for device in pool.devices:
            # A held device whose pool is gone takes nothing new, which is what Unreconstructable says.
            known = device.state is not DeviceState.UNKNOWN
            state = device.state if known else DeviceState.UNRECONSTRUCTABLE
            lock = dict(device.keys) if device.state is DeviceState.LOCKED else None
            rows.append(
                {
                    "driver": pool.driver,
                    "pool": pool.pool,
                    "device": device.device,
                    "state": state.value,
                    "lock": lock,
                }
            )
    return sorted(rows, key=lambda r: (r["driver"], r["pool"], r["device"]))


def nodes_of_slices(objects: Iterable[JSON]) -> list[JSON]:
    """The nodes that slices name, with nothing known about them, for callers who may not list nodes."""
    found = {(raw.get("spec") or {}).get("nodeName") for raw in objects if raw["kind"] == "ResourceSlice"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
        }
        for name in sorted(filter(None, found))
    ]


def load(files: Iterable[str], options: Options) -> Simulation:
    """Read files into an engine, with template claims made. Raises :class:`InputError` with every mistake."""
    return build(read(files), options)


def build(documents: Iterable[Document], options: Options) -> Simulation:
    """The state that the documents describe; of two objects of one name the later counts."""
    objects: dict[tuple[str, str, str], Document] = {}
    templates: dict[tuple[str, str], JSON] = {}
    problems: list[str] = []
    for document in documents:
        if document.raw["kind"] not in (*_KNOWN, _TEMPLATE):
            continue
        try:
            check_version(document)
            complete = _complete(document)
        except InputError as error:
            problems.extend(error.lines)
            continue
        kind, metadata = complete.raw["kind"], complete.raw["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if kind == _TEMPLATE:
            templates[key] = complete.raw
        else:
            objects[(kind, *key)] = complete
    pods: dict[PodKey, Pod] = {}
    claims: dict[PodKey, JSON] = {}
    views: dict[PodKey, Claim] = {}
    for (kind, *rest), document in objects.items():
        key = (rest[0], rest[1])
        try:
            if kind == "Pod":
                pods[key] = located(document, parse_pod)
            elif kind == "ResourceClaim":
                views[key] = located(document, parse_claim)
                claims[key] = document.raw
        except InputError as error:
            problems.extend(error.lines)
    engine = Engine(options)
    simulation = Simulation(engine, {}, pods, claims)
    ready: list[JSON] = []
    for key, pod in pods.items():
        raw = objects[("Pod", *key)].raw
        ready.append(_with_claims(simulation, raw, pod, templates, views))
        if not pod.finished and not pod.node_name and not pod.meta.deleting:
            simulation.pods[key] = pod
    for (kind, *_), document in objects.items():
        if kind in ("Pod", "ResourceClaim"):
            continue
        problem = engine.observe(Applied(document.raw), EPOCH).problem
        if problem is not None:
            problems.append(f"{document.locate(problem.path)}: {problem}")
    if problems:
        raise InputError(problems)
    for raw in (*claims.values(), *ready):
        engine.observe(Applied(raw), EPOCH)
    _extract(engine)
    return simulation


def _complete(document: Document) -> Document:
    """Namespace and UID as the API server would fill them in."""
    raw = document.raw
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError([f"{document.locate('metadata')}: {raw.get('kind')}: metadata.name is missing"])
    filled = {k: v for k, v in metadata.items() if k != "resourceVersion"}
    if raw["kind"] in NAMESPACED:
        filled["namespace"] = metadata.get("namespace") or "default"
    if not metadata.get("uid"):
        identity = f"{raw['kind']}/{filled.get('namespace', '')}/{metadata['name']}"
        filled["uid"] = str(uuid.uuid5(_SPACE, identity))
    return replace(document, raw={**raw, "metadata": filled})


def _with_claims(
    simulation: Simulation,
    raw: JSON,
    pod: Pod,
    templates: Mapping[tuple[str, str], JSON],
    views: Mapping[PodKey, Claim],
) -> JSON:
    """The pod with the claims of its templates, made where they are missing."""
    statuses: list[JSON] = []
    for entry in pod.claims:
        if not entry.generated or entry.claim or entry.not_needed or pod.finished:
            continue
        owned = next(
            (
                key
                for key, view in views.items()
                if view.owner_pod == pod.meta.uid
                and view.pod_claim_name == entry.name
                and key[0] == pod.meta.namespace
            ),
            None,
        )
        if owned is None:
            template = templates.get((pod.meta.namespace, entry.template))
            if template is None:
                simulation.notes[pod.key] = f"ResourceClaimTemplate {entry.template} does not exist"
                continue
            generated = _generate(pod, entry.name, template)
            owned = (pod.meta.namespace, generated["metadata"]["name"])
            simulation.claims[owned] = generated
        statuses.append({"name": entry.name, "resourceClaimName": owned[1]})
    if not statuses:
        return raw
    status = dict(raw.get("status") or {})
    status["resourceClaimStatuses"] = [*(status.get("resourceClaimStatuses") or []), *statuses]
    return {**raw, "status": status}


def _generate(pod: Pod, name: str, template: JSON) -> JSON:
    """The claim that the resourceclaim controller would create; its random suffix derived from the pod's
    UID."""
    spec = template.get("spec") or {}
    metadata = spec.get("metadata") or {}
    digest = hashlib.sha256(f"{pod.meta.uid}/{name}".encode()).digest()
    suffix = "".join(_ALPHABET[b % len(_ALPHABET)] for b in digest[:5])
    claim_name = f"{pod.meta.name}-{name}"[:57] + f"-{suffix}"
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            **{k: v for k, v in metadata.items() if k in ("labels", "annotations")},
            "name": claim_name,
            "namespace": pod.meta.namespace,
            "uid": str(uuid.uuid5(_SPACE, f"{pod.meta.uid}/{name}")),
            "annotations": {**(metadata.get("annotations") or {}), names.POD_CLAIM_ANNOTATION: name},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.meta.name,
                    "uid": pod.meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec.get("spec") or {},
    }


def _extract(engine: Engine) -> None:
    while engine.extract(1000):
        pass


def run(simulation: Simulation) -> Simulation:
    """Decide for every pending pod, in order, until a whole round places nothing."""
    engine = simulation.engine
    placed_any = True
    while placed_any:
        placed_any = False
        for key in engine.pods():
            if isinstance(simulation.decisions.get(key), Placed):
                continue
            decision = decide(engine, key)
            simulation.decisions[key] = decision
            if isinstance(decision, Placed):
                _write(simulation, decision)
                placed_any = True
    for key in simulation.pods:
        if key not in simulation.decisions:
            simulation.decisions[key] = engine.decide(key, EPOCH, _no_uuid)
    return simulation


def decide(engine: Engine, key: PodKey) -> Decision:
    """One decision with all extraction done, share IDs and times derived from claim UIDs."""
    while True:
        _extract(engine)
        decision = engine.decide(key, EPOCH, _no_uuid)
        if not (isinstance(decision, Unplaced) and decision.reason is Reason.EXTRACTION_PENDING):
            break
    if isinstance(decision, Placed):
        return replace(decision, writes=tuple(_derived(write) for write in decision.writes))
    return decision


def _no_uuid() -> str:
    return "00000000-0000-4000-8000-000000000000"


def _derived(write: ClaimWrite) -> ClaimWrite:
    moment = int.from_bytes(hashlib.sha256(write.uid.encode()).digest()[:4]) % (365 * 24 * 3600)
    timestamp = format_time(EPOCH + moment)
    results = []
    recorded = []
    for index, (result, entry) in enumerate(
        zip(write.allocation["devices"]["results"], write.record.results, strict=True)
    ):
        if "shareID" in result:
            share = str(uuid.uuid5(_SPACE, f"{write.uid}/{index}"))
            result, entry = {**result, "shareID": share}, replace(entry, share_id=share)
        results.append(result)
        recorded.append(entry)
    allocation = {
        **write.allocation,
        "devices": {**write.allocation["devices"], "results": results},
        "allocationTimestamp": timestamp,
    }
    record = records.Record(write.record.attempt, timestamp, tuple(recorded))
    return replace(write, allocation=allocation, record=record)


def _write(simulation: Simulation, placed: Placed) -> None:
    """Carry out the decision: the claims are seen allocated, as the watch would show them."""
    simulation.engine.assume(placed)
    for write in placed.writes:
        key = (write.namespace, write.name)
        raw = simulation.claims[key]
        annotations = {
            **(raw["metadata"].get("annotations") or {}),
            names.RECORD_ANNOTATION: records.encode(write.record.with_attempt("simulated")),
        }
        status = {**(raw.get("status") or {}), "allocation": dict(write.allocation)}
        raw = {**raw, "metadata": {**raw["metadata"], "annotations": annotations}, "status": status}
        simulation.claims[key] = raw
        simulation.engine.observe(Applied(raw), EPOCH)
    _extract(simulation.engine)
