"""The periodic proof that memory is what the API server holds.

A consistent list of all claims is read; once the feed has passed that list's resourceVersion, the engine
compares its confirmed layer with it. There must never be a difference. If there is one it is logged and
counted, and the state rebuilt from what the server holds wins: the feed is listed anew, then the engine
derives everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import structlog

from sharing_affinity.engine import Engine
from sharing_affinity.runtime.client import ApiError, Client, NoAnswerError
from sharing_affinity.runtime.controller import Controller
from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.metrics import Metrics
from sharing_affinity.runtime.reflector import Reflector
from sharing_affinity.runtime.snapshot import pages

log = structlog.get_logger("audit")


class AuditError(Exception):
    """Memory differed from the API server, and the operator was told not to live with that."""


async def run(
    client: Client,
    claims: Reflector,
    controller: Controller,
    metrics: Metrics,
    *,
    interval: float,
    strict: bool,
) -> None:
    """Audit every ``interval`` seconds for ever; with ``strict`` a difference raises `AuditError`."""
    while True:
        await asyncio.sleep(interval)
        try:
            differences = await once(client, claims, controller)
        except (ApiError, NoAnswerError) as error:
            log.warning("no audit", problem=str(error))
            continue
        if differences is None:
            continue
        metrics.audits.inc()
        if differences:
            metrics.audit_differences.inc(len(differences))
            log.error("memory differs from the API server", differences=differences[:20])
            if strict:
                raise AuditError("; ".join(differences[:20]))


async def once(client: Client, claims: Reflector, controller: Controller) -> tuple[str, ...] | None:
    """One audit: the differences found (and repaired), or None when the feed did not catch up in time."""
    items: list[dict[str, Any]] = []
    version = 0
    async for page in pages(client, CLAIMS):
        version = int(page["metadata"]["resourceVersion"])
        for raw in page.get("items") or []:
            raw["metadata"].pop("managedFields", None)
            items.append(raw)
        await asyncio.sleep(0)
    # The feed passes the list's version with its next event or bookmark, about a minute at the latest.
    if not await claims.passed(version, 150.0):
        log.info("no audit: the feed of claims did not pass the list in time")
        return None

    differences = await compare(controller, items, str(version))
    controller.tell(await controller.ask(Engine.misplaced))
    if differences:
        await claims.relist()
        await controller.repair()
    return differences


async def compare(controller: Controller, items: list[dict[str, Any]], version: str) -> tuple[str, ...]:
    """Compare the engine with a list of claims, a step at a time between the turns of the controller."""
    steps: Iterator[tuple[str, ...]] = await controller.ask(
        lambda engine: engine.audit_steps(_typed(items), version)
    )
    differences: list[str] = []
    while (found := await controller.ask(lambda _: next(steps, None))) is not None:
        differences += found
    return tuple(differences)


def _typed(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for raw in items:
        raw["kind"], raw["apiVersion"] = CLAIMS.kind, CLAIMS.group_version
        yield raw
