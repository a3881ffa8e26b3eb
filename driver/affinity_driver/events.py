"""Events on the Node about what a driver cannot put right by itself, and on a claim about what concerns
its owner.

A log line on one of a thousand nodes is read by nobody. Events are a courtesy, though: failing to write one
is logged and forgotten, and the same one is not written again within an hour.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import structlog

from .json_types import JsonObject
from .kube import Api, ApiError

NAMESPACE = "default"
"""Where events about cluster-scoped objects live."""
REMEMBERED = 1024
REPEAT = 3600.0
MAX_MESSAGE = 1024
MAX_STEM = 200
"""Characters of the object's name in the event's."""


class DriverEvents:
    """Writes Warning events about ``node`` and about claims, by ``component`` (the driver's name)."""

    def __init__(self, api: Api, node: str, component: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._node = node
        self._component = component
        self._clock = clock
        self._written: dict[tuple[str, str, str], float] = {}
        self._guard = threading.Lock()
        self._log = structlog.get_logger("affinity_driver.events")

    def warn(self, reason: str, message: str) -> None:
        """Write an event about the node; returns quickly or after one failed call, never raises."""
        # The kubelet's own events about a Node carry its name as uid; kubectl describe looks for that.
        node = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}
        self._warn(NAMESPACE, node, reason, message)

    def warn_claim(self, claim: JsonObject, reason: str, message: str) -> None:
        """The same about a ResourceClaim, in its namespace."""
        metadata = claim["metadata"]
        about = {name: metadata[name] for name in ("namespace", "name", "uid")}
        about |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        self._warn(metadata["namespace"], about, reason, message)

    def _warn(self, namespace: str, about: JsonObject, reason: str, message: str) -> None:
        now = self._clock()
        key = (about["uid"], reason, message)
        with self._guard:
            if now - self._written.get(key, -REPEAT) < REPEAT:
                return
            self._written.pop(key, None)
            self._written[key] = now
            if len(self._written) > REMEMBERED:
                del self._written[next(iter(self._written))]
        try:
            event = self._event(namespace, about, reason, message, now)
            self._api.create(f"/api/v1/namespaces/{namespace}/events", event)
        except ApiError as error:
            self._log.warning("cannot write event", reason=reason, error=str(error))

    def _event(self, namespace: str, about: JsonObject, reason: str, message: str, now: float) -> JsonObject:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{about['name'][:MAX_STEM].rstrip('.-')}.{uuid.uuid4().hex[:16]}",
                "namespace": namespace,
            },
            "involvedObject": about,
            "reason": reason,
            "message": message[:MAX_MESSAGE],
            "type": "Warning",
            "source": {"component": self._component, "host": self._node},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
