"""The committed goldens are what cel-go says today; changes since their first edition are listed.

The first edition (376 rows) was made with an unreleased cel-go between v0.28.1 and v0.29.2 and without some
of Kubernetes' libraries; ``cel_golden_differences.json`` lists each row that changed, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from differential import goldens
from harness.oracle import Oracle

pytestmark = pytest.mark.differential


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle("cel") as running:
        yield running


@pytest.mark.parametrize("path", [goldens.GOLDEN, goldens.LIBRARIES], ids=lambda path: path.stem)
def test_goldens_are_what_cel_go_answers(oracle: Oracle, path: Path) -> None:
    golden = goldens.load(path)
    rows = goldens.ask(oracle, golden)
    changed = [(old, new) for old, new in zip(golden["rows"], rows, strict=True) if old != new]
    # A row whose rare order of entries did not come up in one of two runs is not a change.
    changed = [(old, new) for old, new in changed if not (old.get("unstable") or new.get("unstable"))]
    print(Counter((row["env"], row["set"]) for row in rows))
    assert changed == []


def test_goldens_agree_with_upstreams_panics(oracle: Oracle) -> None:
    panics = [row["expression"] for row in goldens.load()["rows"] if row.get("panic")]
    assert all("?" in expression or "b'" in expression or 'b"' in expression for expression in panics), panics


def test_each_difference_from_the_first_edition_is_listed_and_still_true() -> None:
    differences = json.loads((goldens.GOLDEN.parent / "cel_golden_differences.json").read_text())
    rows = {
        (row["set"], row["expression"]): row for row in goldens.load()["rows"] if row["env"] == "admission"
    }
    for difference in differences:
        print(difference["expression"], "-", difference["reason"])
        row = rows[difference["set"], difference["expression"]]
        for key, ours in difference["ours"].items():
            mine = row.get(key)
            if key == "compileError" and mine is not None:
                mine = mine["message"]
            assert mine == ours, difference
            assert mine != difference["given"].get(key), difference
        assert difference["reason"]
