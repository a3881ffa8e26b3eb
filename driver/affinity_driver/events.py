"""Events on the Node about what a driver cannot put right by itself.

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
REPEAT = 3600.0
MAX_MESSAGE = 1024


class NodeEvents:
    """Writes Warning events about ``node``, by ``component`` (the driver's name)."""

    def __init__(self, api: Api, node: str, component: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._node = node
        self._component = component
        self._clock = clock
        self._written: dict[tuple[str, str], float] = {}
        self._guard = threading.Lock()
        self._log = structlog.get_logger("affinity_driver.events")

    def warn(self, reason: str, message: str) -> None:
        """Write an event; returns quickly or after one failed call, never raises."""
        now = self._clock()
        with self._guard:
            if now - self._written.get((reason, message), -REPEAT) < REPEAT:
                return
            self._written[reason, message] = now
        try:
            self._api.create(f"/api/v1/namespaces/{NAMESPACE}/events", self._event(reason, message, now))
        except ApiError as error:
            self._log.warning("cannot write event", reason=reason, error=str(error))

    def _event(self, reason: str, message: str, now: float) -> JsonObject:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._node}.{uuid.uuid4().hex[:16]}", "namespace": NAMESPACE},
            # The kubelet's own events about a Node carry its name as uid; kubectl describe looks for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "reason": reason,
            "message": message[:MAX_MESSAGE],
            "type": "Warning",
            "source": {"component": self._component, "host": self._node},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
