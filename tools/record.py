"""Pictures of real runs for README and site: `python -m tools.record` plays the demo, writes docs/images.

Each picture is what a terminal showed, taken through a pseudo-terminal, colours and all; only the part that
is worth a look is kept. Run it where nodes can run, when what is shown has changed.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH = 160
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
#: Rich names a font on a server; whoever looks at the picture has a monospaced one.
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Picture:
    """A part of a command's output: from the line that contains ``first`` up to that which contains
    ``last``."""

    name: str
    title: str
    first: str = ""
    last: str = ""


DEMO = (
    Picture("demo-problem", "make demo: the problem", "== The problem", "== With sharing affinity"),
    Picture(
        "demo-sharing",
        "make demo: with sharing affinity",
        "Two pods of subnet-a share",
        "kill -9 of the active",
    ),
)


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    played = "".join(lines([sys.executable, "-m", "e2e.demo"])).splitlines()
    if not any("every step went as told" in line for line in played):
        return 1
    write(DEMO, played)
    return 0


def lines(command: Sequence[str]) -> Iterator[str]:
    """What a command writes to a terminal; shown here as well."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        with open(ours, encoding="utf-8", newline="", errors="replace") as terminal:  # noqa: PTH123
            try:
                for line in terminal:
                    print(line, end="", flush=True)
                    yield line.replace("\r\n", "\n")
            except OSError:
                # The other end of a pseudo-terminal is closed like this.
                return


def write(pictures: Sequence[Picture], shown: Sequence[str]) -> None:
    for picture in pictures:
        plain = [ESCAPE.sub("", line) for line in shown]
        start = next(n for n, line in enumerate(plain) if picture.first in line)
        end = next(
            (n for n in range(start + 1, len(plain)) if picture.last and picture.last in plain[n]), len(plain)
        )
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        for line in shown[start:end]:
            console.print(Text.from_ansi(line), soft_wrap=False)
        svg = FONTS.sub("", console.export_svg(title=picture.title, theme=MONOKAI, unique_id=picture.name))
        target = IMAGES / f"{picture.name}.svg"
        target.write_text(svg)
        print(f"{target.relative_to(ROOT)}: {len(svg) // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())
