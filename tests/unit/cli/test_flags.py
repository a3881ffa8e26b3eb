"""Flags of the processes that can make no sense are refused at once, with exit code 2."""

from __future__ import annotations

import pytest

from sharing_affinity.cli import make_parser


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--kube-api-qps", "0"],
        ["run", "--kube-api-qps", "nan"],
        ["run", "--kube-api-burst", "0"],
        ["run", "--concurrency", "-1"],
        ["run", "--write-timeout", "0"],
        ["run", "--http", "127.0.0.1:x"],
        ["run", "--http", "0.0.0.0:70000"],
        ["webhook", "--listen", "127.0.0.1:https"],
        ["webhook", "--http", "localhost"],
        ["webhook", "--certificate-lifetime", "-1"],
    ],
    ids=" ".join,
)
def test_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser()[0].parse_args(argv)
    assert ended.value.code == 2
    assert f"argument {argv[1]}: " in capsys.readouterr().err


@pytest.mark.parametrize("http", ["", "0.0.0.0:8080", "[::1]:8080", ":0", "8080"])
def test_addresses(http: str) -> None:
    assert make_parser()[0].parse_args(["run", "--http", http]).http == http
