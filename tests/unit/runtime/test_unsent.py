"""Whether a request that got no answer certainly never reached a server: writers rest on it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sharing_affinity.runtime.client import Client, Credentials, NoAnswerError


class Login:
    def __init__(self, port: int) -> None:
        self._credentials = Credentials(f"http://127.0.0.1:{port}", None, None, None)

    async def credentials(self, **_: Any) -> Credentials:
        return self._credentials


class Dying:
    """A server that dies over the first request: it may have done what was asked."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server.close()
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()


async def test_a_write_that_was_repeated_in_vain_may_have_been_sent() -> None:
    server = Dying()
    async with Client(cast(Any, Login(await server.start()))) as client:
        with pytest.raises(NoAnswerError) as caught:
            await client.request("PUT", "/claims/c/status", body={}, within=5.0)

    assert len(server.requests) == 1
    assert caught.value.sent


async def test_a_patch_for_which_nobody_is_there_was_not_sent() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with Client(cast(Any, Login(port))) as client:
        with pytest.raises(NoAnswerError) as caught:
            await client.request("PATCH", "/claims/c", body={}, within=5.0)

    assert not caught.value.sent
