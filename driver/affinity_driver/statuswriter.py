"""Keeps ``status.devices`` of claims at what is prepared, beside the path of prepare.

Calls only note which claims changed. A thread of its own then asks the checkpoint what is true now, compares
with what the claim's status says, and applies the difference. So the order of notes does not matter, two
driver processes of an upgrade say the same, and a status that cannot be written fails no pod: it is tried
again with back-off while the claim lives.

Writing is server-side apply under the driver's name: entries of other drivers are not even sent. Nothing is
forced: where somebody else has set a field of ours, it stays, and an event says who and how to give it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from .claims.errors import BusyError, PrepareError
from .claims.read import claim_path
from .claims.report import (
    DeviceReport,
    Refusal,
    identity,
    prepared_entries,
    refusal_of,
    refused_entries,
    timed,
)
from .json_types import JsonObject
from .kube import Api, ApiError
from .state.model import NodeState, Phase, PreparedClaim, Share

SETTLE = 0.1
"""Seconds from a note to its write: a pod's claims come in one call, retries in bursts."""
MAX_WAITING = 1024
MAX_BACKOFF = 120.0
OUTCOMES = ("written", "unchanged", "conflict", "unpatchable", "retried", "dropped")


class StatusObserver(Protocol):
    """Who wants to know: the metrics and the events."""

    def status(self, outcome: str, waiting: int) -> None:
        """One of ``OUTCOMES``, and how many claims still wait."""
        ...

    def claim_problem(self, claim: JsonObject, reason: str, message: str) -> None:
        """Something the claim's owner should know."""
        ...

    def problem(self, reason: str, message: str) -> None:
        """Something that a person has to put right on this node or in the driver's rights."""
        ...


@dataclass(frozen=True, slots=True)
class _Note:
    """One claim whose status may be out of date; ``at`` is when to look (monotonic seconds)."""

    namespace: str
    name: str
    at: float
    refusal: Refusal | None = None
    failures: int = 0


class StatusWriter:
    """Writes the status of claims of ``driver`` on devices of ``pool``: a claim may have moved to another
    node's by now. ``state`` is what is prepared, ``report`` what the profile says of a share.
    """

    def __init__(
        self,
        api: Api,
        driver: str,
        pool: str,
        state: Callable[[], NodeState],
        report: Callable[[Share], DeviceReport],
        observer: StatusObserver,
    ) -> None:
        self._api = api
        self._driver = driver
        self._pool = pool
        self._state = state
        self._report = report
        self._observer = observer
        self._notes: dict[str, _Note] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._log = structlog.get_logger("affinity_driver.status")

    def start(self, state: NodeState) -> None:
        """Start writing, first about all that is prepared already."""
        for claim in state.claims.values():
            self.changed(claim.namespace, claim.name, claim.uid)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Write what waits for its first attempt, for at most so many seconds, and stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def changed(self, namespace: str, name: str, uid: str) -> None:
        """The claim was prepared or unprepared."""
        self._note(uid, _Note(namespace, name, time.monotonic() + SETTLE))

    def refused(self, claim: PreparedClaim, error: PrepareError) -> None:
        """The claim could not be prepared."""
        refusal = refusal_of(claim, error)
        if refusal is not None:
            note = _Note(claim.namespace, claim.name, time.monotonic() + SETTLE, refusal)
            self._note(claim.uid, note)

    def _note(self, uid: str, note: _Note) -> None:
        with self._changed:
            self._notes.pop(uid, None)
            self._notes[uid] = note
            if len(self._notes) > MAX_WAITING:
                self._notes.pop(next(iter(self._notes)))
                self._observer.status("dropped", len(self._notes))
            self._changed.notify_all()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            uid, note = due
            try:
                outcome = self._attempt(uid, note)
            except Exception:
                outcome = "dropped"
                with suppress(Exception):  # standard output may be what is broken
                    self._log.exception("cannot write status", claim=f"{note.namespace}/{note.name}")
            self._observer.status(outcome, len(self._notes))

    def _attempt(self, uid: str, note: _Note) -> str:
        try:
            return self._write(uid, note)
        except (ApiError, BusyError) as error:
            self._again(uid, note, error)
            return "retried"

    def _next(self) -> tuple[str, _Note] | None:
        """The next claim to look at, taken from the notes; None when it is time to end."""
        with self._changed:
            while True:
                if self._stopping:
                    self._notes = {uid: note for uid, note in self._notes.items() if not note.failures}
                    if not self._notes:
                        return None
                now = time.monotonic()
                uid = min(self._notes, key=lambda uid: self._notes[uid].at, default=None)
                if uid is not None and (self._stopping or self._notes[uid].at <= now):
                    return uid, self._notes.pop(uid)
                self._changed.wait(None if uid is None else self._notes[uid].at - now)

    def _again(self, uid: str, note: _Note, error: Exception) -> None:
        pause = min(MAX_BACKOFF, 2.0 ** min(note.failures, 10))
        again = replace(note, at=time.monotonic() + pause, failures=note.failures + 1)
        with self._changed:
            # A newer note knows better.
            if uid not in self._notes and len(self._notes) < MAX_WAITING:
                self._notes[uid] = again
        self._log.warning(
            "status not written, will retry",
            claim=f"{note.namespace}/{note.name}", error=str(error), seconds=pause,
        )  # fmt: skip
        if isinstance(error, ApiError) and _forbidden(error):
            self._observer.problem(
                "StatusForbidden",
                f"driver {self._driver} may not write status.devices of claims: it needs patch on "
                f"resourceclaims/status, associated-node:patch on resourceclaims/driver for {self._driver} "
                f"(the manifests' ClusterRole has both), and a token bound to this node: {error.message}",
            )

    def _write(self, uid: str, note: _Note) -> str:
        """Bring one claim's status up to date; the outcome. Raises ApiError and BusyError."""
        path = claim_path(note.namespace, note.name)
        try:
            claim = self._api.get(path)
        except ApiError as error:
            if error.code == 404:
                return "unchanged"
            raise
        status = claim.get("status") or {}
        allocation = status.get("allocation")
        if claim["metadata"]["uid"] != uid or not allocation:
            return "unchanged"  # The server itself drops entries of devices that are not allocated any more.
        wanted = self._wanted(uid, note)
        if wanted is None:
            return "unchanged"
        allocated = {identity(result) for result in allocation["devices"].get("results") or ()}
        ours = (self._driver, self._pool)
        there = [e for e in status.get("devices") or () if (e["driver"], e["pool"]) == ours]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entries = timed([entry for entry in wanted if identity(entry) in allocated], there, now)
        if {identity(entry): entry for entry in entries} == {identity(entry): entry for entry in there}:
            return "unchanged"
        if note.refusal is not None and entries:
            self._observer.claim_problem(claim, f"Prepare{note.refusal.reason}", note.refusal.message)
        body: JsonObject = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": note.name, "uid": uid},
            "status": {"devices": entries},
        }
        try:
            self._api.apply_status(path, body, self._driver, force=False)
        except ApiError as error:
            return self._refused_write(claim, error)
        return "written"

    def _wanted(self, uid: str, note: _Note) -> list[JsonObject] | None:
        """The entries that are right now; None while a prepare is under way, which will note its end."""
        stored = self._state().claims.get(uid)
        if stored is not None:
            done = stored.phase is Phase.COMPLETED
            return prepared_entries(self._driver, stored, self._report) if done else None
        return refused_entries(self._driver, note.refusal) if note.refusal is not None else []

    def _refused_write(self, claim: JsonObject, error: ApiError) -> str:
        """Diagnose what trying again cannot change. Raises the error where it can."""
        if error.code == 404:
            return "unchanged"
        if error.code == 409 and "conflict with" in error.message:
            self._observer.claim_problem(
                claim,
                "StatusContested",
                f"driver {self._driver} leaves fields of its entries in status.devices as another writer "
                f"set them: {error.message}; remove them (kubectl edit --subresource=status), and the driver "
                "sets its own at the next prepare or start",
            )
            return "conflict"
        if error.code == 422 and "status.allocation" in error.message:
            self._observer.claim_problem(
                claim,
                "StatusUnpatchable",
                f"driver {self._driver} cannot write status.devices: the API server refuses every patch of "
                "a claim whose allocated parameters are not written as Go writes JSON (sorted keys, no "
                "spaces; <, > and & escaped); those of claims made with kubectl or allocated by "
                "sharing-affinity are",
            )
            return "unpatchable"
        raise error


def _forbidden(error: ApiError) -> bool:
    """403, or the 422 by which the API server refuses status.devices (KEP-4817, granular authorization)."""
    return error.code == 403 or (error.code == 422 and "resourceclaims/driver" in error.message)
