"""Puts the parts together: a `Replica` is one running operator process, from the first list to the released
lease.

Who starts it (kopf, a test) only sees `start`, `stop` and `failed`. The order of both matters: probes
first, so that a slow start can be watched; then the campaign for the lease, since what a leader has listed
it need not list again; then feeds and controller. Stopping goes the other way round, and the lease is given
up only when no write is under way any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from random import Random
from typing import Any, Final

import structlog

from sharing_affinity.engine import Engine
from sharing_affinity.runtime import audit, preflight
from sharing_affinity.runtime.client import Client, Login
from sharing_affinity.runtime.conditions import PodConditions
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.events import Recorder
from sharing_affinity.runtime.kinds import CLAIMS, FEEDS
from sharing_affinity.runtime.lease import Elector
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.probes import Probes
from sharing_affinity.runtime.reflector import Reflector
from sharing_affinity.runtime.settings import Settings
from sharing_affinity.runtime.views import Views
from sharing_affinity.runtime.writer import Writer

FIRST_LOOK: Final = 1.0
"""Seconds that a start waits to see whether the lease is free."""

log = structlog.get_logger("replica")


def tune_collector() -> None:
    """Look for young garbage in small steps, for old garbage rarely: one look at everything holds the
    loop for a quarter of a second with ten thousand claims."""
    gc.set_threshold(10_000, 10, 1000)


def unique_identity() -> str:
    """A lease identity no other process has, this one's successor included."""
    return f"{socket.gethostname()[:60]}_{os.getpid()}_{uuid.uuid4().hex[:12]}"


class Alone:
    """In place of an elector where election is switched off: the one replica always leads."""

    leading = True
    term = 1
    since = 0.0

    def budget(self) -> float:
        """Seconds a write may take: no lease bounds it."""
        return 3600.0

    def start(self) -> None: ...

    def looked(self, within: float) -> None:
        """There is nothing to look at."""

    def stop(self, *, release: bool) -> None: ...


class Replica:
    """One replica. Create it inside the event loop that shall run it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[Any]] = []
        identity = settings.identity or unique_identity()
        random = Random()
        self.login = Login(settings.kubeconfig, settings.context)
        self.client = Client(self.login)
        loop = asyncio.get_running_loop()
        self.elector: Elector | Alone
        if settings.leader_elect:
            self.elector = Elector(
                lambda: Client(Login(settings.kubeconfig, settings.context)),
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=identity,
                timing=settings.lease,
                changed=lambda: _ignore(loop.call_soon_threadsafe(self._lead_changed)),
                random=random,
            )
        else:
            self.elector = Alone()
        views_pacer = Pacer(max(1.0, settings.qps / 10), max(5, settings.burst // 10))
        self.recorder = Recorder(
            self.client,
            pacer=views_pacer,
            identity=identity,
            namespace=settings.namespace,
            clock=time.monotonic,
            wall=_now,
            new_id=lambda: uuid.uuid4().hex,
            dropped=self.metrics.events_dropped.inc,
        )
        self.conditions = PodConditions(
            self.client,
            pacer=views_pacer,
            clock=time.monotonic,
            wall=_now,
            leading=lambda: self.elector.leading,
            enabled=settings.pod_conditions,
        )
        self.views = Views(self.client, pacer=views_pacer, wall=_now, leading=lambda: self.elector.leading)
        self.controller = Controller(
            Engine(settings.engine),
            writer=Writer(
                self.client,
                budget=self.elector.budget,
                pacer=Pacer(settings.qps, settings.burst),
                new_id=lambda: uuid.uuid4().hex,
                random=random,
                concurrency=settings.concurrency,
                timeout=settings.write_timeout,
            ),
            lead=self.elector,
            recorder=self.recorder,
            conditions=self.conditions,
            views=self.views,
            metrics=self.metrics,
        )
        self.feeds = [
            Reflector(
                self.client,
                kind,
                self.controller.deliver,
                random=random,
                silence=settings.watch_silence,
                stale_after=settings.stale_after,
            )
            for kind in FEEDS
        ]
        for feed in self.feeds:
            self.controller.add_feed(feed)
        self.probes = (
            Probes(
                settings.http,
                unhealthy=self.unhealthy,
                unready=self.controller.blind,
                registry=self.metrics.registry,
            )
            if settings.http
            else None
        )

    def _lead_changed(self) -> None:
        self.controller.poke()

    def unhealthy(self) -> list[str]:
        """Why this process should be restarted; empty when it is fine."""
        problems = []
        turned = time.monotonic() - self.controller.turned_at
        if turned > self.settings.hung_after:
            problems.append(f"the controller has not taken a turn for {turned:.0f} s")
        # One feed that has gone blind while others hear is this process's fault; all of them, the server's.
        heard = [feed.age() <= feed.stale_after for feed in self.feeds if feed.status.served]
        if any(heard):
            problems += [
                f"{feed.kind.kind}: blind for {feed.age():.0f} s"
                for feed in self.feeds
                if feed.status.served and 3 * feed.stale_after < feed.age() < float("inf")
            ]
        return problems

    async def start(self) -> None:
        """Check the server and start everything. Raises what `preflight.check` raises, and OSError for the
        port."""
        version = await preflight.check(self.client, self.settings.namespace)
        log.info("starting", server=version, namespace=self.settings.namespace)
        tune_collector()
        if self.probes is not None:
            await self.probes.start()
            log.info("probes", port=self.probes.port)
        self.elector.start()
        await asyncio.to_thread(self.elector.looked, FIRST_LOOK)
        for feed in self.feeds:
            self._run(feed.run(), f"feed {feed.kind.kind}")
        self._run(self.controller.run(), "controller")
        self._run(self.recorder.run(), "events")
        self._run(self.views.run(), "views")
        self._run(self.conditions.run(), "conditions")
        self._run(self._settle_memory(), "memory", ends=True)
        claims = next(feed for feed in self.feeds if feed.kind is CLAIMS)
        self._run(
            audit.run(
                self.client,
                claims,
                self.controller,
                self.metrics,
                interval=self.settings.audit_interval,
                strict=self.settings.strict_audit,
            ),
            "audit",
        )

    async def stop(self) -> None:
        """Stop deciding, let writes in flight end, tell what is left to tell, release the lease.

        Every step is bounded, and the next one is taken whatever became of it: a process that was told to
        stop must end.
        """
        drained = False
        async with self._step("writes", self.settings.drain + 1.0):
            drained = await self.controller.stop(self.settings.drain)
        async with self._step("events", 2.0):
            await self.recorder.flush(1.0)
        # With a write under way the lease is not given up, for the next leader could be quicker than it.
        async with self._step("lease", self.settings.lease.renew + 1.0):
            await asyncio.to_thread(self.elector.stop, release=drained)
        async with self._step("tasks", 3.0):
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self.probes is not None:
            async with self._step("probes", 3.0):
                await self.probes.stop()
        async with self._step("connections", 2.0):
            await self.client.close()
        log.info("stopped")

    @contextlib.asynccontextmanager
    async def _step(self, what: str, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            log.warning("stopping takes too long", step=what, seconds=seconds)
        except Exception:
            log.exception("stopping failed", step=what)

    def _run(self, work: Coroutine[Any, Any, Any], name: str, *, ends: bool = False) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(lambda done: self._ended(done, ends))

    def _ended(self, task: asyncio.Task[Any], ends: bool) -> None:
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        if error is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)
            self.failed.set_exception(error)
        elif not ends:
            log.error("task ended", task=task.get_name())
            self.failed.set_exception(RuntimeError(f"{task.get_name()} ended"))

    async def _settle_memory(self) -> None:
        """Leave the collector out while the caches are filled, and what they hold out of it afterwards.

        What is frozen is not looked at first: that alone would hold the loop for a quarter of a second.
        """
        gc.disable()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60.0):
                    while not all(feed.synced for feed in self.feeds):  # noqa: ASYNC110 - nine, once
                        await asyncio.sleep(0.1)
        finally:
            gc.freeze()
            gc.enable()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _ignore(_: object) -> None: ...
