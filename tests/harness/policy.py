"""Which tests may be left out, and a record of what each test did. A pytest plugin.

A suite that skips itself is green and proves nothing. So every skip is declared in `tests/skips.toml` with
a reason and a probe that finds out whether this machine really cannot run the tests. With `CI=true` any
other skip, any xfail and any empty collection is a failure.

Markers follow from where a test stands and what it asks for, so that nobody has to remember them: a folder
named after a marker marks what is in it, and the fixtures of the cluster tool mark the tests that use them.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import tomllib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

DECLARATIONS = Path(__file__).parents[1] / "skips.toml"
FOLDERS = ("integration", "e2e", "faults", "differential", "long")
FIXTURES = {"control_plane": "integration", "control_plane_1_36": "integration", "two_nodes": "e2e"}


@dataclass(frozen=True, slots=True)
class Skip:
    """One `[[skip]]` of skips.toml."""

    name: str
    reason: str
    probe: str
    markers: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def covers(self, nodeid: str, markers: Iterable[str]) -> bool:
        return bool(set(self.markers) & set(markers)) or any(
            fnmatch.fnmatchcase(nodeid, pattern) for pattern in self.tests
        )

    def missing(self) -> str | None:
        """What the probe says is missing here, None when the tests can run."""
        module, _, function = self.probe.partition(":")
        answer = getattr(importlib.import_module(module), function)()
        return None if answer is None else str(answer)


def declared(path: Path = DECLARATIONS) -> list[Skip]:
    """The skips that are allowed; ValueError for an entry that says too little."""
    skips = []
    for entry in tomllib.loads(path.read_text()).get("skip", []):
        try:
            skip = Skip(
                name=entry["name"],
                reason=entry["reason"],
                probe=entry["probe"],
                markers=tuple(entry.get("markers", ())),
                tests=tuple(entry.get("tests", ())),
            )
        except KeyError as missing:
            raise ValueError(f"{path.name}: [[skip]] {entry.get('name', '?')} has no {missing}") from None
        if not skip.reason or ":" not in skip.probe or not (skip.markers or skip.tests):
            raise ValueError(f"{path.name}: [[skip]] {skip.name} needs reason, probe and tests or markers")
        skips.append(skip)
    return skips


def strict() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1", "yes")


@dataclass(eq=False)
class Policy:
    """The plugin; one per pytest session."""

    skips: list[Skip]
    strict: bool
    results: Path | None = None
    answers: dict[str, str | None] = field(default_factory=dict)

    def missing(self, skip: Skip) -> str | None:
        if skip.name not in self.answers:
            self.answers[skip.name] = skip.missing()
        return self.answers[skip.name]

    def is_declared(self, reason: str) -> bool:
        return any(f"[{skip.name}]" in reason for skip in self.skips)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        for item in items:
            mark(item)
        outcome = yield  # -m and -k take their pick; only what is left is worth a probe
        for item in items:
            names = {marker.name for marker in item.iter_markers()}
            for skip in self.skips:
                if skip.covers(item.nodeid, names):
                    missing = self.missing(skip)
                    if missing is not None:
                        reason = f"[{skip.name}] {skip.reason}: {missing}"
                        item.add_marker(pytest.mark.skip(reason=reason))
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        problem = self.judge(report)
        if problem:
            report.outcome = "failed"
            report.longrepr = problem
            report.__dict__.pop("wasxfail", None)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if self.strict and report.skipped and not self.is_declared(str(report.longrepr)):
            report.outcome = "failed"
            report.longrepr = f"undeclared skip of {collector.nodeid} (tests/skips.toml): {report.longrepr}"
        return report

    def judge(self, report: pytest.TestReport) -> str | None:
        """Why a strict run does not accept this report."""
        if not self.strict:
            return None
        if hasattr(report, "wasxfail"):
            return f"xfail is not allowed with CI=true: {report.wasxfail}"
        if report.skipped and not self.is_declared(str(report.longrepr)):
            return f"undeclared skip (tests/skips.toml): {reason_of(report)}"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line per test into the results file: what `make test` counts and the test map looks up."""
        if self.results is None:
            return
        if report.when == "call" or report.outcome != "passed":
            line = {
                "id": report.nodeid,
                "outcome": report.outcome,
                "when": report.when,
                "seconds": round(report.duration, 2),
                "reason": reason_of(report) if report.skipped else "",
            }
            with self.results.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def pytest_sessionfinish(self) -> None:
        """The mark that pytest came to its end; without it the file tells only a part."""
        if self.results is not None:
            with self.results.open("a") as file:
                file.write('{"end": true}\n')

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if self.results is not None and report.failed:
            line = {"id": report.nodeid, "outcome": "failed", "when": "collect", "seconds": 0, "reason": ""}
            with self.results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def reason_of(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", report.longrepr))


def mark(item: pytest.Item) -> None:
    """Add the markers that follow from the test's folder and fixtures."""
    folders = item.path.parts
    for name in FOLDERS:
        if name in folders and "tests" in folders and folders.index(name) > folders.index("tests"):
            item.add_marker(name)
    for fixture, name in FIXTURES.items():
        if fixture in getattr(item, "fixturenames", ()):
            item.add_marker(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", default=None, help="append one JSON line per test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    results = config.getoption("--results")
    policy = Policy(declared(), strict(), Path(results) if results else None)
    config.pluginmanager.register(policy, "sharing-affinity-policy")
