"""The kubelet's end of a driver's sockets: a gRPC client that calls as the kubelet does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from affinity_driver.proto import dra_v1_pb2 as dra
from affinity_driver.proto import pluginregistration_v1_pb2 as registration

REGISTRATION = "/pluginregistration.Registration"
DRA_V1 = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class KubeletClient:
    """Calls one driver. ``registered`` is what GetInfo said, once ``register`` was called."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self._channel: grpc.Channel | None = None
        self.info: registration.PluginInfo | None = None

    def sockets(self) -> list[Path]:
        """The registration sockets that are there."""
        return sorted(path for path in self._registry.glob("*-reg.sock") if path.is_socket())

    def register(self, accept: bool = True) -> registration.PluginInfo:
        """Find the one registration socket, ask who it is within the kubelet's second, and answer."""
        (socket,) = self.sockets()
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            info: registration.PluginInfo = channel.unary_unary(
                f"{REGISTRATION}/GetInfo",
                request_serializer=registration.InfoRequest.SerializeToString,
                response_deserializer=registration.PluginInfo.FromString,
            )(registration.InfoRequest(), timeout=1)
            status = registration.RegistrationStatus(
                plugin_registered=accept, error="" if accept else "refused"
            )
            channel.unary_unary(
                f"{REGISTRATION}/NotifyRegistrationStatus",
                request_serializer=registration.RegistrationStatus.SerializeToString,
                response_deserializer=registration.RegistrationStatusResponse.FromString,
            )(status, timeout=5)
        self.info = info
        self._channel = grpc.insecure_channel(f"unix:{info.endpoint}")
        return info

    def close(self) -> None:
        """Drop the connection."""
        if self._channel is not None:
            self._channel.close()

    def prepare(self, *claims: dict[str, Any], timeout: float = 45) -> dict[str, Any]:
        """NodePrepareResources for claim objects; the entries by UID."""
        request = dra.NodePrepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        call = self._method(
            "NodePrepareResources", dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
        )
        return dict(call(request, timeout=timeout).claims)

    def start_prepare(self, *claims: dict[str, Any], timeout: float = 45) -> grpc.Future:
        """The same call, begun and not waited for."""
        request = dra.NodePrepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        call = self._method(
            "NodePrepareResources", dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
        )
        future: grpc.Future = call.future(request, timeout=timeout)
        return future

    def unprepare(self, *claims: dict[str, Any], timeout: float = 45) -> dict[str, str]:
        """NodeUnprepareResources; the error of each claim by UID, "" for none."""
        request = dra.NodeUnprepareResourcesRequest(claims=[_claim(claim) for claim in claims])
        call = self._method(
            "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
        )
        return {uid: entry.error for uid, entry in call(request, timeout=timeout).claims.items()}

    def raw(self, method: str, data: bytes, timeout: float = 10) -> bytes:
        """Any bytes to any method of DRAPlugin."""
        assert self._channel is not None
        answer: bytes = self._channel.unary_unary(f"{DRA_V1}/{method}")(data, timeout=timeout)
        return answer

    def _method(self, name: str, request: Any, response: Any) -> Any:
        assert self._channel is not None
        return self._channel.unary_unary(
            f"{DRA_V1}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )


def _claim(claim: dict[str, Any]) -> dra.Claim:
    metadata = claim["metadata"]
    return dra.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


@contextmanager
def kubelet(registry: Path) -> Iterator[KubeletClient]:
    """A registered client; closed afterwards."""
    client = KubeletClient(registry)
    try:
        client.register()
        yield client
    finally:
        client.close()
