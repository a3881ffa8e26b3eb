"""Every name the operator, the driver and their manifests have to agree on, in one place.

Nothing here is configurable: a changed fence key or annotation is a different product to every object that is
already stored.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "sharingaffinity.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
RESOURCE_API_VERSION: Final = "resource.k8s.io/v1"

SLICE_KIND: Final = "SharingAffinitySlice"
SLICE_PLURAL: Final = "sharingaffinityslices"
POOL_KIND: Final = "SharingAffinityPool"
POOL_PLURAL: Final = "sharingaffinitypools"

FENCE_KEY: Final = f"{GROUP}/managed"
"""Key of the device taint that keeps other schedulers off devices of affinity pools."""
FENCE_EFFECT: Final = "NoSchedule"
"""The only effect of :data:`FENCE_KEY` that the operator ignores (H3)."""

RECORD_ANNOTATION: Final = f"{GROUP}/allocation"
"""On claims: the record of the operator's own allocation (H2), written by the operator only."""
EXTRACTORS_ANNOTATION: Final = f"{GROUP}/extractors"
"""On metadata slices: extractors rolled out on the pool instead of its publisher's own; see
docs/driver-authors.md."""
DECISION_ANNOTATION: Final = f"{GROUP}/decision"
"""On Events: the id of the decision it tells of, as the operator's log has it."""
DELETE_PROTECTION_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Must be on a claim before its allocation is written, or nobody deallocates it later."""
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"

MAX_EXTRACTORS_PER_SLICE: Final = 8
MAX_EXPRESSION_LENGTH: Final = 10 * 1024
"""Bytes of UTF-8 in one extractor expression."""
POOL_COST_BUDGET: Final = 1_000_000
"""Shared by the extractors of a pool, estimated (KEP "Expression limits"); also the limit of one
evaluation."""
REQUEST_COST_CAP: Final = 10_000_000
"""Cost of all evaluations for one request: every extractor over every config in scope (H10)."""
MAX_RESULTS_PER_CLAIM: Final = 32
"""Devices one claim can be allocated (``AllocationResultsMaxSize`` upstream)."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
