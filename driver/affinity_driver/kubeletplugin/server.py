"""A gRPC server on one Unix socket."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

MAX_MESSAGE = 4 * 1024 * 1024


class UnixServer:
    """Serves ``handlers`` at ``path``. ``threads`` bounds the calls in progress; waiting ones count."""

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], threads: int) -> None:
        self.path = path
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=path.stem[:16])
        options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(self._pool, handlers=list(handlers), options=options)

    def start(self) -> None:
        """Bind and serve. Raises RuntimeError where the socket cannot be bound."""
        self.path.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self, grace: float) -> None:
        """Take no new calls, give those in progress ``grace`` seconds, remove the socket."""
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.path.unlink(missing_ok=True)
