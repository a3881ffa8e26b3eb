"""Every listed mistake is noticed: the tests named for it fail once it is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS: list[dict[str, Any]] = [
    mutant
    for listed in sorted(Path(__file__).parent.glob("*.toml"))
    for mutant in tomllib.loads(listed.read_text())["mutant"]
]

parametrized = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"].replace(" ", "-"))


@parametrized
def test_edit_applies_once_and_its_tests_exist(mutant: dict[str, Any]) -> None:
    source = (ROOT / "operator" / "sharing_affinity" / mutant["file"]).read_text()
    assert source.count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]
    assert all((ROOT / test).is_file() for test in mutant["tests"])


@pytest.mark.long
@parametrized
def test_mutant_is_caught(mutant: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "operator", tmp_path / "operator", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "operator" / "sharing_affinity" / mutant["file"]
    target.write_text(target.read_text().replace(mutant["old"], mutant["new"]))
    # Ahead of the installed packages on the path. Examples that once failed must not be found again.
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "operator"), "ALLOCATE_SCENARIOS": "900", "CI": "true"}
    env.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--no-header",
            "-p",
            "no:cacheprovider",
            *mutant["tests"],
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, f"nothing failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
