"""The DRAPlugin service: a thin adapter between the kubelet's messages and a ``Plugin``.

Every claim of a request gets an entry in the answer, whatever happened: the kubelet treats a missing one as
an error of its own, and one failing claim must not take the others with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import structlog

from affinity_driver.claims.errors import BusyError, PrepareError
from affinity_driver.proto import dra_v1_pb2 as dra
from affinity_driver.state.device_state import PreparedDevice
from sharing_affinity.api.keys import shorten

from .jobs import ClaimJobs

SERVICE_V1 = "v1.DRAPlugin"
"""What the registration calls the service; not its gRPC name."""
MAX_CLAIMS = 1024
MAX_PROBLEM = 1024
"""Characters of an error, on its way into an Event. It quotes users: JSON may hold what protobuf refuses."""
DEFAULT_DEADLINE = 40.0
MARGIN = 1.0
"""Seconds before the caller's deadline at which we answer rather than be cut off."""
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


class Plugin(Protocol):
    """What a driver does for the kubelet. Both may block for as long as the work takes."""

    def prepare(self, claim: ClaimRef, seconds: float) -> Sequence[PreparedDevice]:
        """Prepare a claim. ``seconds`` is how long the caller still waits. Raises PrepareError."""
        ...

    def unprepare(self, claim: ClaimRef) -> None:
        """Undo a claim; unknown ones are fine. Raises PrepareError."""
        ...


class CallObserver(Protocol):
    """Who wants to know how calls went: the metrics."""

    def call(self, operation: str, outcome: str, seconds: float) -> None:
        """One claim was prepared or unprepared with that outcome, seen from the caller."""
        ...


class DRAPlugin:
    """Serves ``plugin``. ``margin`` is kept from each deadline (seconds)."""

    def __init__(self, plugin: Plugin, observer: CallObserver, margin: float = MARGIN) -> None:
        self._plugin = plugin
        self._observer = observer
        self._margin = margin
        self._jobs: ClaimJobs[Sequence[PreparedDevice] | None] = ClaimJobs()
        self._log = structlog.get_logger("affinity_driver.kubelet")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The gRPC handlers to add to a server."""
        service = dra.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self.prepare,
                request_deserializer=dra.NodePrepareResourcesRequest.FromString,
                response_serializer=dra.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self.unprepare,
                request_deserializer=dra.NodeUnprepareResourcesRequest.FromString,
                response_serializer=dra.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        return [grpc.method_handlers_generic_handler(service, methods)]

    def prepare(
        self, request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodePrepareResourcesResponse:
        """NodePrepareResources. An empty request is a liveness probe: legal, cheap and not logged."""
        start, deadline = self._admit(request.claims, context)
        refs = {claim.uid: ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims}
        jobs = {
            uid: self._jobs.submit("prepare", uid, lambda ref=ref: self._prepare(ref, deadline))  # type: ignore[misc]
            for uid, ref in refs.items()
            if _UID.fullmatch(uid)
        }
        response = dra.NodePrepareResourcesResponse()
        for uid, ref in refs.items():
            devices, problem = self._outcome("prepare", ref, jobs.get(uid), start, deadline)
            entry = response.claims[uid]
            entry.error = problem
            for device in devices or ():
                entry.devices.append(_message(device))
        return response

    def unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources."""
        start, deadline = self._admit(request.claims, context)
        refs = {claim.uid: ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims}
        jobs = {
            uid: self._jobs.submit("unprepare", uid, lambda ref=ref: self._plugin.unprepare(ref))  # type: ignore[misc]
            for uid, ref in refs.items()
            if _UID.fullmatch(uid)
        }
        response = dra.NodeUnprepareResourcesResponse()
        for uid, ref in refs.items():
            _, problem = self._outcome("unprepare", ref, jobs.get(uid), start, deadline)
            response.claims[uid].error = problem
        return response

    def drain(self, seconds: float) -> bool:
        """Wait for work in progress; False where some is not done after ``seconds``."""
        return self._jobs.drain(seconds)

    def _admit(self, claims: Sequence[Any], context: grpc.ServicerContext) -> tuple[float, float]:
        start = time.monotonic()
        if len(claims) > MAX_CLAIMS:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{len(claims)} claims in one call; at most {MAX_CLAIMS}",
            )
        remaining = context.time_remaining()
        wait = DEFAULT_DEADLINE if remaining is None else min(remaining, 24 * 3600.0)
        return start, start + max(0.0, wait - self._margin)

    def _prepare(self, ref: ClaimRef, deadline: float) -> Sequence[PreparedDevice]:
        return self._plugin.prepare(ref, max(0.5, deadline - time.monotonic()))

    def _outcome(
        self, operation: str, ref: ClaimRef, job: Future[Any] | None, start: float, deadline: float
    ) -> tuple[Sequence[PreparedDevice] | None, str]:
        """The job's result within the deadline, and the error text for the kubelet ("" for none)."""
        result, problem, outcome = None, "", "ok"
        try:
            if job is None:
                raise PrepareError(f"claim UID {ref.uid[:64]!r} is no UID")
            try:
                result = job.result(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                if job.done():
                    raise
                raise BusyError(f"{operation} is still in progress; a retry picks up its result") from None
        except PrepareError as error:
            problem, outcome = str(error), error.outcome
        except Exception as error:
            problem, outcome = f"internal error: {type(error).__name__}: {error}", "internal"
            self._log.exception("unexpected error", operation=operation, uid=ref.uid)
        problem = shorten(problem, MAX_PROBLEM)
        seconds = time.monotonic() - start
        self._observer.call(operation, outcome, seconds)
        level = self._log.info if outcome == "ok" else self._log.warning
        claim, milliseconds = f"{ref.namespace}/{ref.name}", round(seconds * 1000, 1)
        level(operation, claim=claim, uid=ref.uid, outcome=outcome, error=problem or None, ms=milliseconds)
        return result, problem


def _message(device: PreparedDevice) -> dra.Device:
    message = dra.Device(
        request_names=[device.request],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=[device.cdi_id],
    )
    if device.share_id is not None:
        message.share_id = device.share_id
    return message
