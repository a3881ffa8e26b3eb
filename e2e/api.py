"""A small synchronous client of the Kubernetes API for the cluster tool and for tests. Standard library only.

One connection is kept per thread: a TLS handshake costs more than most requests.
"""

import base64
import contextlib
import http.client
import json
import os
import ssl
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.errors import ApiError, ClusterError

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

AUTHORITY = ("certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify")


class ApiClient:
    """Talks to one API server as the user of one kubeconfig (client certificate or token, given by file or
    inline).
    """

    def __init__(self, kubeconfig: Path, timeout: float = 15) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
        self.url: str = cluster["server"]
        self._timeout = timeout
        self._token = _token(user)
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme != "https" or parts.hostname is None:
            raise ClusterError(f"{kubeconfig}: server {self.url} is not an https address")
        self._host = parts.hostname
        self._port = parts.port or 443
        self.authority: dict[str, str] = {key: cluster[key] for key in AUTHORITY if key in cluster}
        self._tls = _trust(cluster)
        _identify(self._tls, user)
        self._threads = threading.local()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Any:
        """One call; `path` starts with `/`. Returns decoded JSON, or text where the server answers with text.

        Raises `ApiError` for a status of 400 or more and `OSError` when there is no answer.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        # Compact, as Go clients write it: opaque parameters are stored byte for byte, and no later
        # PATCH of the object works when they hold spaces between tokens (the server's own JSON round
        # trip removes them).
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        status, kind, content = self._send(method, path, data, headers, timeout or self._timeout)
        answer = json.loads(content) if kind.startswith("application/json") else content.decode()
        if status >= 400:
            problem = answer if isinstance(answer, dict) else {}
            reason = problem.get("reason") or http.client.responses.get(status, "")
            raise ApiError(status, reason, problem.get("message") or str(answer), f"{method} {path}")
        return answer

    def apply(self, obj: dict[str, Any], manager: str = "dra-e2e") -> dict[str, Any]:
        """Server-side apply of one object of any kind the server knows; conflicts are overridden."""
        path = f"{self.resource_path(obj)}?fieldManager={manager}&force=true"
        result: dict[str, Any] = self.request("PATCH", path, obj, content_type=APPLY_PATCH)
        return result

    def resource_path(self, obj: dict[str, Any]) -> str:
        """The path of an object by its apiVersion, kind, namespace and name (asks the server for the
        resource name).
        """
        version, kind, metadata = obj["apiVersion"], obj["kind"], obj["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = self.request("GET", root)["resources"]
        found = next((r for r in resources if r["kind"] == kind and "/" not in r["name"]), None)
        if found is None:
            raise ClusterError(f"the server has no {kind} in {version}")
        inside = f"/namespaces/{metadata.get('namespace', 'default')}" if found["namespaced"] else ""
        return f"{root}{inside}/{found['name']}/{metadata['name']}"

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], timeout: float
    ) -> tuple[int, str, bytes]:
        kept: http.client.HTTPSConnection | None = getattr(self._threads, "connection", None)
        if kept is not None and kept.sock is not None and method == "GET":
            # The server may have closed the kept connection; only a GET may be tried twice.
            with contextlib.suppress(http.client.HTTPException, OSError):
                return self._exchange(kept, method, path, data, headers, timeout)
        if kept is not None:
            kept.close()
        fresh = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        self._threads.connection = fresh
        try:
            return self._exchange(fresh, method, path, data, headers, timeout)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error

    @staticmethod
    def _exchange(
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
        timeout: float,
    ) -> tuple[int, str, bytes]:
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.headers.get("Content-Type", ""), response.read()
        except BaseException:
            connection.close()
            raise


def _trust(cluster: Mapping[str, Any]) -> ssl.SSLContext:
    if "certificate-authority-data" in cluster:
        return ssl.create_default_context(cadata=_inline(cluster["certificate-authority-data"]))
    context = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _identify(tls: ssl.SSLContext, user: Mapping[str, Any]) -> None:
    if "client-certificate" in user:
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
    elif "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile(
            "w"
        ) as both:  # the ssl module reads files only; this one is ours alone
            both.write(_inline(user["client-certificate-data"]) + "\n" + _inline(user["client-key-data"]))
            both.flush()
            tls.load_cert_chain(both.name)


def _token(user: Mapping[str, Any]) -> str | None:
    if "token" in user:
        return str(user["token"])
    if "tokenFile" in user:
        return Path(user["tokenFile"]).read_text().strip()
    if "exec" in user:
        plugin = user["exec"]
        extra = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
        command = [plugin["command"], *(plugin.get("args") or [])]
        run = subprocess.run(
            command, env={**os.environ, **extra}, capture_output=True, text=True, timeout=60, check=False
        )
        if run.returncode:
            raise ClusterError(f"{' '.join(command)}: {run.stderr.strip()}")
        token = json.loads(run.stdout)["status"].get("token")
        return None if token is None else str(token)
    return None


def _inline(data: str) -> str:
    return base64.b64decode(data).decode()
