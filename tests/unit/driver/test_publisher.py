"""Single passes of publishing against answers made up for them; the whole is tested on a real API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from affinity_driver.kube import ApiError
from affinity_driver.publish.controller import Publisher
from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES, Device, Fence, Pool
from sharing_affinity.api import Extractor

NO_SUCH_API = ApiError(404, "", "404 page not found")
SUBNET = Extractor("subnet", 'has(object.subnet) ? object.subnet : ""')


class Uninstalled:
    """An API server that has lost the CRD of metadata slices."""

    def __init__(self) -> None:
        self.created: list[str] = []

    def list(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        if path == METADATA_SLICES:
            raise NO_SUCH_API
        return {"items": []}

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == METADATA_SLICES:
            raise NO_SUCH_API
        self.created.append(path)
        return body


class Observed:
    """Takes what it is told."""

    def published(self, generation: int, slices: int, writes: int) -> None:
        """See ``PublishObserver``."""

    def problem(self, reason: str, message: str) -> None:
        """See ``PublishObserver``."""


def publisher(api: Any, *extractors: Extractor) -> Publisher:
    fence = Fence.TAINT if extractors else Fence.NONE
    pool = Pool("nic.example.com", "node-a", "node-a", "uid", (Device("eth1", {}, {}),), extractors, fence)
    return Publisher(api, lambda: pool, Observed())  # type: ignore[arg-type]


def test_a_pool_without_extractors_is_published_after_everything_was_uninstalled() -> None:
    """docs/admin.md: drivers without sharing affinity first, then the custom resources."""
    api = Uninstalled()
    made = publisher(api)
    assert made.extractors() == ()
    made.sync()
    assert api.created == [RESOURCE_SLICES]


def test_a_pool_with_extractors_is_not() -> None:
    api = Uninstalled()
    with pytest.raises(ApiError):
        publisher(api, SUBNET).sync()
    assert api.created == []
