"""A driver's pools and claims as they are on the cluster, and the one thing that is written there.

Slices belong to their publisher. What is rolled out is written into an annotation of the pool's first
SharingAffinitySlice (``publish.override``), under the version that was read: a pool that changed meanwhile
is judged again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from affinity_driver.json_types import JsonObject
from affinity_driver.kube import Api, ApiError
from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES, declared
from affinity_driver.publish.override import Override, stored, with_override
from sharing_affinity.api import BadObject, Claim, Extractor, names, parse_claim

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
PAGE = "500"


@dataclass(frozen=True, slots=True)
class PoolNow:
    """One pool: its devices, its published extractors, and what is rolled out on it."""

    devices: tuple[str, ...]
    metadata: tuple[JsonObject, ...]

    @property
    def extractors(self) -> tuple[Extractor, ...]:
        """As published, of the newest generation; empty for a pool that is not managed."""
        return declared(self.metadata)

    @property
    def override(self) -> Override | None:
        """What an administrator rolled out, while its publisher has not caught up."""
        return stored(self.metadata)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that is needed to judge a change. ``unread`` are claims that no one can understand."""

    pools: Mapping[str, PoolNow]
    claims: tuple[Claim, ...]
    unread: tuple[str, ...]


def read(api: Api, driver: str) -> Cluster:
    """Read the cluster once. Raises ApiError."""
    selector = {"fieldSelector": f"spec.driver={driver}"}
    devices: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in _all(api, RESOURCE_SLICES, selector):
        listed = [device["name"] for device in item["spec"].get("devices") or ()]
        devices[item["spec"]["pool"]["name"]][_generation(item)] += listed
    metadata: dict[str, list[JsonObject]] = defaultdict(list)
    for item in _all(api, METADATA_SLICES, selector):
        metadata[item["spec"]["pool"]["name"]].append(item)
    claims, unread = [], []
    for item in _all(api, CLAIMS, {}):
        try:
            whole = {"apiVersion": names.RESOURCE_API_VERSION, "kind": "ResourceClaim", **item}
            claims.append(parse_claim(whole))
        except BadObject as error:
            unread.append(str(error))
    pools = {}
    for name in sorted({*devices, *metadata}):
        generations = devices[name]
        newest = tuple(generations[max(generations)]) if generations else ()
        ordered = sorted(metadata[name], key=lambda item: str(item["metadata"]["name"]))
        pools[name] = PoolNow(newest, tuple(ordered))
    return Cluster(pools, tuple(claims), tuple(unread))


def roll_out(api: Api, pool: PoolNow, override: Override) -> bool:
    """Ask the pool's publisher for ``override``; False when the pool changed since it was read.

    Raises ApiError.
    """
    first = pool.metadata[0]
    try:
        api.update(f"{METADATA_SLICES}/{first['metadata']['name']}", with_override(first, override))
    except ApiError as error:
        if error.code in (404, 409):
            return False
        raise
    return True


def _all(api: Api, path: str, query: Mapping[str, str]) -> Sequence[JsonObject]:
    """Every object of a collection, page by page."""
    items: list[JsonObject] = []
    token = ""
    while True:
        page = api.list(path, {**query, "limit": PAGE, **({"continue": token} if token else {})})
        items += page.get("items") or []
        token = (page.get("metadata") or {}).get("continue", "")
        if not token:
            return items


def _generation(item: JsonObject) -> int:
    return int(item["spec"]["pool"].get("generation", 0))
