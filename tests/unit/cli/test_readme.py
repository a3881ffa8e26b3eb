"""What README shows is what the command prints; what the examples say to run can be run.

In README a line of three dots stands for any lines, three dots at the end of a line for the rest of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharing_affinity.cli import main

ROOT = Path(__file__).parents[3]
PROMPT = "$ sharing-affinity "


def shown() -> Iterator[tuple[str, list[str]]]:
    """Commands and the output that follows them."""
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for part in block.split("$ ")[1:]:
            line, *output = part.rstrip("\n").split("\n")
            if line.startswith(PROMPT.removeprefix("$ ")):
                yield line.removeprefix(PROMPT.removeprefix("$ ")), output


def suggested() -> Iterator[str]:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        yield from re.findall(r"^#\s+sharing-affinity (.*)$", path.read_text(), re.MULTILINE)


def is_like(output: list[str], expected: list[str]) -> bool:
    if not expected:
        return not any(output)
    if expected[0] == "...":
        return any(is_like(output[skipped:], expected[1:]) for skipped in range(len(output) + 1))
    if not output:
        return False
    head, dots, _ = expected[0].partition("...")
    same = output[0].startswith(head) if dots else output[0] == expected[0]
    return same and is_like(output[1:], expected[1:])


def test_readme_shows_commands() -> None:
    assert {command.split()[0] for command, _ in shown()} >= {"simulate", "explain"}


@pytest.mark.parametrize(("command", "expected"), list(shown()), ids=lambda value: str(value)[:40])
def test_readme_shows_what_is_printed(
    command: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) in (0, 1)
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    assert is_like([line.rstrip() for line in printed], expected), "\n".join(printed)


@pytest.mark.parametrize("command", list(suggested()))
def test_examples_can_be_tried_as_they_say(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) in (0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [["a", "c"], ["a"], ["a", "b", "c"], ["...", "a"], ["ab..."]])
def test_the_comparison_can_fail(wrong: list[str]) -> None:
    assert is_like(["a", "b"], ["a", "..."])
    assert not is_like(["a", "b"], wrong)
