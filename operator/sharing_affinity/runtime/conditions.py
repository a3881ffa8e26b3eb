"""The condition ``sharingaffinity.dev/ClaimsAllocated`` of pods: why a pod waits, on the pod itself.

It is there, with status False, while the operator cannot allocate the pod's claims, and taken away once they
are allocated: a pod that nothing was ever wrong with never has it. What counts is the last state handed in. A
pod that fails and is placed a moment later costs no write, one whose reason keeps changing a write every ten
seconds, and all of them share the small budget of Events and views.

Written by server-side apply with a field manager of its own, so that nobody else's conditions are touched,
and removing it is applying nothing.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from sharing_affinity.api.keys import cut
from sharing_affinity.api.reasons import CLAIMS_ALLOCATED
from sharing_affinity.engine import PodKey
from sharing_affinity.runtime.client import APPLY, ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import PODS
from sharing_affinity.runtime.pacing import Pacer

FIELD_MANAGER: Final = "sharing-affinity-pod-conditions"
MESSAGE_LIMIT: Final = 1024

log = structlog.get_logger("conditions")

#: Reason and message.
State = tuple[str, str]


@dataclass(slots=True)
class _Pod:
    """What is known of one pod: the condition it has (None: none), the one it shall have, and when to write
    that."""

    uid: str
    stored: State | None = None
    wanted: State | None = None
    due: float = 0.0
    since: str = ""


def find(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Our condition of a pod (raw JSON)."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == CLAIMS_ALLOCATED), None)


class PodConditions:
    """Writes them while this replica leads. ``settle``: seconds a pod must have failed before it gets the
    condition; ``repeat``: seconds between two writes for one pod. ``enabled`` false: none is written, and
    those that are met are removed."""

    def __init__(
        self,
        client: Client,
        *,
        pacer: Pacer,
        clock: Callable[[], float],
        wall: Callable[[], datetime.datetime],
        leading: Callable[[], bool],
        enabled: bool = True,
        settle: float = 1.0,
        repeat: float = 10.0,
    ) -> None:
        self._client, self._pacer, self._clock, self._wall = client, pacer, clock, wall
        self._leading = leading
        self._enabled, self._settle, self._repeat = enabled, settle, repeat
        self._pods: dict[PodKey, _Pod] = {}
        self._open: dict[PodKey, None] = {}
        self._work = asyncio.Event()
        self._forbidden = False

    def observed(self, pod: PodKey, raw: Mapping[str, Any]) -> None:
        """The pod as the watch shows it. A condition on a pod that is on a node already is out of date."""
        condition = find(raw)
        known = self._pods.get(pod)
        uid = raw["metadata"]["uid"]
        if known is not None and known.uid != uid:
            self.gone(pod)
            known = None
        if condition is None:
            if known is not None:
                known.stored = None
                if pod not in self._open or known.wanted is None or raw["spec"].get("nodeName"):
                    self.gone(pod)
            return
        if known is None:
            known = self._pods[pod] = _Pod(uid)
            # Whoever led before has said so; it stands until this replica has decided otherwise.
            known.wanted = _state(condition)
        known.stored, known.since = _state(condition), condition.get("lastTransitionTime") or ""
        if raw["spec"].get("nodeName") or not self._enabled:
            self.clear(pod)

    def gone(self, pod: PodKey) -> None:
        """The pod is no more."""
        self._pods.pop(pod, None)
        self._open.pop(pod, None)

    def failed(self, pod: PodKey, uid: str, reason: str, message: str) -> None:
        """The pod's claims cannot be allocated now."""
        if not self._enabled:
            return
        known = self._pods.get(pod)
        if known is None or known.uid != uid:
            known = self._pods[pod] = _Pod(uid)
        known.wanted = (reason, cut(message, MESSAGE_LIMIT))
        if known.wanted == known.stored:
            self._open.pop(pod, None)
        elif pod not in self._open:
            known.due = max(known.due, self._clock() + self._settle)
            self._open[pod] = None
            self._work.set()

    def clear(self, pod: PodKey) -> None:
        """The pod's claims are allocated."""
        known = self._pods.get(pod)
        if known is None:
            return
        known.wanted = None
        if known.stored is None:
            self.gone(pod)
        else:
            known.due = min(known.due, self._clock())
            self._open[pod] = None
            self._work.set()

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            now = self._clock()
            for pod in [pod for pod in self._open if self._pods[pod].due <= now]:
                await self._pacer.wait()
                if pod in self._open and self._leading():
                    await self._write(pod)
            if self._open:
                await asyncio.sleep(0.25)
                self._work.set()

    async def _write(self, pod: PodKey) -> None:
        known = self._pods.get(pod)
        if known is None or known.wanted == known.stored:
            self._open.pop(pod, None)
            return
        wanted = known.wanted
        since = known.since if known.stored is not None and known.since else self._now()
        conditions = []
        if wanted is not None:
            conditions.append(
                {
                    "type": CLAIMS_ALLOCATED,
                    "status": "False",
                    "reason": wanted[0],
                    "message": wanted[1],
                    "lastTransitionTime": since,
                }
            )
        known.due = self._clock() + self._repeat
        try:
            await self._client.request(
                "PATCH",
                PODS.item(*pod, "status"),
                params={"fieldManager": FIELD_MANAGER, "force": "true"},
                content_type=APPLY,
                body={
                    "apiVersion": PODS.group_version,
                    "kind": PODS.kind,
                    # With its uid, or a pod of the same name would get it.
                    "metadata": {"namespace": pod[0], "name": pod[1], "uid": known.uid},
                    "status": {"conditions": conditions},
                },
            )
        except ApiError as error:
            log.debug("condition not written", pod="/".join(pod), problem=str(error))
            if error.status in (404, 409):
                self.gone(pod)
            elif error.status == 403 and not self._forbidden:
                self._forbidden = True
                log.warning("pods get no conditions", problem=error.message)
            return
        except NoAnswerError as error:
            log.debug("condition not written", pod="/".join(pod), problem=str(error))
            return
        known.stored, known.since = wanted, since
        if known.wanted == wanted:
            self._open.pop(pod, None)
            if wanted is None:
                self.gone(pod)

    def _now(self) -> str:
        return self._wall().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(condition: Mapping[str, Any]) -> State:
    return condition.get("reason") or "", condition.get("message") or ""
