"""DRAResourceHealth over a real socket: both versions, reports at once, on change and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from affinity_driver.kubeletplugin import health
from affinity_driver.kubeletplugin.health import SERVICES, HealthService
from affinity_driver.kubeletplugin.server import UnixServer
from e2e.cluster import wait_for


class Devices:
    """Two devices, one of which can be broken, and a look that can hang."""

    def __init__(self) -> None:
        self.faults = {"eth1": "", "eth2": ""}
        self.hang = threading.Event()
        self.changes = 0

    def look(self) -> dict[str, str]:
        while self.hang.is_set():
            self.hang.wait(0.01)
        return dict(self.faults)

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture
def devices() -> Devices:
    return Devices()


@pytest.fixture
def channel(devices: Devices, tmp_path: Path) -> Iterator[grpc.Channel]:
    service = HealthService("node-a", devices.look, devices.changed, look_seconds=0.05, report_seconds=1)
    server = UnixServer(tmp_path / "h.sock", service.handlers(), 8)
    server.start()
    service.start()
    with grpc.insecure_channel(f"unix:{tmp_path / 'h.sock'}") as made:
        yield made
    service.close()
    stopping = threading.Thread(target=server.stop, args=(20,))
    stopping.start()
    stopping.join(5)
    assert not stopping.is_alive(), "an open stream kept the server from stopping"


def watch(channel: grpc.Channel, name: str, timeout: float = 20) -> Any:
    messages: Any = SERVICES[name]
    call = channel.unary_stream(
        f"/{name}/NodeWatchResources",
        request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
        response_deserializer=messages.NodeWatchResourcesResponse.FromString,
    )
    return call(messages.NodeWatchResourcesRequest(), timeout=timeout)


def seen(answer: Any) -> dict[str, tuple[int, str]]:
    return {entry.device.device_name: (entry.health, entry.message) for entry in answer.devices}


@pytest.mark.parametrize("name", SERVICES)
def test_state_at_once_and_changes_as_they_come(devices: Devices, channel: grpc.Channel, name: str) -> None:
    stream = watch(channel, name)
    first = next(stream)
    assert seen(first) == {"eth1": (1, ""), "eth2": (1, "")}
    (entry, _) = first.devices
    assert (entry.device.pool_name, entry.health_check_timeout_seconds) == ("node-a", 30)
    devices.faults["eth2"] = "no link " + "x" * 2000
    while (now := seen(next(stream)))["eth2"][0] != 2:
        pass
    assert now["eth1"] == (1, "")
    assert now["eth2"][1].startswith("no link")
    assert len(now["eth2"][1]) == 1024
    # Told after it was reported, by another thread.
    wait_for("the change to be told", lambda: devices.changes == 1)


def test_reports_are_repeated_and_stop_when_nobody_looks(devices: Devices, channel: grpc.Channel) -> None:
    stream = watch(channel, "v1.DRAResourceHealth", timeout=4)
    times = [next(stream).devices[0].last_updated_time for _ in range(2)]
    assert times[1] > times[0]
    devices.hang.set()
    with pytest.raises(grpc.RpcError) as ended:
        list(stream)
    devices.hang.clear()
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_reports_are_repeated_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, channel: grpc.Channel
) -> None:
    """A node that boots with a wrong clock: without reports the kubelet forgets the devices' health."""
    stream = watch(channel, "v1.DRAResourceHealth", timeout=10)
    first = next(stream).devices[0].last_updated_time
    monkeypatch.setattr(health, "time", SimpleNamespace(time=lambda: first - 3600, monotonic=time.monotonic))
    assert next(stream).devices[0].last_updated_time == first - 3600


def test_streams_do_not_starve_each_other(channel: grpc.Channel) -> None:
    streams = [watch(channel, name) for name in SERVICES for _ in range(3)]
    for stream in streams:
        assert seen(next(stream))["eth1"] == (1, "")
