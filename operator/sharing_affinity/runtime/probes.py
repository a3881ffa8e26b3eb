"""``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP.

Healthy: the one loop turns, and no feed has gone blind while others still hear. Ready: every feed is synced
and fresh. Neither depends on who leads, so that a standby is ready to take over and to serve.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Problems = Callable[[], list[str]]


class Probes:
    """A small server on ``host:port``; port 0 takes a free one, `port` tells which."""

    def __init__(
        self, address: str, *, unhealthy: Problems, unready: Problems, registry: CollectorRegistry
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self.port = host.strip("[]") or "0.0.0.0", int(port)
        self._unhealthy, self._unready, self._registry = unhealthy, unready, registry
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        app = web.Application()
        app.router.add_get("/healthz", lambda request: self._answer(self._unhealthy))
        app.router.add_get("/readyz", lambda request: self._answer(self._unready))
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        addresses = self._runner.addresses
        if addresses:
            self.port = addresses[0][1]

    async def stop(self) -> None:
        """Close."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, problems: Problems) -> web.Response:
        found = problems()
        return web.Response(status=503 if found else 200, text="\n".join(found or ["ok"]) + "\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"}
        )
