"""Structured logs: one JSON object per line for machines, aligned text for a person at a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog


def configure(form: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs, those of libraries included, to ``stream`` (stderr). ``form``: auto, json or text.

    ``auto`` is text on a terminal and JSON otherwise.
    """
    target = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and not target.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        final: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        final = [structlog.dev.ConsoleRenderer(colors=target.isatty())]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Named(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    # kopf tells of every handler call, asyncio of every slow callback: neither helps anybody.
    for noisy in ("kopf", "kopf.objects", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))


class _Named:
    """Makes loggers that write to one stream; the logger's name is a field of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *args: Any) -> structlog.PrintLogger:
        return structlog.PrintLogger(self._stream)
