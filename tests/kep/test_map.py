"""Every item of the KEP's test plan has an owner, and in finished areas tests that exist.

That they pass is not judged here: `make test` runs them in whatever stage they belong to and compares at
its end (`tools/run_tests.py`), since no single pytest process sees all of them.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLAN: dict[str, Any] = tomllib.loads((Path(__file__).parent / "items.toml").read_text())
ITEMS: list[dict[str, Any]] = PLAN["item"]
AREAS = {"api", "engine", "driver", "runtime", "e2e"}
# Bullets under each heading of the KEP's test plan.
NUMBERS = {"prerequisite": 1, "unit": 17, "api": 5, "integration": 23, "e2e": 5}

claimed = pytest.mark.parametrize(
    "item", [item for item in ITEMS if item["tests"]], ids=lambda item: item["id"]
)
finished = pytest.mark.parametrize(
    "item", [item for item in ITEMS if item["area"] in PLAN["finished"]], ids=lambda item: item["id"]
)


def test_every_item_of_the_plan_is_listed() -> None:
    assert Counter(item["section"] for item in ITEMS) == NUMBERS
    assert len({item["id"] for item in ITEMS}) == len(ITEMS)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["id"])
def test_item_says_what_to_expect_and_who_answers(item: dict[str, Any]) -> None:
    assert item["id"].startswith(item["section"] + "-")
    assert item["area"] in AREAS
    for field in ("text", "expected"):
        assert item[field].endswith("."), field
    assert set(item) - {"differs"} == {"id", "section", "text", "expected", "area", "tests"}
    assert "differs" not in item or item["differs"].endswith(".")


def test_finished_areas_exist() -> None:
    assert set(PLAN["finished"]) <= AREAS


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """All test ids in the files that the plan names, without parameters."""
    files = sorted({name.partition("::")[0] for item in ITEMS for name in item["tests"]})
    missing = [name for name in files if not (ROOT / name).is_file()]
    assert not missing, f"items.toml names files that are not there: {missing}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


@claimed
def test_named_tests_exist(item: dict[str, Any], collected: set[str]) -> None:
    """Also in areas that are not finished: a renamed test must not leave the plan behind."""
    missing = [name for name in item["tests"] if name.partition("[")[0] not in collected]
    assert not missing


@finished
def test_item_of_a_finished_area_has_tests(item: dict[str, Any]) -> None:
    assert item["tests"], f"{item['id']}: area {item['area']} is finished, but no test answers for the item"
