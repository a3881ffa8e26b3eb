"""The one task that owns the engine.

Everything that changes the engine's state passes through one inbox: changes from the feeds, outcomes of
writes, questions of other tasks (`ask`). A turn of the loop takes what is there for at most a slice of
time, then extracts, then decides, and lets others run in between; nothing here waits for the network.

A decision is made only when all of this holds: this replica leads and has settled its term (`_take_over`),
every feed is synced, fresh and not in the middle of a list, and nothing known stops all writes (a
permission that is missing, fields that the server drops). Otherwise pods wait, and `obstacles` says for
what.

Pods that cannot be placed are parked. They come back when the engine names them for an event, when a time
comes that may change the answer, and, as a net, every few minutes. Each failure makes a pod's own pause
longer, so a pod that is woken often costs little. It never delays another, and it loses its turn to nobody: a
woken pod that still pauses is tried as soon as one behind it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from sharing_affinity.api import names
from sharing_affinity.api.reasons import NoticeReason
from sharing_affinity.engine import (
    Applied,
    Changes,
    Decision,
    Engine,
    Gone,
    Notice,
    NotServed,
    Placed,
    PodKey,
    PoolId,
    Reason,
    Unplaced,
)
from sharing_affinity.runtime.client import ApiError, NoAnswerError
from sharing_affinity.runtime.conditions import PodConditions
from sharing_affinity.runtime.events import About, Recorder
from sharing_affinity.runtime.kinds import CLAIMS, METADATA, PODS, Kind
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.reflector import Change, ListBegun, ListEnded, Reflector, Upsert
from sharing_affinity.runtime.views import Views
from sharing_affinity.runtime.writer import Outcome, Result, Writer

SLICE: Final = 0.010
"""Seconds of work before others get the loop."""
VIEWS: Final = 0.5
"""Seconds between two looks at what has to be shown."""
BUSY_VIEWS: Final = 5.0
"""The same while pods are being placed: views are written behind them."""
FLUSH: Final = 300.0
"""Seconds after which a parked pod is tried again though nothing woke it."""

UNTOLD: Final = 30.0
"""Seconds for which a standby keeps what is to be told: for so long, nobody may have led."""

#: Pods that wait for what surely comes, and not for others: no reason to hold them up.
AT_ONCE: Final = frozenset({Reason.EXTRACTION_PENDING, Reason.WAITING})

log = structlog.get_logger("controller")


class Lead(Protocol):
    """What the controller asks of leader election."""

    @property
    def leading(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def since(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Changes:
    kind: Kind
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class _Written:
    placed: Placed
    results: tuple[Result, ...]
    started: float
    decision: str


@dataclass(frozen=True, slots=True)
class _Ask:
    question: Callable[[Engine], Any]
    answer: asyncio.Future[Any]


@dataclass(slots=True)
class _Parked:
    """A pod that waits: it is tried again at ``again`` at the latest, and not before its pause has ended."""

    reason: Reason
    attempts: int
    last: float
    not_before: float
    again: float
    due: bool = False


class Controller:
    """See the module. `run` is the task; the other methods are safe to call from the same event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        feeds: Iterable[Reflector] = (),
        writer: Writer,
        lead: Lead,
        recorder: Recorder,
        conditions: PodConditions,
        views: Views,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        new_uuid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._engine = engine
        self._feeds = list(feeds)
        self._writer, self._lead = writer, lead
        self._recorder, self._conditions = recorder, conditions
        self._views, self._metrics = views, metrics
        self._clock, self._wall, self._new_uuid = clock, wall, new_uuid
        self._inbox: asyncio.Queue[_Changes | _Written | _Ask | None] = asyncio.Queue(200)
        #: Monotonic time of the last turn of the loop.
        self.turned_at = clock()
        self._listing: set[str] = set()
        self._rebuilding = False
        self._settled_term = 0
        self._led = False
        self._take_over_task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        # Pods.
        self._ready: set[PodKey] = set()
        self._order: list[PodKey] = []
        self._order_until = 0.0
        self._parked: dict[PodKey, _Parked] = {}
        self._timers: list[tuple[float, PodKey]] = []
        #: Of a pod's entries among the timers, the one that counts.
        self._alarms: dict[PodKey, float] = {}
        self._by_net: set[PodKey] = set()
        self._awaiting: set[PodKey] = set()
        # Writes.
        self._writing: dict[PodKey, asyncio.Task[None]] = {}
        #: Pods that had their turn while they were being written for: they have it afterwards.
        self._missed: set[PodKey] = set()
        #: By claim, whether its write has succeeded, for as long as the engine has not been told.
        self._outcomes: dict[str, asyncio.Future[bool]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._tidying: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._paused_until = 0.0
        self._paused_why = ""
        #: What came up while another led, or nobody did, and when.
        self._untold: deque[tuple[float, Notice]] = deque(maxlen=1000)
        # What the engine does not keep.
        self._uids: dict[tuple[str, str, str], str] = {}
        self._recorded: dict[str, tuple[str, str, float]] = {}
        self._finalizers: dict[str, tuple[str, ...]] = {}
        self._metadata: dict[str, tuple[int, Mapping[str, Any]]] = {}
        # Views.
        self._dirty_pools: set[PoolId] = set()
        self._dirty_slices: set[str] = set()
        self._published_at = 0.0
        self._viewed_at = 0.0
        self._tidies_at = 0.0
        self._releases_at = 0.0
        self._look_for_releases = True
        self._extraction_pending = True

    def add_feed(self, feed: Reflector) -> None:
        """All feeds must be known before `run`."""
        self._feeds.append(feed)
        self._listing.add(feed.kind.kind)

    # What others call.

    async def deliver(self, kind: Kind, changes: list[Change]) -> None:
        """Take changes of one feed, in order. Waits while the inbox is full: that is the back-pressure."""
        await self._inbox.put(_Changes(kind, changes))

    async def ask(self, question: Callable[[Engine], Any]) -> Any:
        """Call ``question`` with the engine between two turns and return what it returns. It must be
        quick."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._inbox.put(_Ask(question, answer))
        return await answer

    def tell(self, notices: Iterable[Notice]) -> None:
        """Write Events about these; only while this replica leads."""
        if not self._lead.leading:
            return
        for notice in notices:
            uid = self._uids.get((notice.kind, notice.namespace, notice.name), "")
            about = About(notice.kind, notice.namespace, notice.name, uid)
            self._recorder.emit(about, notice.reason, notice.message)

    async def repair(self) -> None:
        """Derive the claim state anew from what was observed, a step at a time, and decide again about
        everything. Nothing is decided meanwhile."""
        self._rebuilding = True
        try:
            steps: Iterator[Changes] = await self.ask(lambda engine: engine.rebuild_steps())
            while (changes := await self.ask(lambda _: next(steps, None))) is not None:
                self._take(changes)
        finally:
            self._rebuilding = False
        self._ready.update(self._engine.pods())

    def poke(self) -> None:
        """Something outside changed (leadership): take a turn."""
        if self._inbox.empty():
            self._inbox.put_nowait(None)

    def obstacles(self) -> list[str]:
        """Why nothing is allocated now; empty when decisions are made."""
        found = self.blind()
        if self._rebuilding:
            found.append("the claim state is being derived anew")
        if not self._lead.leading:
            found.append("this replica does not lead")
        elif self._settled_term != self._lead.term:
            found.append("this replica has just become the leader and settles what its predecessor left")
        if self._clock() < self._paused_until:
            found.append(self._paused_why)
        return found

    def blind(self) -> list[str]:
        """Why the feeds cannot be decided on; empty when they can."""
        found = []
        for feed in self._feeds:
            if not feed.fresh or feed.kind.kind in self._listing:
                why = feed.status.problem or ("being listed" if not feed.status.synced else "silent")
                age = feed.age()
                since = "never heard" if age == float("inf") else f"last heard {age:.0f} s ago"
                found.append(f"{feed.kind.kind}: {since}: {why}")
        return found

    async def stop(self, seconds: float) -> bool:
        """Start nothing new and wait for the writes in flight, for ``seconds`` at most.

        False: some had not ended. They are given up, their outcome is unknown, and the lease must run out
        by itself.
        """
        self._stopping.set()
        if self._take_over_task is not None:
            # It may wait for a list that never comes. Its own writes only refute, so they may be cut short.
            self._take_over_task.cancel()
        pending = {*self._writing.values(), *self._releasing.values(), *self._tidying.values()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=seconds)
        for task in (*pending, *self._background):
            task.cancel()
        return not pending

    async def _rest(self, seconds: float) -> None:
        """Sleep, but not through the end of the process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # The loop.

    async def run(self) -> None:
        """Turn for ever."""
        while True:
            await self._wait()
            started = time.perf_counter()
            self._drain(started + SLICE)
            self._follow_leadership()
            lag = time.perf_counter() - started
            if self._may_extract():
                await self._extract()
            if self._may_decide():
                await self._decide()
            if self._may_decide():
                await self._release()
            started = time.perf_counter()
            self._publish()
            self._tidy()
            lag = max(lag, time.perf_counter() - started)
            self._metrics.loop_lag.set(lag)
            self.turned_at = self._clock()
            await asyncio.sleep(0)

    async def _wait(self) -> None:
        now = self._clock()
        self._wake_due(now)
        if not self._inbox.empty() or self._may_extract() or (self._ready and self._may_decide()):
            return
        pause = 1.0
        if self._timers:
            pause = min(pause, max(0.0, self._timers[0][0] - now))
        if (self._dirty_pools or self._dirty_slices) and self._may_decide():
            pause = min(pause, max(0.01, self._viewed_at + VIEWS - now))
        try:
            # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with an item, and
            # the process would never end.
            async with asyncio.timeout(pause):
                first = await self._inbox.get()
        except TimeoutError:
            return
        self._handle(first)

    def _drain(self, until: float) -> None:
        while time.perf_counter() < until:
            try:
                item = self._inbox.get_nowait()
            except asyncio.QueueEmpty:
                return
            self._handle(item)

    def _handle(self, item: _Changes | _Written | _Ask | None) -> None:
        match item:
            case _Changes(kind, changes):
                for change in changes:
                    self._observe(kind, change)
            case _Written():
                self._written(item)
            case _Ask(question, answer):
                try:
                    result = question(self._engine)
                except Exception as error:
                    if not answer.cancelled():
                        answer.set_exception(error)
                else:
                    if not answer.cancelled():
                        answer.set_result(result)
            case None:
                pass

    def _observe(self, kind: Kind, change: Change) -> None:
        match change:
            case ListBegun():
                self._listing.add(kind.kind)
            case ListEnded():
                self._listing.discard(kind.kind)
                self._look_for_releases = True
            case Upsert(raw):
                self._remember(kind, raw)
                self._take(self._engine.observe(Applied(raw), self._wall()))
            case _:
                self._forget_object(change.kind, change.namespace, change.name, change.uid)
                gone = Gone(change.kind, change.namespace, change.name, change.uid)
                self._take(self._engine.observe(gone, self._wall()))

    def _remember(self, kind: Kind, raw: Mapping[str, Any]) -> None:
        meta = raw["metadata"]
        key = (kind.kind, meta.get("namespace", ""), meta["name"])
        if kind.kind in ("Pod", CLAIMS.kind, METADATA.kind):
            self._uids[key] = meta["uid"]
        if kind is PODS:
            self._conditions.observed((key[1], key[2]), raw)
        if kind is CLAIMS:
            unallocated = not (raw.get("status") or {}).get("allocation")
            if unallocated:
                self._finalizers[meta["uid"]] = tuple(meta.get("finalizers") or ())
            else:
                self._finalizers.pop(meta["uid"], None)
            if unallocated and names.RECORD_ANNOTATION in (meta.get("annotations") or {}):
                self._recorded.setdefault(meta["uid"], (key[1], key[2], self._clock()))
            else:
                self._recorded.pop(meta["uid"], None)
        elif kind is METADATA:
            self._metadata[meta["name"]] = (meta.get("generation", 0), raw.get("status") or {})
            self._dirty_slices.add(meta["name"])

    def _forget_object(self, kind: str, namespace: str, name: str, uid: str) -> None:
        if self._uids.get((kind, namespace, name)) == uid:
            del self._uids[kind, namespace, name]
        if kind == CLAIMS.kind:
            self._recorded.pop(uid, None)
            self._finalizers.pop(uid, None)
        elif kind == METADATA.kind:
            self._metadata.pop(name, None)
        elif kind == "Pod":
            self._parked.pop((namespace, name), None)
            self._ready.discard((namespace, name))
            self._conditions.gone((namespace, name))

    def _take(self, changes: Changes) -> None:
        self._wake(changes.pods)
        self._dirty_pools |= changes.pools
        self._dirty_slices |= changes.slices
        if changes.pods or changes.pools:
            self._extraction_pending = True
        self._look_for_releases = True
        if changes.problem is not None:
            problem = changes.problem
            self._metrics.refused_objects.labels(problem.kind).inc()
            log.warning("object refused", kind=problem.kind, object=problem.name, problem=str(problem))

    # Leadership.

    def _follow_leadership(self) -> None:
        leading = self._lead.leading
        if leading:
            self._metrics.leader.set(1)
        elif self._led:
            self._metrics.step_down()
        self._led = leading
        if not leading:
            # Others show and tell it, and a new term shows everything anew. What came up since the leader may
            # have died is told by nobody else.
            now = self._clock()
            self._dirty_pools.clear()
            self._dirty_slices.clear()
            self._untold.extend((now, notice) for notice in self._engine.notices())
            while self._untold and now - self._untold[0][0] > UNTOLD:
                self._untold.popleft()
        if not leading or self._settled_term == self._lead.term or self._stopping.is_set():
            return
        if self._take_over_task is None or self._take_over_task.done():
            self._take_over_task = asyncio.ensure_future(self._take_over(self._lead.term))

    async def _take_over(self, term: int) -> None:
        """Make sure that nothing an earlier leader started can still change the state decisions rest on.

        Its lease has run out, so it starts no new writes; those it started may still be under way, and the
        status writes among them need a claim that has a record and no allocation. So: a consistent list,
        then take the record off each such claim; again, while that finds one that was allocated meanwhile.
        A process that led before it asked for its first list has that list already.
        """
        claims = next(feed for feed in self._feeds if feed.kind is CLAIMS)
        while any(not feed.synced for feed in self._feeds):
            await asyncio.sleep(0.05)
            if not self._lead.leading or self._lead.term != term:
                return
        # Our own of an earlier term end by themselves: their time was bounded by that term's lease.
        if pending := [*self._writing.values(), *self._releasing.values()]:
            await asyncio.wait(pending)
        rounds, told = 0, ("", "")
        while True:
            rounds += 1
            # Nobody has led since that list was asked for, and this process has written nothing before.
            fresh = not self._settled_term and (claims.status.listed_from or 0.0) > self._lead.since
            if rounds > 1 or not fresh:
                await claims.relist()
            await self.ask(lambda engine: None)
            waiting = list(self._recorded.items())
            outcomes = await asyncio.gather(
                *(self._writer.refute(namespace, name, uid) for uid, (namespace, name, _) in waiting),
                return_exceptions=True,
            )
            if not self._lead.leading or self._lead.term != term:
                return
            if all(outcome is True for outcome in outcomes):
                break
            failed = []
            for (_, (namespace, name, _)), outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, ApiError | NoAnswerError):
                    failed.append((f"{namespace}/{name}", str(outcome)))
                elif isinstance(outcome, BaseException):
                    raise outcome
            if failed and failed[0] != told:
                told = failed[0]
                what = "nothing is allocated until the records of claims are removed"
                log.warning(what, claims=len(failed), claim=told[0], problem=told[1])
            await asyncio.sleep(min(2.0, 0.1 * rounds))
        await self.ask(lambda engine: self._settle(engine, term, len(waiting)))

    def _settle(self, engine: Engine, term: int, refuted: int) -> None:
        # A consistent list was observed since the last write of ours ended: what is still only assumed is
        # not so.
        for uid in engine.assumed():
            self._take(engine.forget(uid))
        self._outcomes.clear()
        self._settled_term = term
        self._paused_until = 0.0
        self.tell(notice for _, notice in self._untold)
        self._untold.clear()
        log.info("allocating", term=term, refuted=refuted)
        self._ready.update(engine.pods())
        self._parked.clear()
        self._look_for_releases = True
        self._views.reset()
        pools = set(engine.affinity_pools())
        self._dirty_pools |= pools
        self._dirty_slices |= set(self._metadata)
        self._spawn(self._sweep(pools))

    async def _sweep(self, pools: set[PoolId]) -> None:
        try:
            await self._views.sweep(pools)
        except (ApiError, NoAnswerError) as error:
            log.debug("views not swept", problem=str(error))

    # Extraction and decisions.

    def _may_extract(self) -> bool:
        # In the middle of a list nothing is decided: what the list brings is evaluated together, at its end.
        return self._extraction_pending and not self._listing

    async def _extract(self) -> None:
        if not self._engine.extract(0):
            self._take(self._engine.settle())
            self._extraction_pending = False
            return
        # In a thread, since one evaluation may take as long as its cost limit lets it: the interpreter
        # switches between threads, so probes, feeds and the lease go on meanwhile. Nobody else touches the
        # engine.
        evaluated, finished = self._engine.extractions.evaluations, self._engine.finished
        remaining = await asyncio.to_thread(self._extract_slice)
        self._metrics.extractor_evaluations.inc(self._engine.extractions.evaluations - evaluated)
        self._extraction_pending = remaining > 0
        # Holders first, then the pods that wait for what is known now.
        self._take(self._engine.settle())
        if self._engine.finished > finished or not remaining:
            self._ready |= self._awaiting
            self._awaiting.clear()

    def _extract_slice(self) -> int:
        until = time.perf_counter() + SLICE
        remaining = self._engine.extract(0)
        while remaining and time.perf_counter() < until:
            remaining = self._engine.extract(1)
        return remaining

    def _may_decide(self) -> bool:
        return not self._stopping.is_set() and not self.obstacles()

    async def _decide(self) -> None:
        """Decide for a slice of time, in a thread for the same reason as extraction: a single search may try
        hundreds of thousands of devices."""
        if not self._ready:
            return
        self._make_order()
        for pod, decision, changes in await asyncio.to_thread(self._decide_slice):
            self._take(changes)
            if isinstance(decision, Placed) and not self._may_decide():
                # The end has come meanwhile, or another leader: nothing new is written.
                for write in decision.writes:
                    self._take(self._engine.forget(write.uid))
                self._ready.add(pod)
            else:
                self._decided(pod, decision)

    def _decide_slice(self) -> list[tuple[PodKey, Decision, Changes]]:
        """Decisions, each made with those before it assumed."""
        decided: list[tuple[PodKey, Decision, Changes]] = []
        until = time.perf_counter() + SLICE
        while self._order and time.perf_counter() < until:
            pod = self._order.pop()
            if pod not in self._ready:
                continue
            self._ready.discard(pod)
            if pod in self._writing:
                self._missed.add(pod)
                continue
            with self._metrics.decision_seconds.time():
                decision = self._engine.decide(pod, self._wall(), self._new_uuid)
            changes = self._engine.assume(decision) if isinstance(decision, Placed) else Changes()
            decided.append((pod, decision, changes))
        return decided

    def _make_order(self) -> None:
        now = self._clock()
        if not self._order or now > self._order_until:
            # Sorting is not free, so an order serves for a while; whoever comes meanwhile waits that long
            # at most.
            pods = self._engine.pods()
            self._metrics.pending_pods.set(len(pods))
            self._ready.intersection_update(pods)
            self._catch_up(pods)
            self._order = [pod for pod in reversed(pods) if pod in self._ready]
            self._order_until = now + 0.1

    def _catch_up(self, pods: tuple[PodKey, ...]) -> None:
        """A pause must not let others overtake: whoever was woken and stands before a ready pod goes now."""
        waiting: list[PodKey] = []
        for pod in pods:
            if pod in self._ready:
                self._ready.update(waiting)
                waiting.clear()
            elif (parked := self._parked.get(pod)) is not None and parked.due:
                waiting.append(pod)

    def _decided(self, pod: PodKey, decision: Decision) -> None:
        match decision:
            case Placed():
                self._metrics.decisions.labels("placed").inc()
                self._metrics.count_excluded(decision.excluded)
                if pod in self._by_net:
                    self._metrics.late_wakeups.inc()
                self._by_net.discard(pod)
                if decision.writes:
                    self._place(decision)
            case Unplaced(reason, message, _, retry_at, excluded, claim):
                self._metrics.count_excluded(excluded)
                self._by_net.discard(pod)
                self._metrics.decisions.labels(reason.value).inc()
                self._park(pod, reason, retry_at)
                if reason is Reason.EXTRACTION_PENDING:
                    self._extraction_pending = True
                    self._awaiting.add(pod)
                elif message:
                    self._tell_pod(pod, reason, message, claim)
            case NotServed(reason, message):
                self._by_net.discard(pod)
                self._metrics.decisions.labels(reason.value).inc()
                if reason is Reason.WAITING:
                    # Its claims are still to come, and they wake it.
                    self._park(pod, reason, None)
                else:
                    self._parked.pop(pod, None)
                if message:
                    self._tell_pod(pod, reason, message)
                elif reason is Reason.NOT_OURS:
                    self._conditions.clear(pod)

    def _tell_pod(
        self, pod: PodKey, reason: Reason | NoticeReason, message: str, claim: str = "", decision: str = ""
    ) -> None:
        """Say why a pod waits: its condition, an Event on it and on the claim that has to change, the log.

        The log and the Events share the decision's id; what was said already is only counted."""
        uid = self._uids.get(("Pod", *pod))
        if uid is None:
            return
        decision = decision or self._new_id()
        self._conditions.failed(pod, uid, reason, message)
        told = self._recorder.emit(About("Pod", *pod, uid), reason, message, decision=decision)
        claim_uid = self._uids.get((CLAIMS.kind, pod[0], claim)) if claim else None
        if claim_uid is not None:
            about = About(CLAIMS.kind, pod[0], claim, claim_uid)
            self._recorder.emit(about, reason, message, decision=decision)
        say = log.info if told else log.debug
        say("not allocated", decision=decision, pod="/".join(pod), reason=reason.value, message=message)

    def _new_id(self) -> str:
        return self._new_uuid()[:8]

    def _park(self, pod: PodKey, reason: Reason, retry_at: float | None) -> None:
        now = self._clock()
        before = self._parked.get(pod)
        attempts = before.attempts + 1 if before is not None and now - before.last < 30.0 else 1
        pause = 0.0 if reason in AT_ONCE else min(5.0, 0.0125 * 2 ** min(attempts, 10))
        wait = FLUSH if retry_at is None else min(FLUSH, max(pause, retry_at - self._wall() + 0.01))
        self._parked[pod] = _Parked(reason, attempts, now, now + pause, now + wait)
        self._arm(pod, now + wait)

    def _arm(self, pod: PodKey, when: float) -> None:
        """Look at a parked pod at ``when`` at the latest."""
        if when < self._alarms.get(pod, float("inf")):
            self._alarms[pod] = when
            heapq.heappush(self._timers, (when, pod))

    def _end_pause(self, pod: PodKey, parked: _Parked) -> None:
        """Try a parked pod again as soon as its pause has ended."""
        parked.again = parked.not_before
        self._arm(pod, parked.again)

    def _wake(self, pods: Iterable[PodKey]) -> None:
        now = self._clock()
        # Most often they have been woken already, all of them.
        for pod in frozenset(pods) - self._ready:
            parked = self._parked.get(pod)
            if parked is not None and parked.not_before > now:
                if not parked.due:
                    parked.due = True
                    self._end_pause(pod, parked)
            else:
                self._ready.add(pod)

    def _wake_due(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            when, pod = heapq.heappop(self._timers)
            if self._alarms.get(pod) != when:
                continue
            del self._alarms[pod]
            parked = self._parked.get(pod)
            if parked is None:
                continue
            if parked.again > now:
                # Parked anew since, or another pod of this name.
                self._arm(pod, parked.again)
                continue
            if now - parked.last >= FLUSH - 1:
                self._by_net.add(pod)
            self._ready.add(pod)

    # Writes.

    def _place(self, placed: Placed) -> None:
        """Carry out what is assumed already."""
        loop = asyncio.get_running_loop()
        outcomes = {write.uid: loop.create_future() for write in placed.writes}
        self._outcomes |= outcomes
        self._metrics.compatible_reuse.inc(placed.reused)
        task = asyncio.ensure_future(self._write(placed, outcomes, self._clock(), self._new_id()))
        self._writing[placed.pod] = task
        task.add_done_callback(_report)

    async def _write(
        self, placed: Placed, outcomes: Mapping[str, asyncio.Future[bool]], started: float, decision: str
    ) -> None:
        results: tuple[Result, ...]
        try:
            finalizers = {write.uid: self._finalizers.get(write.uid, ()) for write in placed.writes}
            needed = [self._outcomes[uid] for uid in placed.after if uid in self._outcomes]
            if needed and not all(await asyncio.gather(*needed)):
                results = tuple(
                    Result(write.uid, Outcome.RETRY, "an allocation this one relied on was not written")
                    for write in placed.writes
                )
            else:
                writes = (self._writer.write(write, finalizers[write.uid]) for write in placed.writes)
                results = tuple(await asyncio.gather(*writes))
        except Exception:
            log.exception("writing failed", pod="/".join(placed.pod))
            results = tuple(Result(write.uid, Outcome.UNKNOWN, "interrupted") for write in placed.writes)
        except asyncio.CancelledError:
            # The process ends; nothing is known any more.
            results = tuple(Result(write.uid, Outcome.UNKNOWN, "cancelled") for write in placed.writes)
            raise
        finally:
            del self._writing[placed.pod]
            for result in results:
                outcomes[result.uid].set_result(result.outcome is Outcome.WRITTEN)
        await self._inbox.put(_Written(placed, results, started, decision))

    def _written(self, item: _Written) -> None:
        again = False
        for result in item.results:
            self._metrics.writes.labels(result.outcome.value).inc()
            self._metrics.write_seconds.observe(self._clock() - item.started)
            if result.outcome is Outcome.WRITTEN:
                self._take(self._engine.confirm(result.uid, result.resource_version))
                self._forget_outcome(result.uid)
                continue
            again = True
            if result.outcome is Outcome.UNKNOWN:
                # Normally the lease is lost, and the next term settles it. Otherwise it is a bug, and
                # settled here.
                if self._lead.leading and self._settled_term == self._lead.term:
                    self._spawn(self._settle_later(item.placed, result.uid, item.decision))
                continue
            self._take(self._engine.forget(result.uid))
            self._forget_outcome(result.uid)
            log.info(
                "allocation not written",
                decision=item.decision,
                pod="/".join(item.placed.pod),
                outcome=result.outcome.value,
                problem=result.message,
            )
            if result.outcome in (Outcome.FORBIDDEN, Outcome.DROPPED):
                self._pause(result)
            elif result.outcome is Outcome.REJECTED:
                write = next(write for write in item.placed.writes if write.uid == result.uid)
                message = (
                    f"the API server refuses the allocation of claim {write.name}: {result.message}; "
                    "change what it names, or the policy that refuses it"
                )
                reason = NoticeReason.ALLOCATION_REJECTED
                self._tell_pod(item.placed.pod, reason, message, write.name, item.decision)
        pod = item.placed.pod
        missed = pod in self._missed
        self._missed.discard(pod)
        if not again:
            self._parked.pop(pod, None)
            if missed:
                self._ready.add(pod)
            self._conditions.clear(pod)
            log.info(
                "allocated",
                decision=item.decision,
                pod="/".join(pod),
                node=item.placed.node,
                devices=[
                    f"{taken.driver}/{taken.pool}/{taken.device}"
                    for write in item.placed.writes
                    for taken in write.record.results
                ],
            )
            return
        if ("Pod", *pod) not in self._uids:
            # It is gone, and nothing would take it out of the parking again.
            return
        self._park(pod, Reason.NO_NODE, None)
        self._end_pause(pod, self._parked[pod])

    def _forget_outcome(self, uid: str) -> None:
        """The engine knows it by now. One that is still open is that of a later write."""
        outcome = self._outcomes.get(uid)
        if outcome is not None and outcome.done():
            del self._outcomes[uid]

    async def _settle_later(self, placed: Placed, uid: str, decision: str) -> None:
        await asyncio.sleep(1.0)
        write = next(write for write in placed.writes if write.uid == uid)
        result = await self._writer.settle(write)
        single = Placed(placed.pod, placed.pod_uid, placed.node, (write,), placed.after)
        await self._inbox.put(_Written(single, (result,), self._clock(), decision))

    def _pause(self, result: Result) -> None:
        seconds = 15.0 if result.outcome is Outcome.FORBIDDEN else 60.0
        why = f"no allocation can be written: {result.message}"
        if why != self._paused_why or self._clock() > self._paused_until:
            log.error("paused", seconds=seconds, problem=result.message)
        self._paused_until, self._paused_why = self._clock() + seconds, why

    # Release, tidying, views.

    async def _release(self) -> None:
        now = self._clock()
        if now < self._releases_at or not (self._look_for_releases or now > self._releases_at + 10.0):
            return
        self._releases_at, self._look_for_releases = now + 0.5, False
        # In a thread, since it decides about the pods that an allocation waits for.
        for release in await asyncio.to_thread(self._engine.releases, self._wall()):
            if not self._may_decide():
                return
            if release.uid not in self._releasing:
                task = asyncio.ensure_future(self._give_back(release))
                self._releasing[release.uid] = task
                task.add_done_callback(_report)
        self.tell(self._engine.notices())
        # What a release depends on may have to be looked up first.
        self._extraction_pending = self._extraction_pending or self._engine.extract(0) > 0

    async def _give_back(self, release: Any) -> None:
        try:
            result = await self._writer.release(release)
            self._metrics.releases.labels(result.outcome.value).inc()
            log.info(
                "released",
                claim=f"{release.namespace}/{release.name}",
                why=release.reason,
                outcome=result.outcome.value,
                problem=result.message,
            )
            if result.outcome is Outcome.FORBIDDEN:
                self._pause(result)
            if result.outcome is not Outcome.WRITTEN:
                # The watch tells what changed; until it does, asking again would give the same answer.
                await self._rest(1.0)
        finally:
            del self._releasing[release.uid]
            self._look_for_releases = True

    def _tidy(self) -> None:
        """Take the record off claims that others deallocated and that we do not allocate again."""
        now = self._clock()
        if not self._recorded or now < self._tidies_at or not self._may_decide():
            return
        self._tidies_at = now + 1.0
        assumed = set(self._engine.assumed())
        for uid, (namespace, name, since) in list(self._recorded.items()):
            if (
                now - since > 5.0
                and uid not in assumed
                and uid not in self._tidying
                and len(self._tidying) < 8
            ):
                task = asyncio.ensure_future(self._take_record_off(namespace, name, uid))
                self._tidying[uid] = task
                task.add_done_callback(_report)

    async def _take_record_off(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._writer.refute(namespace, name, uid)
        except (ApiError, NoAnswerError) as error:
            log.debug("record not removed", claim=f"{namespace}/{name}", problem=str(error))
            await self._rest(5.0)
        finally:
            self._tidying.pop(uid, None)

    def _publish(self) -> None:
        now = self._clock()
        if now - self._published_at >= 0.5:
            self._published_at = now
            self._show_figures()
        # What people look at can wait while pods cannot, but not for ever.
        patience = BUSY_VIEWS if self._ready or self._writing else VIEWS
        if (self._dirty_pools or self._dirty_slices) and now - self._viewed_at >= patience:
            if self._may_decide():
                self._publish_views()
            if not self._dirty_pools and not self._dirty_slices:
                self._viewed_at = now

    def _show_figures(self) -> None:
        for feed in self._feeds:
            age = feed.age()
            # Infinite before the first contact, so that an alert on an age sees a feed that never came up.
            self._metrics.feed_age.labels(feed.kind.kind).set(age)
            self._metrics.feed_fresh.labels(feed.kind.kind).set(1 if feed.fresh else 0)
            self._metrics.feed_lists.labels(feed.kind.kind).set(feed.status.lists)
        if not self._may_decide():
            return
        waiting = set(self._engine.pods())
        self._metrics.pending_pods.set(len(waiting))
        self._metrics.show_parked(
            parked.reason
            for pod, parked in self._parked.items()
            if pod in waiting and pod not in self._ready and pod not in self._writing
        )

    def _publish_views(self) -> None:
        """Hand over what people look at, for a slice of time; what is left comes with the next turn."""
        until = time.perf_counter() + SLICE
        while self._dirty_pools and time.perf_counter() < until:
            pool = self._dirty_pools.pop()
            table = self._engine.lock_table([pool])
            self._views.show_pools([pool], table)
            self._metrics.show_locks(pool, table)
        while self._dirty_slices and time.perf_counter() < until:
            name = self._dirty_slices.pop()
            status, stored = self._engine.slice_status(name), self._metadata.get(name)
            uid = self._uids.get((METADATA.kind, "", name))
            if status is not None and stored is not None and uid is not None:
                self._views.show_slice(name, uid, *stored, status)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_report)


def _report(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("task failed", exc_info=task.exception())
