"""The skip policy itself, on small suites run by a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import policy

TESTS = Path(__file__).parents[1]

SUITE = """
import pytest

def test_good(): pass

@pytest.mark.skip(reason="no time")
def test_skipped(): pass

@pytest.mark.xfail
def test_expected_to_fail(): assert False

@pytest.mark.xfail
def test_unexpectedly_good(): pass

@pytest.mark.skip(reason="[nodes] declared by hand")
def test_declared(): pass
"""


def run(folder: Path, text: str, ci: str) -> tuple[int, str]:
    """Exit code and output of pytest over one file, with nothing but the policy loaded."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    e2e: x\n    integration: x\n")
    (folder / "test_it.py").write_text(text)
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(TESTS)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "harness.policy",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_ci_fails_undeclared_skips_and_every_xfail(tmp_path: Path) -> None:
    code, output = run(tmp_path, SUITE, "true")
    assert code == 1
    assert "2 failed, 1 passed, 1 skipped, 1 error" in output
    assert "undeclared skip (tests/skips.toml): no time" in output


def test_desk_reports_them_only(tmp_path: Path) -> None:
    code, output = run(tmp_path, SUITE, "")
    assert code == 0
    assert "1 passed, 2 skipped, 1 xfailed, 1 xpassed" in output


def test_ci_fails_a_module_that_skips_itself(tmp_path: Path) -> None:
    code, output = run(tmp_path, "import pytest\npytest.importorskip('there_is_no_such_module')\n", "true")
    assert code != 0
    assert "undeclared skip of" in output


def test_empty_suite_fails(tmp_path: Path) -> None:
    assert run(tmp_path, "", "true")[0] == 5


def test_fixture_marks_and_probe_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip = policy.Skip("x", "needs a moon", "harness.policy:strict", markers=("e2e",), tests=("a/b.py::*",))
    assert skip.covers("c.py::test", ["e2e"])
    assert skip.covers("a/b.py::test", [])
    assert not skip.covers("c.py::test", ["integration"])
    monkeypatch.setenv("CI", "true")
    assert skip.missing() == "True"


def test_declarations_are_complete() -> None:
    skips = policy.declared()
    assert len({skip.name for skip in skips}) == len(skips)
    for skip in skips:
        skip.missing()  # a probe that raises would break every session that has such tests


@pytest.mark.parametrize(
    "text",
    [
        '[[skip]]\nname = "a"\nprobe = "m:f"\nmarkers = ["e2e"]\n',
        '[[skip]]\nname = "a"\nreason = "r"\nmarkers = ["e2e"]\n',
        '[[skip]]\nname = "a"\nreason = "r"\nprobe = "m:f"\n',
        '[[skip]]\nname = "a"\nreason = ""\nprobe = "m:f"\nmarkers = ["e2e"]\n',
    ],
    ids=["no reason", "no probe", "covers nothing", "blank reason"],
)
def test_incomplete_declaration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "skips.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"skips\.toml"):
        policy.declared(path)
