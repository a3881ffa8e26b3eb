"""Pages with files and commands in them, run as a reader would.

A fenced block with a title is a file; a `console` block holds commands (`$ ...`), each with what it prints.
In expected output `...` stands for anything, on a line of its own for any number of lines; blanks are not
counted, and what follows the last expected line is left out. Outputs settle, so a command is repeated until
it prints what the page says. `<!-- driver: PROFILE FLAGS -->` says what has to be installed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$"
    r"|^<!-- driver: (?P<driver>[^>]*) -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class File:
    """A file that the reader has, by its name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Driver:
    """The mock driver that has to run: its profile, then flags."""

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One command with the output the page shows, line by line."""

    argv: tuple[str, ...]
    expected: tuple[str, ...]


Step = File | Driver | Command


def steps(page: str) -> Iterator[Step]:
    """What a page says to do, in order."""
    for block in BLOCK.finditer(page):
        if block["driver"]:
            yield Driver(tuple(block["driver"].split()))
        elif block["title"]:
            yield File(block["title"], re.sub(r" # \(\d+\)!$", "", block["text"], flags=re.MULTILINE))
        elif block["language"] == "console":
            yield from _commands(block["text"].splitlines())


def _commands(lines: Sequence[str]) -> Iterator[Command]:
    argv: tuple[str, ...] | None = None
    expected: list[str] = []
    for line in (*lines, "$"):
        if not line.startswith("$"):
            expected.append(line)
            continue
        if argv is not None:
            yield Command(argv, tuple(expected))
        argv, expected = tuple(shlex.split(line[1:])), []


def difference(expected: Sequence[str], printed: str) -> str:
    """Empty when the output is as expected, else the first line that cannot follow those before it."""
    text = "".join(f"{' '.join(line.split())}\n" for line in printed.splitlines() if line.strip())
    pattern = ""
    for wanted in filter(None, (" ".join(line.split()) for line in expected)):
        if wanted == "...":
            pattern += r"(?:[^\n]*\n)*?"
            continue
        pattern += re.escape(wanted).replace(r"\.\.\.", r"[^\n]*") + r"\n"
        if not re.match(pattern, text):
            return wanted
    return ""
