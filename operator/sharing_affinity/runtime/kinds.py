"""The kinds of objects the operator reads: where they are served, and what of them is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind as the API server serves it.

    ``optional``: a server that does not serve it is fine, the kind then counts as having no objects.
    ``within``: only this namespace is read, for callers who may not read all.
    ``field_selector``: narrows list and watch; an object that leaves the selection is reported as deleted.
    """

    kind: str
    group_version: str
    plural: str
    namespaced: bool = False
    optional: bool = False
    field_selector: str = ""
    within: str = ""

    @property
    def path(self) -> str:
        """The path of the list over all namespaces, or ``within`` one."""
        prefix = "/api/" if "/" not in self.group_version else "/apis/"
        middle = f"/namespaces/{self.within}" if self.within else ""
        return f"{prefix}{self.group_version}{middle}/{self.plural}"

    def item(self, namespace: str, name: str, subresource: str = "") -> str:
        """The path of one object; ``namespace`` is ignored for cluster-scoped kinds."""
        prefix = "/api/" if "/" not in self.group_version else "/apis/"
        middle = f"/namespaces/{namespace}" if self.namespaced else ""
        tail = f"/{subresource}" if subresource else ""
        return f"{prefix}{self.group_version}{middle}/{self.plural}/{name}{tail}"


CLAIMS: Final = Kind("ResourceClaim", "resource.k8s.io/v1", "resourceclaims", namespaced=True)
SLICES: Final = Kind("ResourceSlice", "resource.k8s.io/v1", "resourceslices")
CLASSES: Final = Kind("DeviceClass", "resource.k8s.io/v1", "deviceclasses")
TAINT_RULES: Final = Kind("DeviceTaintRule", "resource.k8s.io/v1", "devicetaintrules", optional=True)
METADATA: Final = Kind("SharingAffinitySlice", "sharingaffinity.dev/v1alpha1", "sharingaffinityslices")
POOL_VIEWS: Final = Kind("SharingAffinityPool", "sharingaffinity.dev/v1alpha1", "sharingaffinitypools")
NODES: Final = Kind("Node", "v1", "nodes")
VOLUMES: Final = Kind("PersistentVolume", "v1", "persistentvolumes")
VOLUME_CLAIMS: Final = Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims", namespaced=True)
PODS: Final = Kind(
    "Pod",
    "v1",
    "pods",
    namespaced=True,
    # A finished pod holds nothing and asks for nothing: to the operator it is gone.
    field_selector="status.phase!=Succeeded,status.phase!=Failed",
)
LEASES: Final = Kind("Lease", "coordination.k8s.io/v1", "leases", namespaced=True)
EVENTS: Final = Kind("Event", "events.k8s.io/v1", "events", namespaced=True)

#: What the engine is fed with. Order matters only for the log: all are read at the same time.
FEEDS: Final = (
    CLASSES,
    SLICES,
    METADATA,
    TAINT_RULES,
    NODES,
    CLAIMS,
    PODS,
    VOLUMES,
    VOLUME_CLAIMS,
)
