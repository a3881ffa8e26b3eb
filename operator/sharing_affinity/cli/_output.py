"""Printing: JSON and YAML for programs, tables for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml"),
        default="table",
        help="output form (default: %(default)s)",
    )


def as_text(content: Any, form: str, one_line: bool = False) -> str:
    """JSON (perhaps on one line) or YAML, the same bytes for the same content."""
    if form == "json":
        return json.dumps(content, indent=None if one_line else 2, ensure_ascii=False) + "\n"
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One table on standard output; without a terminal plain columns, one line a row, whatever its length."""
    listed = [tuple(row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in (columns, *listed)) for i in range(len(columns))]
        if title:
            print(title)
        for row in (columns, *listed):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print()
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in listed:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)
