"""Access to one API server: credentials from the official client, requests over plain aiohttp, raw JSON
both ways.

The official client's models are not used: they drop fields they do not know (this very KEP's among them),
cost five times the decoding, and re-read the proxy environment on every request. What it does well is
finding credentials (in-cluster, kubeconfig, exec plugins), so that part is taken from it.

Every request has a deadline. What went wrong is one of two things, and callers must tell them apart:

* `ApiError`: the server answered. 4xx means that nothing was changed.
* `NoAnswerError`: there was no answer, or a 5xx, which for a write is as good as none: the outcome is
  *unknown* unless `NoAnswerError.sent` is false.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from sharing_affinity.api.decoding import decode

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"

#: Writes that aiohttp sends once more by itself, on a new connection, when the first was cut.
_REPEATED: Final = frozenset({"PUT", "DELETE"})


class AccessError(Exception):
    """No credentials, or none that can be read: for the person who started the process."""


class ApiError(Exception):
    """The server's answer when it is not 2xx.

    ``status`` is the HTTP code, ``reason`` the Status object's reason (``Conflict``, ``NotFound``, ...),
    ``message`` its text, ``causes`` the texts of ``details.causes``, ``retry_after`` seconds or None.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.causes, self.retry_after = causes, retry_after


class NoAnswerError(Exception):
    """The request got no usable answer. ``sent`` is False when it certainly never reached a server."""

    def __init__(self, problem: str, *, sent: bool = True) -> None:
        super().__init__(problem)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the server is and how to talk to it."""

    url: str
    ssl: ssl.SSLContext | None
    authorization: str | None
    proxy: str | None


class Login:
    """Finds credentials, and finds them again: after a while, and whenever the server answers 401.

    In a cluster the ServiceAccount's token file is rewritten by the kubelet; a kubeconfig may name a token
    file or an exec plugin. Both are read again through the official client's own loaders.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        self.kubeconfig, self.context = kubeconfig, context
        self._current: Credentials | None = None
        self._namespace = "default"
        self._ssl_for: tuple[Any, ...] | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def in_cluster(self) -> bool:
        """True when the pod's own ServiceAccount is used."""
        if self.kubeconfig or os.environ.get("KUBECONFIG"):
            return False
        return (SERVICE_ACCOUNT / "token").exists() and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    async def namespace(self) -> str:
        """The namespace that the kubeconfig's context, or the pod, is in. Raises `AccessError`."""
        await self.credentials()
        if not self.in_cluster:
            return self._namespace
        try:
            return (SERVICE_ACCOUNT / "namespace").read_text().strip()
        except OSError as error:
            raise AccessError(f"no usable credentials for a cluster: {error}") from error

    async def credentials(self, *, rejected: Credentials | None = None) -> Credentials:
        """The credentials to use now. ``rejected``: those the server just refused, to be replaced at once."""
        async with self._lock:
            period = 60.0 if self.in_cluster else 600.0
            current = self._current
            if (
                current is None
                or (rejected is not None and rejected is current)
                or time.monotonic() - self._read_at > period
            ):
                try:
                    self._current = await self._read(current)
                except AccessError:
                    if current is None:
                        raise
                self._read_at = time.monotonic()
            assert self._current is not None
            return self._current

    async def _read(self, before: Credentials | None) -> Credentials:
        try:
            return await self._load(before)
        except Exception as error:  # the loader trips over whatever a kubeconfig is not
            problem = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, TypeError | AttributeError):
                problem = f"the kubeconfig is incomplete, or none ({problem})"
            raise AccessError(f"no usable credentials for a cluster: {problem}") from error

    async def _load(self, before: Credentials | None) -> Credentials:
        from kubernetes.aio import config
        from kubernetes.aio.client import Configuration

        found = Configuration()
        if self.in_cluster:
            config.load_incluster_config(found)  # type: ignore[no-untyped-call]
        else:
            loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=self.kubeconfig, context=self.context, client_configuration=found
            )
            self._namespace = str(loader.current_context["context"].get("namespace") or "default")
        key = (found.ssl_ca_cert, found.cert_file, found.key_file, found.verify_ssl, found.tls_server_name)
        if before is not None and key == self._ssl_for and not found.cert_file:
            context = before.ssl
        else:
            context = _ssl_context(found) if found.host.startswith("https") else None
        self._ssl_for = key
        token = found.api_key.get("BearerToken")
        if token and token[:7].lower() == "bearer ":
            token = "Bearer " + token[7:].strip()
        return Credentials(
            found.host.rstrip("/"), context, token or None, found.proxy or _proxy_for(found.host)
        )


def _ssl_context(found: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=found.ssl_ca_cert or None)
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file or None)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy_for(url: str) -> str | None:
    # Asked once per login: aiohttp's trust_env would read the environment and netrc again on every request.
    parts = urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


class Client:
    """Requests to one API server. One instance per event loop; close it with `close`."""

    def __init__(self, login: Login, *, user_agent: str = "sharing-affinity", timeout: float = 30.0) -> None:
        self.login = login
        self.timeout = timeout
        self._headers = {"User-Agent": user_agent, "Accept": JSON}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=True,
                trust_env=False,
            )
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        within: float | None = None,
    ) -> Any:
        """Send one request with JSON in ``body`` and return the decoded answer.

        ``within`` is in seconds and covers everything, connecting included. Raises `ApiError` and
        `NoAnswerError`. A 401 is answered once with fresh credentials: the server has done nothing then.
        """
        data = None if body is None else _encode(method, path, body)
        text = await self.exchange(
            method, path, data, params=params, content_type=content_type, within=within
        )
        try:
            return decode(text) if text else None
        except ValueError as error:
            raise NoAnswerError(f"{method} {path}: the answer is not JSON: {error}") from error

    async def exchange(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = "",
        within: float | None = None,
    ) -> bytes:
        """Like `request`, with bytes both ways."""
        limit = self.timeout if within is None else within
        if limit <= 0:
            raise NoAnswerError("no time left for the request", sent=False)
        try:
            async with asyncio.timeout(limit):
                credentials = await self.login.credentials()
                for last in (False, True):
                    async with self._send(
                        method, path, params, data, content_type, credentials, limit, accept=accept
                    ) as response:
                        text: bytes = await response.read()
                    if response.status == 401 and not last:
                        credentials = await self.login.credentials(rejected=credentials)
                        continue
                    break
        except TimeoutError as error:
            raise NoAnswerError(f"{method} {path}: no answer in {limit:.1f} s") from error
        except aiohttp.ClientConnectorError as error:
            # Nobody was there for this attempt; an earlier one may have got through.
            raise NoAnswerError(f"{method} {path}: {error}", sent=method in _REPEATED) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise NoAnswerError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.status >= 300:
            raise _error(method, path, response.status, text, response.headers.get("Retry-After"))
        return text

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        credentials: Credentials,
        connect: float,
        read: float | None = None,
        accept: str = "",
    ) -> Any:
        headers = {"Content-Type": content_type} if data is not None else {}
        if accept:
            headers["Accept"] = accept
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        return self._open().request(
            method,
            credentials.url + path,
            params=params,
            data=data,
            headers=headers,
            ssl=True if credentials.ssl is None else credentials.ssl,
            proxy=credentials.proxy,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_read=read),
        )

    async def watch(
        self, path: str, params: Mapping[str, str], *, silence: float, connect: float = 15.0
    ) -> AsyncGenerator[dict[str, Any] | None, None]:
        """The events of a watch, in the server's order, until the server ends it.

        Yields None once, when the server has accepted the watch; then ``{"type": ..., "object": ...}``.
        ``silence``: seconds without a byte after which the connection counts as dead. Raises `ApiError`,
        `NoAnswerError` (cut, silent, or a line that is not JSON).
        """
        try:
            async with asyncio.timeout(connect) as opening:
                credentials = await self.login.credentials()
                for last in (False, True):
                    manager = self._send("GET", path, params, None, JSON, credentials, connect, silence)
                    response = await manager.__aenter__()
                    if response.status == 401 and not last:
                        await manager.__aexit__(None, None, None)
                        credentials = await self.login.credentials(rejected=credentials)
                        continue
                    break
                opening.reschedule(None)
        except TimeoutError as error:
            raise NoAnswerError(f"watch {path}: no answer in {connect:.0f} s") from error
        except aiohttp.ClientConnectorError as error:
            raise NoAnswerError(f"watch {path}: {error}", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(f"watch {path}: {type(error).__name__}: {error}") from error
        try:
            if response.status != 200:
                async with asyncio.timeout(connect):
                    text = await response.read()
                raise _error("watch", path, response.status, text, response.headers.get("Retry-After"))
            yield None
            async for line in _lines(response.content):
                yield decode(line)
        except TimeoutError as error:
            raise NoAnswerError(f"watch {path}: silent for {silence:.0f} s") from error
        except ValueError as error:
            raise NoAnswerError(f"watch {path}: a line that is not JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(f"watch {path}: {type(error).__name__}: {error}") from error
        finally:
            # A watch that is left early must not go back into the pool with half a stream in it.
            response.close()


def _encode(method: str, path: str, body: Any) -> bytes:
    """JSON as Go writes it: keys sorted, no spaces, some characters escaped.

    The API server keeps an allocation's opaque parameters as the bytes that were sent. It refuses every later
    patch of the claim's status (the driver's ``status.devices``, say) when Go would write them differently.
    """
    try:
        # Python reads 1e400 as infinity, which JSON cannot say.
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
        for character in "&<>\u2028\u2029":  # they occur within strings only
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text.encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "BadRequest", f"{method} {path}: cannot be written as JSON: {error}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # Not StreamReader.readline: it refuses lines over its buffer limit, and a ResourceSlice can be 1.5 MiB.
    pending: list[bytes] = []
    async for chunk in content.iter_any():
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            pending.append(chunk)
            continue
        pending.append(head)
        yield b"".join(pending)
        *whole, tail = rest.split(b"\n")
        for line in whole:
            if line:
                yield line
        pending = [tail] if tail else []
    # What is left was cut in the middle of an object; the resume sends it again.


def _error(
    method: str, path: str, status: int, text: bytes, retry_after: str | None
) -> ApiError | NoAnswerError:
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    message = str(body.get("message") or text[:200].decode("utf-8", "replace").strip() or "no message")
    if status >= 500 and method not in ("GET", "watch"):
        return NoAnswerError(f"{method} {path}: {status} {message}")
    details = body.get("details") or {}
    causes = tuple(str(cause.get("message", "")) for cause in details.get("causes") or ())
    seconds: float | None = None
    for candidate in (retry_after, details.get("retryAfterSeconds")):
        try:
            seconds = float(candidate)  # type: ignore[arg-type]
            break
        except (TypeError, ValueError):
            continue
    return ApiError(status, str(body.get("reason") or ""), message, causes, seconds)
