"""The doctor where it cannot look: that is a finding like others, and takes none of the others away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from affinity_driver.cdi import CdiDirectory
from affinity_driver.disk import Disk
from affinity_driver.doctor import cluster, node
from affinity_driver.kube import ApiError

DENIED = PermissionError(13, "Permission denied", "/plugins/nic/file")


class Leaving:
    """An API server that answers once."""

    def get(self, path: str) -> dict[str, Any]:
        if path == "/version":
            return {"gitVersion": "v1.37.0"}
        raise ApiError(0, "", "no answer from the API server")

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise ApiError(0, "", "no answer from the API server")

    def date(self) -> str:
        raise ApiError(0, "", "no answer from the API server")


class Timeless(Leaving):
    """A proxy before it takes the header away."""

    def date(self) -> str:
        return ""


@pytest.mark.parametrize("api", [Leaving(), Timeless()])
def test_an_api_server_that_stops_to_answer(api: Any) -> None:
    found = {finding.check: finding for finding in cluster.look(api, "d", "node-a", [], [])}
    assert found["API server"].verdict == "ok"
    assert found["clock"].verdict == "unsure"
    assert found["node"].verdict == "wrong"


def test_a_user_who_may_not_read_the_drivers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "plugins" / "d"
    directory.mkdir(parents=True)
    (directory / "dra.sock").touch()

    def denied(*_: object) -> Any:
        raise DENIED

    monkeypatch.setattr(node, "live_instances", denied)
    monkeypatch.setattr(Disk, "read", denied)
    cdi = CdiDirectory(tmp_path / "cdi", "d", "nic", Disk())
    found = {finding.check: finding for finding in node.look(tmp_path, "d", cdi)}
    for check in ("driver", "checkpoint"):
        assert found[check].verdict == "wrong"
        assert "Permission denied" in found[check].found
        assert "root" in found[check].remedy
    assert "sockets" not in found  # whose they are is not known
