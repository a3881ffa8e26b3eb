"""``sharing-affinity webhook`` as a kopf application: feed, certificate, admission, probes.

Before anything is served, the first list of slices has been read and a certificate is there and trusted.
Until then the process is alive but not ready; the API server meets another replica or lets writes through.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import kopf
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kubernetes_cel import Environment
from sharing_affinity import kopf_app
from sharing_affinity.api import names
from sharing_affinity.runtime.client import ApiError, Client, Login, NoAnswerError
from sharing_affinity.runtime.kinds import METADATA
from sharing_affinity.runtime.probes import Probes
from sharing_affinity.runtime.reflector import Reflector
from sharing_affinity.webhook import judging
from sharing_affinity.webhook.certificates import Material
from sharing_affinity.webhook.keeper import Keeper
from sharing_affinity.webhook.peers import Peers
from sharing_affinity.webhook.server import Server

#: The handler's name, and so the path in the ValidatingWebhookConfiguration.
HANDLER = "slices"

log = structlog.get_logger("webhook")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every knob, with its default. Times are seconds."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "sharing-affinity-system"
    #: ``host:port`` of admission.
    listen: str = "0.0.0.0:9443"
    #: ``host:port`` of /healthz, /readyz and /metrics; empty for none.
    http: str = "0.0.0.0:8080"
    service: str = "sharing-affinity-webhook"
    secret: str = "sharing-affinity-webhook"
    configuration: str = "sharing-affinity"
    #: Further names or addresses the certificate is for.
    hosts: tuple[str, ...] = ()
    lifetime: float = 90 * 86400.0
    check: float = 60.0

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The names an API server may call the Service by, and ``hosts``."""
        inside = f"{self.service}.{self.namespace}.svc"
        return (inside, f"{inside}.cluster.local", *self.hosts)


class Admission:
    """One process's parts. Create it inside the event loop that shall run it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.login = Login(settings.kubeconfig, settings.context)
        self.client = Client(self.login)
        self.peers = Peers()
        self.environment = Environment.admission()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reviews = Counter(
            "sharing_affinity_webhook_reviews",
            "Slices judged at admission, by verdict.",
            ["verdict"],
            registry=self.registry,
        )
        for verdict in ("allowed", "refused"):
            self.reviews.labels(verdict)
        self.review_seconds = Histogram(
            "sharing_affinity_webhook_review_seconds",
            "Time of judging one slice.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
            registry=self.registry,
        )
        self.expiry = Gauge(
            "sharing_affinity_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, as Unix time.",
            registry=self.registry,
        )
        self.feed = Reflector(self.client, METADATA, self.peers.deliver, random=Random())
        self.server = Server(settings.listen, self._listening)
        self.keeper = Keeper(
            self.client,
            namespace=settings.namespace,
            secret=settings.secret,
            configuration=settings.configuration,
            hosts=settings.all_hosts,
            lifetime=datetime.timedelta(seconds=settings.lifetime),
            show=self._show,
            wall=_now,
        )
        self._serving = False
        self._expires = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._probes = (
            Probes(settings.http, unhealthy=list, unready=self.unready, registry=self.registry)
            if settings.http
            else None
        )

    def unready(self) -> list[str]:
        """Why no request should come here; empty when one may."""
        problems = []
        if not self.feed.fresh:
            problems.append(f"{METADATA.kind}: {self.feed.status.problem or 'silent'}")
        if not self._serving:
            problems.append("not listening yet")
        elif self._expires <= time.time():
            problems.append("the certificate has expired")
        return problems

    async def start(self) -> None:
        """Return when requests can be judged. Raises `AccessError`, and OSError for the probes' port."""
        await self.login.credentials()
        if self._probes is not None:
            await self._probes.start()
            log.info("probes", port=self._probes.port)
        self._run(self.feed.run(), "feed")
        while not await self._kept() or not self.feed.synced:  # noqa: ASYNC110 - two conditions, once
            await asyncio.sleep(0.5)
        self._run(self.keeper.run(self.settings.check), "certificates")

    async def _kept(self) -> bool:
        try:
            await self.keeper.once()
        except (ApiError, NoAnswerError) as error:
            log.warning("no certificate yet", problem=str(error))
            return False
        return True

    async def stop(self) -> None:
        """End what `start` started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._probes is not None:
            await self._probes.stop()
        await self.client.close()
        log.info("stopped")

    async def judge(self, raw: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[judging.Finding]:
        """`judging.judge` in a thread of its own: an expression of 10 KiB takes its time to compile."""
        started = time.perf_counter()
        spec = raw.get("spec") or {}
        peers = self.peers.of(spec.get("driver", ""), (spec.get("pool") or {}).get("name", ""))
        findings = await asyncio.to_thread(judging.judge, raw, old, peers, self.environment)
        self.review_seconds.observe(time.perf_counter() - started)
        self.reviews.labels("refused" if findings else "allowed").inc()
        return findings

    def _show(self, material: Material) -> None:
        self.server.show(material)
        self._expires = material.expires.timestamp()
        self.expiry.set(self._expires)

    def _listening(self, port: int) -> None:
        self._serving = True
        log.info("admission", port=port)

    def _run(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.failed.done():
            self.failed.set_exception(task.exception() or RuntimeError(f"{task.get_name()} ended"))


def make_registry(
    settings: Settings, stop: asyncio.Event, errors: list[BaseException]
) -> kopf.OperatorRegistry:
    """kopf's handlers; what ends the process is left in ``errors``."""
    registry = kopf.OperatorRegistry()
    admission = Admission(settings)

    def end(error: BaseException | None) -> None:
        if error is not None:
            errors.append(error)
        stop.set()

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        kopf_app.configure(settings)
        # It calls every refusal an error of ours.
        logging.getLogger("kopf.objects").setLevel(logging.CRITICAL)
        settings.admission.server = admission.server
        admission.failed.add_done_callback(lambda failed: end(failed.exception()))
        starting = asyncio.create_task(admission.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return
        if (error := starting.exception()) is not None:
            end(error)
            raise kopf.PermanentError(str(error)) from error

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await admission.stop()
        stop.set()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await kopf_app.session(admission.login)

    @kopf.on.validate(  # type: ignore[arg-type]
        names.GROUP,
        names.VERSION,
        names.SLICE_PLURAL,
        id=HANDLER,
        operations=["CREATE", "UPDATE"],
        registry=registry,
    )
    async def validate(body: kopf.Body, old: kopf.Body | None, name: str, **_: Any) -> None:
        findings = await admission.judge(dict(body), None if old is None else dict(old))
        if findings:
            log.info("refused", slice=name, findings=list(map(str, findings)))
            raise kopf.AdmissionError(judging.message(name, findings), code=422)

    return registry


async def serve(settings: Settings) -> None:
    """Run until told to stop; raises what made the process end by itself."""
    stop = asyncio.Event()
    errors: list[BaseException] = []
    try:
        await kopf.operator(
            registry=make_registry(settings, stop, errors),
            settings=kopf.OperatorSettings(),
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
        )
    except Exception:
        if not errors:
            raise
    if errors:
        raise errors[0]


def main(settings: Settings) -> None:
    """Run in this process until SIGTERM or SIGINT."""
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(serve(settings))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
