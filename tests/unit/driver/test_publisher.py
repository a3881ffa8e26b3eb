"""Single passes of publishing against answers made up for them; the whole is tested on a real API server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from affinity_driver.kube import ApiError
from affinity_driver.publish import controller
from affinity_driver.publish.controller import Publisher
from affinity_driver.publish.desired import METADATA_SLICES, RESOURCE_SLICES, Device, Fence, Pool, members
from sharing_affinity.api import Extractor, names

NO_SUCH_API = ApiError(404, "", "404 page not found")
SUBNET = Extractor("subnet", 'has(object.subnet) ? object.subnet : ""')
PKEY = Extractor("pkey", 'has(object.pkey) ? object.pkey : ""')


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


class Published:
    """An API server with a pool on it, which it first refuses to have changed."""

    def __init__(self, pool: Pool) -> None:
        self.refuses = True
        self._items: dict[str, list[dict[str, Any]]] = {RESOURCE_SLICES: [], METADATA_SLICES: []}
        for member in members(pool):
            body = member.with_generation(1)
            for device in body["spec"].get("devices", ()):
                device["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
            self._items[member.collection].append(body)

    def list(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        return {"items": self._items[path]}

    def update(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.refuses:
            raise ApiError(403, "Forbidden", "no right to update")
        return body

    def apply_status(self, path: str, body: dict[str, Any], manager: str, *, force: bool) -> dict[str, Any]:
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


def test_claims_are_judged_by_what_is_published_not_by_what_should_be() -> None:
    """An upgrade brings another extractor and cannot publish it yet: an instance before it does, or may."""
    old = Published(publisher(None, SUBNET)._pool())
    made = publisher(old, SUBNET, PKEY)
    assert made.extractors() == (SUBNET,)
    with pytest.raises(ApiError):
        made.sync()
    assert made.extractors() == (SUBNET,)
    old.refuses = False
    made.sync()
    assert set(made.extractors()) == {SUBNET, PKEY}


@pytest.mark.parametrize("step", [-3600, 3600])
def test_the_wait_after_fencing_is_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A clock that is set while a fence settles neither ends the wait nor makes it an hour."""
    passed, put = [0.0], [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: 100.0 + passed[0], time=lambda: 1_800_000_000.0 + passed[0] + put[0]
    )
    monkeypatch.setattr(controller, "time", clock)
    made = publisher(None, SUBNET)
    device: dict[str, Any] = {"name": "eth1"}
    slices: dict[str, list[dict[str, Any]]] = {
        RESOURCE_SLICES: [{"spec": {"devices": [device]}}],
        METADATA_SLICES: [],
    }
    assert made._settling(made._pool(), slices) == 30.0
    stamp = datetime.fromtimestamp(clock.time(), UTC).isoformat()
    device["taints"] = [{"key": names.FENCE_KEY, "effect": names.FENCE_EFFECT, "timeAdded": stamp}]
    passed[0], put[0] = 10.0, step
    assert made._settling(made._pool(), slices) == 20.0
    passed[0] = 31.0
    assert made._settling(made._pool(), slices) == 0.0
