"""DRAResourceHealth: telling the kubelet how the devices are, for ``allocatedResourcesStatus`` of running
pods.

Both versions are served from one report; their messages are the same. The kubelet forgets what it was told
after a lease (30 s unless the device says otherwise), so a full report is sent again well before, by the
thread that looks at the devices: when that one hangs, health becomes Unknown, which is the truth.

A stream holds a thread of the server for as long as it lives. Streams end when the service closes, before
the server stops, since it would wait for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import grpc
import structlog

from affinity_driver.proto import dra_health_v1_pb2, dra_health_v1alpha1_pb2

SERVICES: Mapping[str, ModuleType] = {
    "v1.DRAResourceHealth": dra_health_v1_pb2,
    "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2,
}
"""What the registration calls the services (here also their gRPC names), newest first, and their messages."""
LOOK_SECONDS = 2.0
REPORT_SECONDS = 10.0
LEASE_SECONDS = 30
MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Report:
    """How all devices of a pool are at a time (Unix seconds): the fault of each device, "" for a healthy
    one.
    """

    pool: str
    faults: Mapping[str, str]
    time: int


class HealthService:
    """Looks at the devices, reports to every open stream, and tells ``on_change`` when a fault came or went.

    ``look`` returns the fault of each device and may take long; it is called from one thread.
    """

    def __init__(
        self,
        pool: str,
        look: Callable[[], Mapping[str, str]],
        on_change: Callable[[], None],
        look_seconds: float = LOOK_SECONDS,
        report_seconds: float = REPORT_SECONDS,
    ) -> None:
        self._pool = pool
        self._look = look
        self._on_change = on_change
        self._look_seconds = look_seconds
        self._report_seconds = report_seconds
        self._changed = threading.Condition()
        self._report: Report | None = None
        self._reported_at = 0.0
        self._closing = False
        self._log = structlog.get_logger("affinity_driver.health")

    def start(self) -> None:
        """Start looking."""
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def close(self) -> None:
        """End all streams and stop looking."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The gRPC handlers of all versions."""
        return [self._handler(module) for module in SERVICES.values()]

    def _handler(self, module: ModuleType) -> grpc.GenericRpcHandler:
        messages: Any = module
        service = messages.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name

        def watch(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            for report in self._reports(context):
                yield response(messages, report)

        method = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=messages.NodeWatchResourcesRequest.FromString,
            response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
        )
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"NodeWatchResources": method}
        return grpc.method_handlers_generic_handler(service, methods)

    def _reports(self, context: grpc.ServicerContext) -> Iterator[Report]:
        """Every report from now on, the latest at once; ends with the stream or the service."""
        seen: Report | None = None
        while context.is_active():
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._report is not seen, timeout=1.0)  # noqa: B023
                if self._closing:
                    return
                latest = self._report
            if latest is not None and latest is not seen:
                seen = latest
                yield latest

    def _run(self) -> None:
        while not self._closing:
            try:
                faults = dict(self._look())
            except Exception:
                # Nothing is reported: the kubelet's lease runs out and health becomes Unknown.
                self._log.exception("cannot look at the devices")
            else:
                self._take(faults)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, timeout=self._look_seconds)

    def _take(self, faults: dict[str, str]) -> None:
        now = time.monotonic()  # a clock that is put back must not silence us
        with self._changed:
            before = self._report
            changed = before is not None and before.faults != faults
            if before is None or changed or now - self._reported_at >= self._report_seconds:
                self._report = Report(self._pool, faults, int(time.time()))
                self._reported_at = now
                self._changed.notify_all()
        if changed:
            self._log.warning("health of devices changed", faults={k: v for k, v in faults.items() if v})
            self._on_change()


def response(messages: Any, report: Report) -> Any:
    """A report as the message of one version."""
    answer = messages.NodeWatchResourcesResponse()
    for device, fault in sorted(report.faults.items()):
        answer.devices.append(
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=report.pool, device_name=device),
                health=messages.UNHEALTHY if fault else messages.HEALTHY,
                last_updated_time=report.time,
                health_check_timeout_seconds=LEASE_SECONDS,
                message=fault[:MAX_MESSAGE],
            )
        )
    return answer
