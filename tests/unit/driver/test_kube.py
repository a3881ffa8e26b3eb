"""Access to the API server: what is wrong with it is told as that, whatever it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from affinity_driver import cli
from affinity_driver.kube import ApiError, Credentials, CredentialsError, KubeClient, from_kubeconfig

TLS = {"server": "https://127.0.0.1:1"}
PAIR = {"client-certificate-data": "aGVsbG8="}


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({}, {}, "lacks 'server'"),
        ({"server": None}, {}, "is not understood"),
        ("c", {}, "is not understood"),
        ({**TLS, "certificate-authority": "absent.crt"}, {}, "No such file"),
        ({**TLS, "certificate-authority-data": "a"}, {}, "certificates cannot be used"),
        ({**TLS, "certificate-authority-data": "aGVsbG8="}, {}, "certificates cannot be used"),
        (TLS, {"client-certificate": "absent.crt", "client-key": "absent.key"}, "No such file"),
        (TLS, PAIR, "lacks 'client-key-data'"),
        (TLS, {**PAIR, "client-key-data": "aGVsbG8="}, "certificates cannot be used"),
    ],
)
def test_an_unusable_kubeconfig_is_no_access(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: Any, user: Any, expected: str
) -> None:
    """Exit code 1 of `extractors` would say that the change breaks somebody."""
    path = tmp_path / "kubeconfig"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(content))
    assert cli.main(["extractors", "status", "--driver=d", f"--kubeconfig={path}"]) == 3
    assert expected in capsys.readouterr().err


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CredentialsError, match="not YAML"):
        from_kubeconfig(path)


def test_a_user_without_credentials_is_one(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: null}]}"
    )
    assert from_kubeconfig(path).bearer() is None


@contextmanager
def answering(answer: bytes) -> Iterator[KubeClient]:
    """A client of something that gives this answer to every GET."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield KubeClient(Credentials(f"http://127.0.0.1:{server.server_port}", None))
        server.shutdown()


def test_an_answer_that_is_no_json_is_no_answer() -> None:
    """Something else listens there, a proxy's page for one."""
    with answering(b"<html>") as api, pytest.raises(ApiError, match="not JSON") as refused:
        api.get("/api/v1/nodes/n")
    assert refused.value.code == 0


def test_one_claim_does_not_keep_a_list_from_being_read() -> None:
    """The API server stores parameters of five thousand levels, and bytes that are not UTF-8."""
    deep = b"[" * 5000 + b"]" * 5000
    with answering(
        b'{"items": [{"name": "a"}, {"deep": ' + deep + b', "odd": "\xff"}, {"name": "b"}]}'
    ) as api:
        first, odd, last = api.list("/claims", {})["items"]
    assert (first, odd["odd"], last) == ({"name": "a"}, "\ufffd", {"name": "b"})
