"""Registration with the kubelet: it finds our socket in its registry folder, asks who we are, and says what
it thinks.

GetInfo answers within the kubelet's second from constants. After a kubelet restart both calls come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog

from affinity_driver.proto import pluginregistration_v1_pb2 as registration


class Registrar:
    """Serves the Registration of one driver. ``versions`` newest first: the kubelet takes the first it
    knows.
    """

    def __init__(
        self,
        driver: str,
        endpoint: Path,
        versions: Sequence[str],
        on_registered: Callable[[], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._versions = list(versions)
        self._on_registered = on_registered
        self._on_refused = on_refused
        self.registered = threading.Event()
        self.problem = ""
        self._log = structlog.get_logger("affinity_driver.kubelet")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The gRPC handlers to add to a server."""
        service = registration.DESCRIPTOR.services_by_name["Registration"].full_name
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                self.get_info,
                request_deserializer=registration.InfoRequest.FromString,
                response_serializer=registration.PluginInfo.SerializeToString,
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                self.notify,
                request_deserializer=registration.RegistrationStatus.FromString,
                response_serializer=registration.RegistrationStatusResponse.SerializeToString,
            ),
        }
        return [grpc.method_handlers_generic_handler(service, methods)]

    def get_info(
        self, request: registration.InfoRequest, context: grpc.ServicerContext
    ) -> registration.PluginInfo:
        """Who we are, and where the DRAPlugin is served."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=self._versions,
        )

    def notify(
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        """What came of it. A refusal is logged; the kubelet tries again by itself."""
        if request.plugin_registered:
            self.problem = ""
            self.registered.set()
            self._log.info("registered with the kubelet")
            self._on_registered()
        else:
            self.problem = request.error
            self._log.error("the kubelet refuses the registration", error=request.error)
            self._on_refused(request.error)
        return registration.RegistrationStatusResponse()
