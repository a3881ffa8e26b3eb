"""kopf's admission requests over HTTPS, with a certificate that can change while the server runs.

kopf's own server re-reads certificate files and restarts its socket; ours is handed new ones and keeps
listening. Connections stay open for a few seconds only, so that a new certificate (and a second replica) is
met soon.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import kopf
import structlog
from aiohttp import web

from sharing_affinity.webhook.certificates import Material

#: An AdmissionReview holds the object twice, and the store takes 1.5 MiB of each.
LARGEST: Final = 4 * 2**20
KEEP_ALIVE: Final = 5.0

log = structlog.get_logger("server")


class Server:
    """Give it to ``settings.admission.server``; hand certificates to `show`, the first before it starts."""

    def __init__(self, address: str, listening: Callable[[int], None]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]") or "0.0.0.0", int(port)
        self._listening = listening
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def show(self, material: Material) -> None:
        """Use this certificate for connections from now on."""
        # The standard library reads keys from files only.
        with tempfile.TemporaryDirectory(prefix="webhook-") as folder:
            certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            for path, content in ((certificate, material.certificate), (key, material.key)):
                path.touch(mode=0o600)
                path.write_bytes(content)
            self._context.load_cert_chain(certificate, key)

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """What kopf calls with its function for one review."""

        async def review(request: web.Request) -> web.Response:
            return await _answer(fn, request)

        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{handler}", review)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEP_ALIVE, shutdown_timeout=5.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port, ssl_context=self._context)
            await site.start()
            port = runner.addresses[0][1]
            self._listening(port)
            yield kopf.WebhookClientConfig(url=f"https://{self._host}:{port}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


async def _answer(fn: kopf.WebhookFn, request: web.Request) -> web.Response:
    try:
        response: Any = await fn(
            await request.json(), webhook=request.match_info["handler"], headers=dict(request.headers)
        )
    except Exception as error:
        # Whatever it is, it is not about the object: the API server then does what failurePolicy says.
        log.warning("not a review that can be answered", problem=f"{type(error).__name__}: {error}")
        return web.json_response({"problem": type(error).__name__}, status=400)
    status = response["response"].get("status")
    if status is not None and status.get("code") == 422:
        # kopf knows code and message only; clients ask for the reason.
        status["reason"] = "Invalid"
    return web.json_response(response)
