"""Claims that nobody will ever ask to unprepare.

The kubelet can die between calling us and noting that it did, and then a claim stays in our checkpoint for
ever, with its lock on the device. A sweep asks the API server about every claim in the checkpoint, and
undoes those that are gone, have another UID, or are not allocated so any more: a claim that outlives its pods
may be used on another node next. Unfinished ones go at once. Prepared ones only when two sweeps in a row
found them gone: their pod may have been deleted by force while its containers still run, and the kubelet has
until then to end them and to call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from affinity_driver.claims.errors import PrepareError
from affinity_driver.claims.read import claim_path
from affinity_driver.claims.report import identity
from affinity_driver.kube import Api, ApiError

from .model import NodeState, Phase, PreparedClaim


class Sweeper:
    """Sweeps claims of ``driver`` every ``interval`` seconds in a thread of its own. ``unprepare`` undoes a
    claim that still is as ``state`` showed it.
    """

    def __init__(
        self,
        api: Api,
        driver: str,
        state: Callable[[], NodeState],
        unprepare: Callable[[PreparedClaim], object],
        interval: float,
    ) -> None:
        self._api = api
        self._driver = driver
        self._state = state
        self._unprepare = unprepare
        self._interval = interval
        self._gone_before: set[str] = set()
        self._stopping = threading.Event()
        self._log = structlog.get_logger("affinity_driver.sweep")

    def start(self) -> None:
        """Start sweeping; the first sweep is at once, for what a crash left."""
        threading.Thread(target=self._run, name="sweep", daemon=True).start()

    def stop(self) -> None:
        """Stop after the claim in hand."""
        self._stopping.set()

    def sweep(self) -> list[str]:
        """One sweep; the UIDs of the claims undone. Without an answer from the API server nothing is."""
        gone: set[str] = set()
        undone = []
        for uid, claim in self._state().claims.items():
            if self._stopping.is_set() or not self._is_gone(claim):
                continue
            gone.add(uid)
            if claim.phase is Phase.STARTED or uid in self._gone_before:
                self._log.warning("undoing stale claim", claim=f"{claim.namespace}/{claim.name}", uid=uid)
                try:
                    self._unprepare(claim)
                    undone.append(uid)
                except PrepareError as error:
                    self._log.error("cannot undo stale claim", uid=uid, error=str(error))
        self._gone_before = gone
        return undone

    def _is_gone(self, claim: PreparedClaim) -> bool:
        try:
            found = self._api.get(claim_path(claim.namespace, claim.name))
        except ApiError as error:
            return error.gone
        allocation = (found.get("status") or {}).get("allocation") or {}
        allocated = {identity(result) for result in (allocation.get("devices") or {}).get("results") or ()}
        return found["metadata"]["uid"] != claim.uid or not allocated.issuperset(
            (self._driver, share.pool, share.device, share.share_id or "") for share in claim.shares
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.sweep()
            except Exception:
                self._log.exception("sweep failed")
            self._stopping.wait(self._interval)
