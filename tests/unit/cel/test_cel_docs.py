"""docs/cel.md says what is so: its idioms compile within the budget, what it calls refused is over it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubernetes_cel import Environment
from sharing_affinity.api import names

TEXT = (Path(__file__).parents[3] / "docs" / "cel.md").read_text()
ENVIRONMENT = Environment.admission()
IDIOMS = re.findall(r"```cel\n(.*?)```", TEXT, re.S)
REFUSED = [
    line.split("|")[1:4]
    for line in TEXT.split("### What admission refuses")[1].split("\n## ")[0].splitlines()
    if line.startswith("| `")
]


def expressions(cell: str) -> list[str]:
    """The expressions in a cell of a table, without the mention of single functions and operators."""
    return [code for code in re.findall(r"`([^`]+)`", cell) if code[0] != "." and "..." not in code]


@pytest.mark.parametrize("block", IDIOMS)
def test_idioms_fit_the_budget(block: str) -> None:
    for expression in re.split(r"\n(?=object\.subnet\.find)", block):
        program = ENVIRONMENT.compile(expression, "string")
        assert program.estimate.max <= names.POOL_COST_BUDGET


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0].strip())
def test_refused_expressions_and_their_replacements(row: list[str]) -> None:
    refused, _, instead = row
    assert expressions(refused)
    for expression in expressions(refused):
        assert ENVIRONMENT.compile(expression).estimate.max > names.POOL_COST_BUDGET, expression
    for expression in expressions(instead):
        assert ENVIRONMENT.compile(expression).estimate.max <= names.POOL_COST_BUDGET, expression


def test_there_is_something_to_test() -> None:
    assert len(IDIOMS) >= 6
    assert len(REFUSED) >= 8
