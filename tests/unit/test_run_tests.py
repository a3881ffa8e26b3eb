"""The runner behind `make test`: what it counts, when it fails, and that it stops what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Outcome, Stage

TESTS = Path(__file__).parents[1]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository: the skip policy, no clusters."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p harness.policy\nmarkers =\n    unit: x\n    e2e: x\n"
    )
    (tmp_path / "tests" / "skips.toml").write_text('[[empty]]\nstage = "later"\nreason = "not yet"\n')
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "results")
    return tmp_path


def stage(name: str = "unit", budget: float = 1) -> Stage:
    return Stage(name, "not e2e", budget, cluster=False)


def write(tree: Path, text: str) -> None:
    (tree / "tests" / "test_it.py").write_text("import pytest, time\n" + text)


def test_a_stage_counts_what_pytest_did(tree: Path) -> None:
    write(
        tree,
        "def test_a(): pass\n"
        "def test_b(): assert False\n"
        "@pytest.mark.skip(reason='[nodes] needs nodes')\ndef test_c(): pass\n"
        "@pytest.fixture\ndef broken():\n    yield\n    assert False\n"
        "def test_d(broken): pass\n",
    )
    outcome = run_tests.run(stage(), [])
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert outcome.tests["tests/test_it.py::test_d"] == "failed"  # its teardown did
    assert dict(outcome.skips) == {"[nodes] needs nodes": 1}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import there_is_no_such_module\n", ""),
        ("def test_a():\n    import os\n    os._exit(0)\n", "exit code 0 in the middle"),
        ("def test_a():\n    import os\n    os._exit(7)\n", "exit code 7"),
    ],
    ids=["does not import", "ends with 0", "crashes"],
)
def test_a_stage_that_does_not_get_through_fails(tree: Path, text: str, note: str) -> None:
    write(tree, text)
    outcome = run_tests.run(stage(), [])
    assert outcome.failed == 1
    assert note in outcome.note


def test_an_empty_stage_fails_unless_declared(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tree, "")
    assert run_tests.run(stage(), []).failed == 1
    declared = run_tests.run(stage("later"), [])
    assert (declared.failed, declared.note) == (0, "no tests: not yet")
    assert run_tests.run(stage(), ["-k", "nothing"]).failed == 0  # somebody asked for it
    monkeypatch.setenv("CI", "")
    assert run_tests.run(stage(), []).failed == 0


def test_a_stage_far_over_its_budget_is_stopped_and_cleans_up(tree: Path) -> None:
    write(
        tree,
        "@pytest.fixture\ndef cluster():\n    yield\n    open('cleaned', 'w').close()\n"
        "def test_a(cluster): time.sleep(60)\n",
    )
    # Seconds enough for pytest to start on a busy machine; what is stopped before has nothing to clean up.
    outcome = run_tests.run(stage(budget=15 / 60 / run_tests.PATIENCE), [])
    assert outcome.failed >= 1
    assert "over its budget" in outcome.note
    assert (tree / "cleaned").exists()


def test_termination_reaches_pytest(tree: Path) -> None:
    """As a CI job's cancellation does: one process is told, and all of them have to go, in order."""
    write(
        tree,
        "@pytest.fixture\ndef cluster():\n    open('up', 'w').close()\n    yield\n"
        "    open('cleaned', 'w').close()\n"
        "def test_a(cluster): time.sleep(60)\n",
    )
    code = (
        "import sys, pathlib; from tools import run_tests as r; sys.argv[1:] = ['--stages', 'unit'];"
        f"r.ROOT = pathlib.Path({str(tree)!r}); r.RESULTS = r.ROOT / 'results'; sys.exit(r.main())"
    )
    env = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tree / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert (tree / "cleaned").exists()


def test_a_failure_anywhere_decides(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Outcome("a", 8, passed=3, skipped=1), Outcome("b", 8, passed=1, failed=1)
    assert run_tests.report([good], [], whole=False) == 0
    assert run_tests.report([good, bad], ["c: no disk"], whole=False) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "  c: no disk" in printed
    assert printed[-1] == "4 passed, 1 failed, 1 skipped"


def test_nothing_run_is_no_success_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert run_tests.report([Outcome("a", 8)], [], whole=False) == 1
    monkeypatch.setenv("CI", "")
    assert run_tests.report([Outcome("a", 8)], [], whole=False) == 0


def test_test_plan_is_held_against_what_ran(tree: Path) -> None:
    (tree / "tests" / "kep").mkdir()
    (tree / "tests" / "kep" / "items.toml").write_text(
        'finished = ["api"]\n'
        '[[item]]\nid = "i-passed"\narea = "api"\ntests = ["t.py::a"]\n'
        '[[item]]\nid = "i-skipped"\narea = "api"\ntests = ["t.py::b"]\n'
        '[[item]]\nid = "i-absent"\narea = "api"\ntests = ["t.py::c"]\n'
        '[[item]]\nid = "i-partly"\narea = "api"\ntests = ["t.py::d"]\n'
        '[[item]]\nid = "i-later"\narea = "engine"\ntests = ["t.py::e"]\n'
    )
    outcome = Outcome("unit", 8)
    outcome.tests = {
        "t.py::a[1]": "passed",
        "t.py::a[2]": "passed",
        "t.py::b": "skipped",
        "t.py::d[1]": "passed",
        "t.py::d[2]": "failed",
    }
    assert run_tests.test_map([outcome]) == [
        "i-skipped: t.py::b skipped",
        "i-absent: t.py::c not run",
        "i-partly: t.py::d failed/passed",
    ]


def test_stages_are_disjoint_and_picked_by_name() -> None:
    assert run_tests.pick("") == list(run_tests.STAGES)
    assert run_tests.pick("none") == []
    assert [s.name for s in run_tests.pick("e2e, unit")] == ["e2e", "unit"]
    with pytest.raises(SystemExit, match="no such stage: x"):
        run_tests.pick("x")
    for markers in ([], ["integration"], ["e2e"], ["integration", "e2e"], ["faults", "e2e"], ["e2e", "long"]):
        names = {name: name in markers for name in ("integration", "e2e", "faults", "differential", "long")}
        hits = [s.name for s in (*run_tests.STAGES, run_tests.LONG) if eval(s.markers, {}, dict(names))]  # noqa: S307
        assert len(hits) == 1, (markers, hits)
