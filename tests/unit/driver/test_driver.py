"""The driver put together, without sockets: what a prepare makes of a claim."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from affinity_driver.claims.errors import ConfigError, PrepareError
from affinity_driver.driver import Driver, DriverOptions
from affinity_driver.kube import ApiError
from affinity_driver.kubeletplugin.service import ClaimRef
from affinity_driver.profiles import ProfileOptions

NIC = "nic.sharingaffinity.dev"


class Claims:
    """An API server with claims that are allocated on ``eth1``, each with the subnet ``a`` alone."""

    def get(self, path: str, timeout: float | None = None) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        result = {"request": "nic", "driver": NIC, "pool": "node-a", "device": "eth1", "shareID": name}
        parameters = {"apiVersion": f"{NIC}/v1", "kind": "NICConfig", "subnet": "a"}
        config = {"source": "FromClaim", "opaque": {"driver": NIC, "parameters": parameters}}
        return {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "status": {"allocation": {"devices": {"results": [result], "config": [config]}}},
        }

    def list(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        raise ApiError(404, "", "404 page not found")


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short name: pytest's own are too long for Unix sockets below them."""
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        yield Path(folder)


def driver(root: Path, publish: bool = False, **profile: Any) -> Driver:
    options = DriverOptions(
        "nic", "node-a", root, root / "cdi", publish=publish, profile_options=ProfileOptions(**profile)
    )
    made = Driver(options, Claims())  # type: ignore[arg-type]
    made.directory.mkdir(parents=True, exist_ok=True)
    made.state.start(frozenset(made.devices()))
    return made


def test_running_pods_keep_what_they_were_prepared_with_when_extractors_change(root: Path) -> None:
    """The kubelet restarts after an upgrade that asks for one more key, which their claims do not have."""
    before = driver(root).prepare(ClaimRef("default", "old", "old"), 10)
    after = driver(root, pkey=True)
    assert after.prepare(ClaimRef("default", "old", "old"), 10) == before
    with pytest.raises(ConfigError, match="gives pkey"):
        after.prepare(ClaimRef("default", "new", "new"), 10)


def test_running_pods_do_not_depend_on_what_is_published(root: Path) -> None:
    """The custom resources were deleted; driver and kubelet restart."""
    before = driver(root).prepare(ClaimRef("default", "old", "old"), 10)
    after = driver(root, publish=True)
    assert after.prepare(ClaimRef("default", "old", "old"), 10) == before
    with pytest.raises(PrepareError, match="published extractors cannot be read: 404"):
        after.prepare(ClaimRef("default", "new", "new"), 10)
