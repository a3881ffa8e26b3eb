"""Immutable typed views of Kubernetes objects: everything above works on these, never on raw JSON.

A parser takes the decoded JSON of one v1 object and returns its view, or raises :class:`BadObject` with the
path of what is wrong. Fields the project does not implement are not an error: non-empty ones are listed in
the view's ``unsupported`` with their paths, and whoever would allocate by that view fails closed (settled
semantics 12).
"""

from sharing_affinity.api import names
from sharing_affinity.api.core_objects import (
    Node,
    Pod,
    PodClaim,
    Volume,
    VolumeClaim,
    parse_node,
    parse_pod,
    parse_volume,
    parse_volume_claim,
)
from sharing_affinity.api.errors import BadObject
from sharing_affinity.api.keys import KeyMap, key_map
from sharing_affinity.api.objects import (
    Allocation,
    AllocationResult,
    Claim,
    Constraint,
    Device,
    DeviceClass,
    DeviceConfig,
    DeviceRequest,
    Extractor,
    MetadataSlice,
    ObjectMeta,
    RequestSpec,
    ResourceSlice,
    SubRequest,
    Taint,
    TaintRule,
    Toleration,
    parse_allocation,
    parse_claim,
    parse_class,
    parse_metadata_slice,
    parse_slice,
    parse_taint_rule,
)
from sharing_affinity.api.quantity import Quantity
from sharing_affinity.api.record import Record, RecordedResult

__all__ = [
    "Allocation",
    "AllocationResult",
    "BadObject",
    "Claim",
    "Constraint",
    "Device",
    "DeviceClass",
    "DeviceConfig",
    "DeviceRequest",
    "Extractor",
    "KeyMap",
    "MetadataSlice",
    "Node",
    "ObjectMeta",
    "Pod",
    "PodClaim",
    "Quantity",
    "Record",
    "RecordedResult",
    "RequestSpec",
    "ResourceSlice",
    "SubRequest",
    "Taint",
    "TaintRule",
    "Toleration",
    "Volume",
    "VolumeClaim",
    "key_map",
    "names",
    "parse_allocation",
    "parse_claim",
    "parse_class",
    "parse_metadata_slice",
    "parse_node",
    "parse_pod",
    "parse_slice",
    "parse_taint_rule",
    "parse_volume",
    "parse_volume_claim",
]
