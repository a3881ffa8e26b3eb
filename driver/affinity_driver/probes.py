"""Metrics and probes over HTTP: ``/metrics``, ``/healthz`` (should it be restarted?), ``/readyz`` (can it
replace another?).

Health is asked through the sockets that the kubelet uses: a driver that lost them is dead to its node,
however alive it looks. It is asked from within, since starting a program for each probe costs more than the
driver does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str]
"""What is wrong; "" when nothing is."""
PATIENCE = 30.0
"""Seconds for which a client may say nothing: each one holds a thread and a descriptor."""


def serve(
    address: str, port: int, registry: CollectorRegistry, checks: Mapping[str, Check]
) -> Callable[[], None]:
    """Serve until the returned function is called. Raises OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif path in checks:
                problem = checks[path]()
                self._answer(503 if problem else 200, "text/plain", (problem or "ok").encode())
            else:
                self._answer(404, "text/plain", b"/metrics, /healthz or /readyz")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Nothing: probes come every few seconds."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    return stop
