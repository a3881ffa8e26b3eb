"""A proxy before the API server that does to its clients what networks and load balancers do.

It listens on loopback with plain HTTP and forwards to the real server with the caller's own credentials.
Faults are rules: a predicate over the request, what to do, and how often. Everything random comes from one
seeded generator, so a run can be replayed. It runs in a thread with an event loop of its own; rules may be
added from any thread.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from aiohttp import web

Json = dict[str, Any]


@dataclass
class Rule:
    """What happens to requests that match. One action of the first group; the others add to it.

    ``answer``: (status, reason) sent without forwarding. ``reset``: "before" forwarding, or "after" the
    server has answered (the write is applied, nobody is told). ``hang``: seconds without an answer, then a
    reset. ``delay``: seconds before forwarding; ``delay_answer``: seconds before passing the answer on.
    Watches: ``cut``: end the stream after so many events; ``silent``: stop passing events on after so many,
    without closing; ``duplicate``: pass each event on twice; ``late``: hold each event back for so many
    seconds; ``error``: an in-stream ERROR of this code in place of the first event.
    """

    method: str = ""
    path: str = ""
    where: Callable[[Json], bool] | None = None
    times: int = 1 << 30
    chance: float = 1.0
    answer: tuple[int, str] | None = None
    retry_after: int | None = None
    reset: str = ""
    hang: float = 0.0
    delay: float = 0.0
    delay_answer: float = 0.0
    held: threading.Event | None = None
    watch: bool | None = None
    cut: int | None = None
    silent: int | None = None
    duplicate: bool = False
    late: float = 0.0
    error: int = 0
    hits: int = field(default=0, compare=False)

    def applies(self, method: str, path: str, body: bytes, watch: bool, chance: random.Random) -> bool:
        """True, and one use less, when this rule is for the request."""
        if self.times <= 0 or (self.method and self.method != method):
            return False
        if self.watch is not None and self.watch is not watch:
            return False
        if self.path and not re.search(self.path, path):
            return False
        if self.where is not None:
            try:
                if not self.where(json.loads(body)):
                    return False
            except ValueError:
                return False
        if self.chance < 1.0 and chance.random() >= self.chance:
            return False
        self.times -= 1
        self.hits += 1
        return True


class FaultProxy:
    """``with FaultProxy(admin_kubeconfig) as proxy: ...``; `kubeconfig` derives client configurations from
    others."""

    def __init__(self, kubeconfig: Path, seed: int = 0) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._upstream = cluster["server"].rstrip("/")
        self._ssl = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._chance = random.Random(seed)
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._open: dict[int, web.Request] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="fault proxy", daemon=True)
        self.port = 0
        #: (time, method, path, what was done) of every request.
        self.log: list[tuple[float, str, str, str]] = []

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """A copy of ``original`` (with a token) that goes through the proxy."""
        config = yaml.safe_load(original.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        target.write_text(json.dumps(config))
        target.chmod(0o600)
        return target

    def add(self, rule: Rule) -> Rule:
        """From now on; the first rule that applies decides."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """No faults from now on (streams that were silenced stay so)."""
        with self._lock:
            self._rules.clear()

    def drop_all(self) -> None:
        """Reset every connection that is open now."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        for request in list(self._open.values()):
            if request.transport is not None:
                request.transport.abort()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._ssl, limit=0), timeout=timeout, auto_decompress=False
        ) as self._session:
            self._ready.set()
            await self._stop.wait()
            self._abort_all()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        watch = request.query.get("watch") in ("1", "true")
        with self._lock:
            rule = next(
                (
                    rule
                    for rule in self._rules
                    if rule.applies(request.method, request.path_qs, body, watch, self._chance)
                ),
                Rule(),
            )
        self._open[id(request)] = request
        try:
            return await self._act(rule, request, body, watch)
        finally:
            self._open.pop(id(request), None)

    def _note(self, request: web.Request, what: str) -> None:
        self.log.append((time.monotonic(), request.method, request.path_qs, what))

    async def _act(self, rule: Rule, request: web.Request, body: bytes, watch: bool) -> web.StreamResponse:
        if rule.delay:
            await asyncio.sleep(rule.delay)
        while rule.held is not None and not rule.held.is_set():  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.02)
        if rule.answer is not None:
            self._note(request, f"answered {rule.answer[0]}")
            return _status(*rule.answer, rule.retry_after)
        if rule.reset == "before" or rule.hang:
            self._note(request, "hung" if rule.hang else "reset before")
            await asyncio.sleep(rule.hang)
            return self._abort(request)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "connection", "transfer-encoding")
        }
        url = self._upstream + urlsplit(str(request.rel_url)).path
        try:
            async with self._session.request(
                request.method, url, params=request.query, data=body or None, headers=headers
            ) as answer:
                if watch and answer.status == 200:
                    return await self._stream(rule, request, answer)
                text = await answer.read()
                if rule.reset == "after":
                    self._note(request, f"reset after {answer.status}")
                    return self._abort(request)
                if rule.delay_answer:
                    await asyncio.sleep(rule.delay_answer)
                self._note(request, str(answer.status))
                passed = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() in ("content-type", "content-encoding", "retry-after")
                }
                return web.Response(status=answer.status, body=text, headers=passed)
        except aiohttp.ClientError:
            self._note(request, "upstream failed")
            return self._abort(request)

    async def _stream(
        self, rule: Rule, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)
        passed = 0
        pending = b""
        async for chunk in answer.content.iter_any():
            pending += chunk
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if rule.error:
                    self._note(request, f"error {rule.error}")
                    event = {"type": "ERROR", "object": _status_object(rule.error, "Fault")}
                    await out.write(json.dumps(event).encode() + b"\n")
                    return out
                if rule.silent is not None and passed >= rule.silent:
                    if passed == rule.silent:
                        self._note(request, "silenced")
                    passed += 1
                    continue
                if rule.cut is not None and passed >= rule.cut:
                    self._note(request, "cut")
                    # In the middle of an object, as real cuts are.
                    await out.write(line[: len(line) // 2])
                    self._abort(request)
                    return out
                if rule.late:
                    await asyncio.sleep(rule.late)
                await out.write(line + b"\n")
                if rule.duplicate:
                    await out.write(line + b"\n")
                passed += 1
        self._note(request, "watch ended")
        return out

    def _abort(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)


def _status_object(code: int, reason: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": f"fault injected: {code} {reason}",
    }


def _status(code: int, reason: str, retry_after: int | None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(_status_object(code, reason), status=code, headers=headers)
