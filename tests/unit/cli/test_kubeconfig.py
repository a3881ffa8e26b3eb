"""Commands that ask a cluster, given kubeconfigs that are unusual or broken: never a traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharing_affinity.cli import main
from sharing_affinity.runtime.client import AccessError, Login

JSON = dict[str, Any]
CONTEXT = {"cluster": "c", "user": "u", "namespace": "team"}


def kubeconfig(folder: Path, **changed: Any) -> str:
    content: JSON = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        # Nobody listens there.
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": CONTEXT}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({**content, **changed}))
    return str(path)


def namespace(path: str, context: str | None = None) -> str:
    return asyncio.run(Login(path, context).namespace())


def test_a_named_context_needs_no_current_one(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, **{"current-context": ""})
    assert namespace(path, "a") == "team"
    with pytest.raises(AccessError, match="no usable credentials"):
        namespace(path)


def test_the_namespace_is_the_context_s_own(tmp_path: Path) -> None:
    contexts = [
        {"name": "a", "context": CONTEXT},
        {"name": "b", "context": {**CONTEXT, "namespace": "other"}},
        {"name": "c", "context": {"cluster": "c", "user": "u"}},
    ]
    path = kubeconfig(tmp_path, contexts=contexts)
    assert [namespace(path, name) for name in (None, "b", "c")] == ["team", "other", "default"]


@pytest.mark.parametrize(
    "changed",
    [
        {"users": []},
        {"users": [{"name": "u", "user": {"client-certificate-data": "!", "client-key-data": "!"}}]},
        {"contexts": [{"name": "a", "context": {"cluster": "c"}}]},
        {"contexts": [{"name": "a"}]},
        {"clusters": [{"name": "c"}]},
        {"clusters": ["c"]},
        {"contexts": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["locks"], ["explain", "pod", "p"], ["cleanup"]], ids=lambda c: c[0])
def test_an_incomplete_one_is_no_access(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], changed: JSON
) -> None:
    assert main([*command, "--kubeconfig", kubeconfig(tmp_path, **changed)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sharing-affinity {command[0]}: ")


@pytest.mark.parametrize("content", [b"", b"- a\n", b"a: [\n", b"\xff\xfe"], ids=str)
def test_what_is_no_kubeconfig_is_no_access(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    assert main(["locks", "--kubeconfig", str(path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
