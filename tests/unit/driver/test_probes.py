"""Metrics and probes over HTTP, for clients of every kind."""

from __future__ import annotations

import socket

import pytest
from prometheus_client import CollectorRegistry

from affinity_driver import probes


def test_a_client_that_says_nothing_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is open to the cluster's pods; one that connects and vanishes must not cost us for ever."""
    monkeypatch.setattr(probes, "PATIENCE", 0.2, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = probes.serve("127.0.0.1", port, CollectorRegistry(), {})
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(1) == b""
    finally:
        stop()
