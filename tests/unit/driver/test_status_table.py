"""``affinity-driver status`` for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from affinity_driver import status
from affinity_driver.hardware import MockDevices


def test_values_are_one_line_whatever_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the users' own: no escape sequence of theirs reaches the terminal of who looks."""
    hardware = MockDevices(tmp_path / "hardware", "boot")
    values = {"subnet": "x\x1b[2J\ny"}
    hardware.program("eth1", values)
    assert status.show(tmp_path, "table", hardware) == 0
    out = capsys.readouterr().out
    assert "subnet=x\\u001b[2J\\u000ay" in out
    assert "\x1b" not in out
    assert status.show(tmp_path, "json", hardware) == 0
    assert json.loads(capsys.readouterr().out)["hardware"]["eth1"]["programmed"] == values
