"""The few calls the driver makes to the API server, in plain JSON, over one standard-library connection a
thread.

A driver needs get, list, create, update, delete and watch on four resources. A generated client brings
models that drop unknown fields and a hundred megabytes; this brings dicts. Credentials come from a
kubeconfig or from the pod's ServiceAccount; tokens are read again from their file, as kubelets rotate them.

``Api`` is the narrow interface the rest of the driver asks for; ``KubeClient`` is the only implementation.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import yaml

from sharing_affinity.api.decoding import decode

from .json_types import Json, JsonObject

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFETIME = 60.0
"""Seconds before a token file is read again; the kubelet rotates long before expiry."""

APPLY = "application/apply-patch+yaml"
IDLE_LIMIT = 30.0
"""Seconds after which a kept connection is not used again: servers and proxies close idle ones without a
word.
"""


class ApiError(Exception):
    """The API server answered with an error status.

    ``code`` is the HTTP status (0 when there was no answer), ``reason`` the Status reason.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}" if code else message)
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def gone(self) -> bool:
        """Whether the object that was asked for does not exist; any proxy can say 404."""
        return self.code == 404 and self.reason == "NotFound"


class CredentialsError(Exception):
    """The kubeconfig or the ServiceAccount cannot be used; the text says which part and why."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``, and its object."""

    type: str
    object: JsonObject


class Api(Protocol):
    """Reading and writing API objects as plain JSON. Paths start with ``/api`` or ``/apis``."""

    def get(self, path: str, *, timeout: float | None = None) -> JsonObject:
        """One object. Raises ApiError."""
        ...

    def list(self, path: str, query: Mapping[str, str]) -> JsonObject:
        """A list object; ``query`` holds field and label selectors. Raises ApiError."""
        ...

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create below a collection path; the stored object. Raises ApiError."""
        ...

    def update(self, path: str, body: JsonObject) -> JsonObject:
        """Replace; the stored object. Raises ApiError (409 where the resourceVersion is old)."""
        ...

    def apply_status(self, path: str, body: JsonObject, manager: str, *, force: bool) -> JsonObject:
        """Server-side apply to an object's status; other managers' fields stay. Without ``force`` a field
        that another manager has set otherwise is a conflict. Raises ApiError (409 for conflicts).
        """
        ...

    def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        """Delete exactly that version of that object; a missing object is no error. Raises ApiError."""
        ...

    def watch(self, path: str, query: Mapping[str, str], seconds: int) -> Iterator[WatchEvent]:
        """Events until the server ends the watch, after about ``seconds``. Raises ApiError."""
        ...


@dataclass(frozen=True)
class Credentials:
    """Where the API server is and how to prove who we are."""

    server: str
    tls: ssl.SSLContext | None
    token: str | None = None
    token_file: Path | None = None
    server_name: str | None = None
    _cache: dict[str, tuple[float, str]] = field(default_factory=dict, repr=False, compare=False)

    def bearer(self) -> str | None:
        """The bearer token to send now."""
        if self.token_file is None:
            return self.token
        cached = self._cache.get("token")
        now = time.monotonic()
        if cached is None or now - cached[0] > TOKEN_LIFETIME:
            cached = (now, self.token_file.read_text().strip())
            self._cache["token"] = cached
        return cached[1]


def in_cluster() -> Credentials:
    """Credentials of the pod this process runs in. Raises CredentialsError outside of one."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (SERVICE_ACCOUNT / "token").exists():
        raise CredentialsError(
            "not inside a cluster: no --kubeconfig, and no ServiceAccount token is mounted"
        )
    if ":" in host:
        host = f"[{host}]"
    try:
        tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    except OSError as error:
        raise CredentialsError(f"{SERVICE_ACCOUNT / 'ca.crt'} cannot be used: {error}") from error
    return Credentials(f"https://{host}:{port}", tls, token_file=SERVICE_ACCOUNT / "token")


def from_kubeconfig(path: Path) -> Credentials:
    """Credentials of the current context of a kubeconfig file. Raises CredentialsError."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise CredentialsError(f"cannot read kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CredentialsError(f"kubeconfig {path} is not YAML: {error}") from error
    try:
        return _from_config(path, config)
    except KeyError as error:
        raise CredentialsError(f"kubeconfig {path} lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise CredentialsError(f"kubeconfig {path} is not understood: {error}") from error
    except (OSError, ValueError) as error:  # no such file, no base64, no PEM
        raise CredentialsError(f"kubeconfig {path}: its certificates cannot be used: {error}") from error


def _from_config(path: Path, config: Json) -> Credentials:
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"] or {}
    if "exec" in user or "auth-provider" in user:
        raise CredentialsError(
            f"kubeconfig {path}: exec and auth-provider users are not supported; use a token file"
        )
    tls = _tls(path.parent, cluster, user) if cluster["server"].startswith("https") else None
    token_file = user.get("tokenFile")
    return Credentials(
        server=cluster["server"],
        tls=tls,
        token=user.get("token"),
        token_file=path.parent / token_file if token_file else None,
        server_name=cluster.get("tls-server-name"),
    )


def _named(items: Json, name: str) -> JsonObject:
    for item in items:
        if item["name"] == name:
            found: JsonObject = item
            return found
    raise KeyError(name)


def _tls(base: Path, cluster: JsonObject, user: JsonObject) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cadata=base64.b64decode(authority).decode() if authority else None,
        cafile=str(base / cluster["certificate-authority"]) if "certificate-authority" in cluster else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "client-certificate" in user:
        context.load_cert_chain(base / user["client-certificate"], base / user["client-key"])
    elif "client-certificate-data" in user:
        # The ssl module loads key pairs from files only; the file is gone again before we return.
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]))
            pair.write(b"\n" + base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    return context


class _TlsConnection(http.client.HTTPSConnection):
    """HTTPS with the kubeconfig's ``tls-server-name``, which http.client has no parameter for."""

    def __init__(
        self, host: str, port: int | None, timeout: float, context: ssl.SSLContext, server_name: str | None
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls_context = context
        self._server_name = server_name

    def connect(self) -> None:
        """Connect as the base class does, but verify ``server_name`` where one is given."""
        if self._server_name is None:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._server_name)


class KubeClient:
    """``Api`` over ``http.client``: kept connections, one silent retry when one had gone stale.

    Safe to share between threads. ``timeout`` bounds each call in seconds.
    """

    def __init__(
        self, credentials: Credentials, timeout: float = 10.0, user_agent: str = "affinity-driver"
    ) -> None:
        self._credentials = credentials
        self._timeout = timeout
        self._user_agent = user_agent
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()
        parts = urlsplit(credentials.server)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path.rstrip("/")

    def get(self, path: str, *, timeout: float | None = None) -> JsonObject:
        """See ``Api``."""
        return self._call("GET", path, timeout=timeout)

    def list(self, path: str, query: Mapping[str, str]) -> JsonObject:
        """See ``Api``."""
        return self._call("GET", f"{path}?{urlencode(query)}")

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """See ``Api``."""
        return self._call("POST", path, body)

    def update(self, path: str, body: JsonObject) -> JsonObject:
        """See ``Api``."""
        return self._call("PUT", path, body)

    def apply_status(self, path: str, body: JsonObject, manager: str, *, force: bool) -> JsonObject:
        """See ``Api``."""
        query = urlencode({"fieldManager": manager, "force": str(force).lower()})
        return self._call("PATCH", f"{path}/status?{query}", body, content=APPLY)

    def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        """See ``Api``."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        try:
            self._call(
                "DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
            )
        except ApiError as error:
            if error.code != 404:
                raise

    def watch(self, path: str, query: Mapping[str, str], seconds: int) -> Iterator[WatchEvent]:
        """See ``Api``. Has a connection of its own; closing the iterator closes it."""
        full = f"{path}?{urlencode({**query, 'watch': 'true', 'timeoutSeconds': str(seconds)})}"
        connection = self._connect(timeout=seconds + 15.0)
        try:
            try:
                connection.request("GET", self._prefix + full, headers=self._headers())
                response = connection.getresponse()
                if response.status != 200:
                    raise _error(response.status, response.read())
                while line := response.readline():
                    event = decode(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(
                            status.get("code", 0), status.get("reason", ""), status.get("message", "")
                        )
                    yield WatchEvent(event["type"], event["object"])
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ApiError(0, "", f"watch of {path} broke: {error}") from error
        finally:
            connection.close()

    def date(self) -> str:
        """The header ``Date`` of an answer: the API server's clock. Raises ApiError."""
        connection = self._connect(self._timeout)
        try:
            connection.request("GET", f"{self._prefix}/version", headers=self._headers())
            return connection.getresponse().getheader("Date") or ""
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, "", f"no answer from the API server: {error}") from error
        finally:
            connection.close()

    def _call(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        timeout: float | None = None,
        content: str = "application/json",
    ) -> JsonObject:
        data = None if body is None else json.dumps(body).encode()
        seconds = self._timeout if timeout is None else max(0.1, min(timeout, self._timeout))
        for attempt in (1, 2):
            connection, fresh = self._take(seconds)
            sent = False
            try:
                connection.request(method, self._prefix + path, data, self._headers(content))
                sent = True
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A kept connection that the server closed meanwhile fails before any answer byte. Repeating a
                # read is safe; a write is repeated only when it was not sent, for it might have been applied.
                repeatable = method == "GET" or not sent
                if attempt == 1 and not fresh and repeatable and not isinstance(error, TimeoutError):
                    continue
                raise ApiError(0, "", f"{method} {path}: no answer from the API server: {error}") from error
            if response.will_close:
                connection.close()
            else:
                self._idle.append((connection, time.monotonic()))
            if response.status >= 300:
                raise _error(response.status, answer)
            try:
                result: JsonObject = decode(answer) if answer else {}
            except ValueError as error:
                raise ApiError(0, "", f"{method} {path}: the answer is not JSON: {error}") from error
            return result
        raise AssertionError("unreachable")

    def _take(self, seconds: float) -> tuple[http.client.HTTPConnection, bool]:
        """A kept connection, the one used last, or a fresh one (and which of them it is)."""
        while self._idle:
            try:
                connection, used = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if time.monotonic() - used <= IDLE_LIMIT and connection.sock is not None:
                connection.sock.settimeout(seconds)
                return connection, False
            connection.close()
        return self._connect(seconds), True

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._credentials.tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return _TlsConnection(
            self._host, self._port, timeout, self._credentials.tls, self._credentials.server_name
        )

    def _headers(self, content: str = "application/json") -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Content-Type": content,
            "User-Agent": self._user_agent,
        }
        token = self._credentials.bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _error(code: int, body: bytes) -> ApiError:
    try:
        status = json.loads(body)
        return ApiError(code, str(status.get("reason", "")), str(status.get("message", "")))
    except (ValueError, AttributeError):
        return ApiError(code, "", body[:200].decode(errors="replace"))
