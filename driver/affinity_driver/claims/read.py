"""Reading a claim, and making sure it is the one the kubelet means.

A claim's identity is its UID: names are used again, and a new claim of an old name must not inherit anything.
"""

from __future__ import annotations

from affinity_driver.json_types import JsonObject
from affinity_driver.kube import Api, ApiError

from .errors import ClaimChangedError


def claim_path(namespace: str, name: str) -> str:
    """The claim's path in the API."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def read_claim(api: Api, namespace: str, name: str, uid: str, timeout: float) -> JsonObject:
    """The claim of that UID, allocated. Raises ClaimChangedError, also when the API server gives no answer
    in time.
    """
    try:
        claim = api.get(claim_path(namespace, name), timeout=timeout)
    except ApiError as error:
        if error.gone:
            raise ClaimChangedError(f"claim {namespace}/{name} does not exist any more") from error
        raise ClaimChangedError(f"claim {namespace}/{name} cannot be read: {error}") from error
    found = claim["metadata"]["uid"]
    if found != uid:
        raise ClaimChangedError(f"claim {namespace}/{name} was replaced: its UID is {found}, not {uid}")
    if not (claim.get("status") or {}).get("allocation"):
        raise ClaimChangedError(f"claim {namespace}/{name} is not allocated")
    return claim
