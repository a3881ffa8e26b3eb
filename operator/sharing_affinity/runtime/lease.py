"""Leader election by Lease, so that of two replicas exactly one writes allocations.

The libraries fall short (the official client's asyncio elector cannot create its Lease and keeps leading
after it expired; kopf's peering freezes both peers), so the protocol of client-go is written out here: a
pure decision (`decide`), and a thread that acts on it. The thread has an event loop and connections of its
own, because a lease that waits behind a long list would be lost.

Clocks of two machines are never compared. A standby measures with its own monotonic clock how long the
Lease has not *changed*; the holder counts its own validity from the moment *before* it sent the last
successful renewal.

Exclusiveness of writes follows from three times: a write's deadline never lies beyond the renew deadline
(`Elector.budget`), the renew deadline is shorter than the lease, and nobody takes a lease over before the
whole lease has passed without a change. What a timed-out write may still do later is the business of the
writer's attempt ids, not of the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

import structlog

from sharing_affinity.runtime.client import AccessError, ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import LEASES

log = structlog.get_logger("lease")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; client-go's defaults. ``renew`` must be shorter than ``duration``, ``retry`` than
    ``renew``."""

    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew < self.duration:
            raise ValueError("lease times must satisfy 0 < retry period < renew deadline < lease duration")


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease as last read: its resourceVersion, and when (own clock) that version was first seen."""

    resource_version: str
    holder: str
    duration: float
    transitions: int
    since: float


class Act(Enum):
    """What to do about the Lease now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def decide(identity: str, seen: Seen | None, now: float) -> Act:
    """What `identity` should do, given the Lease as last seen (None: there is none)."""
    if seen is None:
        return Act.CREATE
    if seen.holder == identity:
        return Act.RENEW
    if not seen.holder or now - seen.since > seen.duration:
        return Act.TAKE
    return Act.WAIT


def observe(before: Seen | None, lease: dict[str, Any], now: float) -> Seen:
    """The Lease ``lease`` (raw JSON), seen at ``now``; an unchanged one keeps the time it was first seen."""
    version = lease["metadata"]["resourceVersion"]
    if before is not None and before.resource_version == version:
        return before
    spec = lease.get("spec") or {}
    return Seen(
        resource_version=version,
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 15),
        transitions=int(spec.get("leaseTransitions") or 0),
        since=now,
    )


def missing(identity: str, before: Seen | None, now: float) -> Seen | None:
    """What to go by when the Lease is not there.

    Somebody may have deleted it under a holder who does not know yet: another's lease that was seen alive
    is waited out like one that is not renewed. A Lease that was never seen, or was ours, can be made at
    once.
    """
    if before is None or before.holder in ("", identity):
        return None
    return before if not before.resource_version else replace(before, resource_version="", since=now)


def spec(
    act: Act, identity: str, seen: Seen | None, timing: Timing, wall: datetime.datetime, acquired: str
) -> dict[str, Any]:
    """The Lease's spec to write for ``act``. ``wall`` is aware UTC time, for people only."""
    stamp = micro_time(wall)
    transitions = seen.transitions if seen is not None else 0
    return {
        "holderIdentity": identity,
        # Rounded up: a standby must never think the lease shorter than its holder does.
        "leaseDurationSeconds": int(-(-timing.duration // 1)),
        "acquireTime": acquired if act is Act.RENEW else stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions + (1 if act is Act.TAKE else 0),
    }


def micro_time(wall: datetime.datetime) -> str:
    """The API's MicroTime of an aware time."""
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Elector:
    """Holds the Lease while it can, from a thread of its own.

    ``changed`` is called in that thread whenever leadership begins or ends. Reading `leading` and `budget`
    is safe from any thread. ``identity`` must be unique per process: a restarted process must not take
    itself for the holder its predecessor was.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing,
        changed: Callable[[], None] = lambda: None,
        random: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity, self.timing = identity, timing
        self.problem = ""
        self.holder = ""
        #: How often this process has become the leader; a decision made under an earlier term is void.
        self.term = 0
        #: When it last did, by ``clock``: nobody else has led since.
        self.since = 0.0
        self._connect, self._changed = connect, changed
        self._namespace, self._name = namespace, name
        self._clock, self._random = clock, random
        self._renewed: float | None = None
        self._told = False
        self._looked = threading.Event()
        self._stop = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._release = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lease", daemon=True)

    @property
    def leading(self) -> bool:
        """True while this process surely holds the lease and may still write."""
        # Only what has been told counts: until then `term` is still that of an earlier leadership.
        return self._told and self.budget() > 0

    def budget(self) -> float:
        """Seconds that a write sent now may take at most; 0 or less when nothing may be written."""
        renewed = self._renewed
        return 0.0 if renewed is None else renewed + self.timing.renew - self._clock()

    def start(self) -> None:
        """Begin to campaign."""
        self._thread.start()

    def looked(self, within: float) -> None:
        """Block until the Lease has been looked at once, for ``within`` seconds at most."""
        self._looked.wait(within)

    def stop(self, *, release: bool) -> None:
        """Stop campaigning and give the lease up, so that a standby need not wait. Blocks for seconds at
        most.

        Call it only when no write is in flight any more.
        """
        if release:
            self._release.set()
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(self.timing.renew)

    def _main(self) -> None:
        asyncio.run(self._campaign())

    async def _campaign(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        seen: Seen | None = None
        acquired = micro_time(_wall())
        async with self._connect() as client:
            while not self._stop.is_set():
                try:
                    seen, acquired = await self._round(client, seen, acquired)
                    self.problem = ""
                except (AccessError, ApiError, NoAnswerError) as error:
                    if str(error) != self.problem:
                        log.warning("lease", problem=str(error))
                    self.problem = str(error)
                self._tell()
                self._looked.set()
                pause = self.timing.retry * (1 + 0.2 * self._random.random())
                if self._renewed is not None:
                    # Wake up in time to tell that the lease has run out.
                    pause = min(pause, max(0.01, self.budget()))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
            self._renewed = None
            self._tell()
            if self._release.is_set() and seen is not None and seen.holder == self.identity:
                await self._give_up(client, seen, acquired)
        self._wake = lambda: None

    async def _round(self, client: Client, seen: Seen | None, acquired: str) -> tuple[Seen | None, str]:
        path = LEASES.item(self._namespace, self._name)
        holding = self._renewed is not None
        # A holder may spend what is left of its renew deadline, a standby must keep looking.
        timeout = max(0.2, self.budget()) if holding else self.timing.renew
        timeout = min(timeout, self.timing.renew)
        try:
            lease = await client.request("GET", path, within=timeout)
        except ApiError as error:
            if error.status != 404:
                raise
            lease = None
        now = self._clock()
        seen = missing(self.identity, seen, now) if lease is None else observe(seen, lease, now)
        self.holder = "" if seen is None else seen.holder
        act = decide(self.identity, seen, now)
        if act is Act.WAIT:
            self._renewed = None
            return seen, acquired
        if holding and (lease is None or act is not Act.RENEW):
            # Deleted, or taken while we slept: stop leading first, campaign anew in the next round.
            self._renewed = None
            return seen, acquired
        wanted = spec(act, self.identity, seen, self.timing, _wall(), acquired)
        sent = self._clock()
        if lease is None:
            body = {
                "apiVersion": LEASES.group_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": wanted,
            }
            written = await client.request("POST", path.rpartition("/")[0], body=body, within=timeout)
        else:
            written = await client.request("PUT", path, body={**lease, "spec": wanted}, within=timeout)
        seen = observe(seen, written, self._clock())
        self.holder = self.identity
        if holding and self.budget() <= 0:
            # Nobody else has led, but writes have been given up meanwhile: only a new term settles them.
            self._tell()
        self._renewed = sent
        return seen, wanted["acquireTime"]

    async def _give_up(self, client: Client, seen: Seen, acquired: str) -> None:
        path = LEASES.item(self._namespace, self._name)
        try:
            lease = await client.request("GET", path, within=2.0)
            if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                return
            wanted = spec(Act.RENEW, "", seen, self.timing, _wall(), acquired)
            wanted["leaseDurationSeconds"] = 1
            await client.request("PUT", path, body={**lease, "spec": wanted}, within=2.0)
            log.info("lease released")
        except (ApiError, NoAnswerError) as error:
            log.warning("lease not released", problem=str(error))

    def _tell(self) -> None:
        leading = self.budget() > 0
        if not leading:
            self._renewed = None
        if leading != self._told:
            if leading:
                self.term, self.since = self.term + 1, self._clock()
            self._told = leading
            log.info("leading" if leading else "not leading", identity=self.identity, holder=self.holder)
            self._changed()


def _wall() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
