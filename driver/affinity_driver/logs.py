"""Logging: JSON lines in a cluster, readable lines on a terminal; always to standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(form: str = "auto", level: str = "info") -> None:
    """Set up structlog for the process. ``form`` is ``json``, ``console`` or ``auto`` (console on a
    terminal).
    """
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
