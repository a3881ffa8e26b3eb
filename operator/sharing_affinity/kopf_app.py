"""The operator as a kopf application.

kopf owns the process: signals, start and end, login, and the admission server where one is configured. It
feeds nothing to the engine (its watching loses deletions over a relist, and it exits on errors that a
controller must outlive); that is the runtime's work. Both share one event loop.

The runtime starts in kopf's startup activity and ends in its cleanup; when one of its tasks dies, the
process ends with it, since a restart is cheaper to reason about than a half-alive operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import kopf
import structlog

from sharing_affinity.runtime.client import AccessError, ApiError, Login, NoAnswerError
from sharing_affinity.runtime.preflight import UnfitServerError
from sharing_affinity.runtime.replica import Replica
from sharing_affinity.runtime.settings import Settings

log = structlog.get_logger("kopf")


class _Patience:
    """Delays between kopf's retries, without end: kopf exits when they run out."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13), itertools.repeat(30))


class _Run:
    """What the handlers of one run share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stop = asyncio.Event()
        self.replica: Replica | None = None
        self.error: BaseException | None = None


def make_registry(run: _Run) -> kopf.OperatorRegistry:
    """kopf's handlers of this operator."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        try:
            run.replica = Replica(run.settings)
            await run.replica.start()
        except (UnfitServerError, AccessError, ApiError, NoAnswerError, OSError) as error:
            run.error = error
            run.stop.set()
            raise kopf.PermanentError(str(error)) from error
        run.replica.failed.add_done_callback(failed)

    def failed(future: asyncio.Future[None]) -> None:
        run.error = future.exception()
        run.stop.set()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        if run.replica is not None:
            await run.replica.stop()
        # Without it kopf waits for its own task that waits for this flag.
        run.stop.set()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession | None:
        return None if run.replica is None else await session(run.replica.login)

    return registry


async def session(login: Login) -> kopf.AiohttpSession:
    """kopf's own connection, with the credentials everything else uses."""
    found = await login.credentials()
    opened = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=True if found.ssl is None else found.ssl),
        headers={"Authorization": found.authorization} if found.authorization else {},
    )
    # kopf asks again when it has expired, and when the server answers 401.
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
    return kopf.AiohttpSession(server=found.url, aiohttp_session=opened, expiration=expiration)


def configure(settings: kopf.OperatorSettings) -> None:
    """Keep kopf from annotating objects, posting Events, watching what it need not, and giving up."""
    settings.persistence.finalizer = "sharingaffinity.dev/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.sharingaffinity.dev")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="kopf.sharingaffinity.dev")
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.error_backoffs = _Patience()
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


async def serve(settings: Settings, *, stop: asyncio.Event | None = None) -> None:
    """Run until told to stop; raises what made the operator end by itself."""
    run = _Run(settings)
    if stop is not None:
        run.stop = stop
    try:
        await kopf.operator(
            registry=make_registry(run),
            settings=kopf.OperatorSettings(),
            clusterwide=True,
            standalone=True,
            stop_flag=run.stop,
        )
    except Exception:
        if run.error is None:
            raise
    if run.error is not None:
        raise run.error


def main(settings: Settings) -> None:
    """Run the operator in this process until SIGTERM or SIGINT."""
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(serve(settings))
