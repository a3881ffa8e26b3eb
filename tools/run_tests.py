"""`make test`: everything this machine can run, stage by stage, against a time budget.

Each stage is one pytest process with a marker expression, so that a hang or a crash of one leaves the
others. The cluster binaries are built in the background, at low priority, while the tests run that need no
cluster. At the end stand a table of times against budgets, all that was left out with the reason, and one
line that counts.

The stages share nothing but the machine: each starts and stops its own cluster.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".cache" / "results"
BUILD_LOG = ROOT / ".cache" / "build.log"


@dataclass(frozen=True, slots=True)
class Stage:
    """One pytest process. `budget` in minutes, warm, on two cores."""

    name: str
    markers: str
    budget: float
    cluster: bool
    paths: tuple[str, ...] = ("tests",)


STAGES = (
    Stage("unit", "not (integration or e2e or faults or differential or long)", 8, False),
    Stage("differential", "differential and not long", 8, False),
    Stage("integration", "integration and not (e2e or faults or differential or long)", 10, True),
    Stage("e2e", "e2e and not (faults or long)", 14, True),
    Stage("faults", "faults and not long", 10, True),
)
LONG = Stage("long", "long", 120, True)
# How much longer than its budget a stage may take before it is stopped; a first build happens elsewhere.
PATIENCE = 2.0

LINT = (
    ("ruff check", ["-m", "ruff", "check", "."]),
    ("ruff format", ["-m", "ruff", "format", "--check", "."]),
    ("mypy", ["-m", "mypy"]),
    ("layers", ["-c", "from importlinter.cli import lint_imports_command as run; run()"]),
)


@dataclass(slots=True)
class Outcome:
    """What one stage did."""

    name: str
    budget: float
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    tests: dict[str, str] = field(default_factory=dict)
    note: str = ""


class Terminated(BaseException):
    """SIGTERM or SIGHUP: unlike a terminal's Ctrl-C it did not reach the children."""


def terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def strict() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1", "yes")


def say(text: str = "") -> None:
    print(text, flush=True)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# -------------------- lint


def lint() -> Outcome:
    """ruff, mypy and import-linter; their output only where they object."""
    outcome = Outcome("lint", 2)
    started = time.monotonic()
    for name, arguments in LINT:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
        )
        good = done.returncode == 0
        outcome.passed += good
        outcome.failed += not good
        say(f"lint: {name}: {'ok' if good else 'FAILED'}")
        if not good:
            say(done.stdout.rstrip())
    outcome.seconds = time.monotonic() - started
    return outcome


# -------------------- the background build


class Build:
    """`python -m e2e build`, both versions, in the background; it has to be waited for and stopped."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.reason = ""
        if importlib.util.find_spec("e2e.__main__") is None:
            self.reason = "the cluster tool (python -m e2e) is not part of this tree"
            return
        BUILD_LOG.parent.mkdir(exist_ok=True)
        with BUILD_LOG.open("wb") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "10", sys.executable, "-m", "e2e", "build", "--kubernetes", "all"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        say(f"building cluster binaries in the background, log: {BUILD_LOG.relative_to(ROOT)}")

    def wait(self) -> str:
        """Empty when the binaries are there, else why not. Shows the build's last line while it waits."""
        if self.process is None:
            return self.reason
        shown = ""
        while self.process.poll() is None:
            line = last_line(BUILD_LOG)
            if line != shown:
                say(f"waiting for the cluster binaries: {line}")
                shown = line
            time.sleep(0.2 if not shown else 10)
        if self.process.returncode:
            say("".join(f"    {line}\n" for line in tail(BUILD_LOG, 15)))
            return f"building the cluster binaries failed with exit code {self.process.returncode}"
        return ""

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)


def tail(path: Path, lines: int) -> list[str]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-lines:]


def last_line(path: Path) -> str:
    return (tail(path, 1) or ["starting"])[0][:100]


# -------------------- one stage


def run(stage: Stage, arguments: Sequence[str], build: Build | None = None) -> Outcome:
    """Run one stage to its end, or stop it when it takes far too long; `build` is stopped with it."""
    outcome = Outcome(stage.name, stage.budget)
    results = RESULTS / f"{stage.name}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "faulthandler_timeout=600"]
    command += [f"--results={results}", "-m", stage.markers, *stage.paths, *arguments]
    say(f"\n=== {stage.name} (budget {stage.budget:g} min)")
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    stopped = False
    try:
        code = process.wait(stage.budget * 60 * PATIENCE)
    except subprocess.TimeoutExpired:
        stopped = True
        code = stop(process)
    except (KeyboardInterrupt, Terminated) as interruption:
        if build is not None:
            build.stop()
        stop(process, signalled=isinstance(interruption, KeyboardInterrupt))
        raise
    outcome.seconds = time.monotonic() - started
    ended = count(outcome, results)
    if stopped:
        outcome.failed += 1
        outcome.note = f"stopped after {clock(outcome.seconds)}, far over its budget"
    elif code == 5:
        judge_empty(outcome, arguments)
    elif not ended or code not in (0, 1, 2) or (code and not outcome.failed):
        outcome.failed += 1
        outcome.note = f"pytest ended with exit code {code}" + ("" if ended else " in the middle")
    elif outcome.tests and outcome.name in empty_stages():
        outcome.note = "has tests: take its [[empty]] out of tests/skips.toml"
    return outcome


def stop(process: subprocess.Popen[bytes], signalled: bool = False) -> int:
    """Interrupt, then terminate, then kill: pytest gets time to take its clusters down.

    `signalled`: the terminal's Ctrl-C has already reached it.
    """
    for number, patience in ((signal.SIGINT, 90), (signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        if not (signalled and number is signal.SIGINT):
            process.send_signal(number)
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            continue
    return -1


def count(outcome: Outcome, results: Path) -> bool:
    """Fold the results file into the outcome. A test that failed in any phase has failed, once.

    False when pytest did not come to its end, whatever its exit code was.
    """
    ended = False
    if not results.exists():
        return ended
    seconds: dict[str, float] = {}
    for line in results.read_text().splitlines():
        entry = json.loads(line)
        if "end" in entry:
            ended = True
            continue
        name, state = entry["id"], entry["outcome"]
        seconds[name] = seconds.get(name, 0.0) + entry["seconds"]
        if outcome.tests.get(name) != "failed":
            outcome.tests[name] = state
        if state == "skipped":
            outcome.skips[entry["reason"]] += 1
    states = Counter(outcome.tests.values())
    outcome.passed, outcome.failed, outcome.skipped = states["passed"], states["failed"], states["skipped"]
    outcome.slowest = sorted(((s, name) for name, s in seconds.items()), reverse=True)[:5]
    return ended


def judge_empty(outcome: Outcome, arguments: Sequence[str]) -> None:
    """A stage without tests is a failure in CI unless skips.toml says why it is empty."""
    if arguments:
        outcome.note = "no test matches"
        return
    reasons = empty_stages()
    if outcome.name in reasons:
        outcome.note = f"no tests: {reasons[outcome.name]}"
    else:
        outcome.note = "no tests, and tests/skips.toml does not say why"
        outcome.failed += strict()


def empty_stages() -> dict[str, str]:
    """Stages that skips.toml declares to have no tests yet, with the reason."""
    declarations = tomllib.loads((ROOT / "tests" / "skips.toml").read_text())
    return {entry["stage"]: entry["reason"] for entry in declarations.get("empty", [])}


# -------------------- the end


def test_map(outcomes: Sequence[Outcome]) -> list[str]:
    """Items of the KEP's test plan in finished areas whose test did not pass in this run."""
    path = ROOT / "tests" / "kep" / "items.toml"
    if not path.exists():
        return []
    plan = tomllib.loads(path.read_text())
    states: dict[str, list[str]] = {}
    for outcome in outcomes:
        for name, state in outcome.tests.items():
            states.setdefault(name.partition("[")[0], []).append(state)
    findings = []
    for item in plan.get("item", []):
        if item["area"] in plan.get("finished", []):
            for name in item.get("tests", []):
                seen = states.get(name.partition("[")[0], ["not run"])
                if set(seen) != {"passed"}:
                    findings.append(f"{item['id']}: {name} {'/'.join(sorted(set(seen)))}")
    return findings


def report(outcomes: Sequence[Outcome], left_out: Sequence[str], whole: bool) -> int:
    """Print table, omissions and the counting line; the exit code."""
    say("\nstage         passed  failed  skipped     time  budget")
    for o in outcomes:
        over = "  over budget" if o.seconds > o.budget * 60 else ""
        say(
            f"{o.name:13} {o.passed:6}  {o.failed:6}  {o.skipped:7}  {clock(o.seconds):>7}  "
            f"{clock(o.budget * 60):>6}{over}{'  ' + o.note if o.note else ''}"
        )
        if over:
            for seconds, name in o.slowest:
                say(f"    {seconds:7.1f} s  {name}")
    failed = sum(o.failed for o in outcomes)
    omissions = list(left_out)
    for o in outcomes:
        omissions += [f"{o.name}: {number} x {reason}" for reason, number in sorted(o.skips.items())]
    if whole:
        unproven = test_map(outcomes)
        for line in unproven:
            say(f"test plan: {line}")
        if strict():
            failed += len(unproven)
        omissions.append("tests over the time budget: make test-long")
    if omissions:
        say("\nleft out:")
        for line in omissions:
            say(f"  {line}")
    passed, skipped = sum(o.passed for o in outcomes), sum(o.skipped for o in outcomes)
    say(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    if strict() and passed == 0:
        return 1
    return 1 if failed else 0


def pick(names: str) -> list[Stage]:
    """The stages named in `names` (blanks or commas between them); all but `long` when empty."""
    if names.strip() == "none":
        return []
    wanted = names.replace(",", " ").split()
    known = {stage.name: stage for stage in (*STAGES, LONG)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no such stage: {' '.join(unknown)}; there are {' '.join(known)}")
    return [known[name] for name in wanted] or list(STAGES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.run_tests", description=__doc__.splitlines()[0])
    parser.add_argument("--stages", default="", help="which, of " + " ".join(s.name for s in (*STAGES, LONG)))
    parser.add_argument("--lint", action="store_true", help="first ruff, mypy and import-linter")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGS", help="passed on to pytest")
    options = parser.parse_args()
    stages = pick(options.stages)
    whole = stages == list(STAGES) and not options.arguments
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, terminate)
    outcomes: list[Outcome] = []
    left_out: list[str] = []
    build = Build() if any(stage.cluster for stage in stages) else None
    try:
        if options.lint:
            outcomes.append(lint())
        binaries: str | None = None
        for stage in stages:
            if stage.cluster and build is not None:
                if binaries is None:
                    binaries = build.wait()
                    if binaries and build.process is not None:
                        outcomes.append(Outcome("build", 10, failed=1, note=binaries))
                if binaries and build.process is not None:
                    left_out.append(f"{stage.name}: {binaries}")
                    continue
            outcomes.append(run(stage, options.arguments, build))
    except (KeyboardInterrupt, Terminated):
        say("\ninterrupted")
        return 130
    finally:
        if build is not None:
            build.stop()
    return report(outcomes, left_out, whole)


if __name__ == "__main__":
    sys.exit(main())
