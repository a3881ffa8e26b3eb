"""Controllers around an engine, without an API server: what a test does not give is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharing_affinity.engine import Engine, Options
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.metrics import Metrics


@dataclass
class Lead:
    """Whether, and since when, this process leads; a standby unless told otherwise."""

    leading: bool = False
    term: int = 0
    since: float = 0.0


def controller(engine: Engine | None = None, **given: Any) -> Controller:
    """A controller that runs when it is told to. Without ``lead`` it never leads, and so writes nothing."""
    around: dict[str, Any] = {
        **dict.fromkeys(("writer", "recorder", "conditions", "views")),
        "lead": Lead(),
        "metrics": Metrics(),
        **given,
    }
    return Controller(engine or Engine(Options()), **around)


async def until(condition: Callable[[], object]) -> None:
    """Let others run until ``condition`` is true; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - others' state
            await asyncio.sleep(0.01)
