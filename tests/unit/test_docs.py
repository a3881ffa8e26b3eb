"""Documentation that follows the code: every reason, alert and error a person can meet has an entry, no entry
is stale, and the pages build as a site without a complaint."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sharing_affinity.api.reasons import CONDITION_REASONS, EVENT_REASONS, PoolState

ROOT = Path(__file__).parents[2]
TROUBLESHOOTING = ROOT / "docs/troubleshooting.md"
OPERATOR, DRIVER = "operator/sharing_affinity", "driver/affinity_driver"
CAMEL = re.compile(r"(?:[A-Z][a-z]+)+")
#: Calls whose literal CamelCase argument is the reason of an Event or of a report that becomes one.
REPORTS = {"warn", "_warn", "problem", "_report", "_tell", "claim_problem"}
#: Raised for the person at the terminal; the text is what they see.
ERRORS = {"AccessError", "CommandError", "InputError", "UnfitServerError", "OperatorRunsError"}


def calls(folder: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in the sources, with the name of what is called."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""), node


def entries(section: str) -> list[str]:
    """The headings of one section of the troubleshooting page."""
    text = TROUBLESHOOTING.read_text()
    found = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {section}"
    return re.findall(r"^### (.+)$", found[1], re.MULTILINE)


def event_reasons() -> set[str]:
    """The operator's are constants in one module; the driver's stand where they are reported."""
    found = {str(reason) for reason in EVENT_REASONS}
    for name, call in calls(DRIVER):
        if name in REPORTS:
            texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found |= {text for text in texts[:1] if CAMEL.fullmatch(text)}
        elif name == "Refusal":
            # On the claim that cannot be prepared: the prefix of the kubelet's own call, then what kept it.
            found |= {f"Prepare{a.value}" for a in call.args if isinstance(a, ast.Constant)}
    return found


def condition_reasons() -> set[str]:
    found = {str(reason) for reasons in CONDITION_REASONS.values() for reason in reasons}
    # A stock pool has no slice of ours that could say so.
    found.remove(PoolState.STOCK)
    for node in ast.walk(ast.parse((ROOT / DRIVER / "publish/controller.py").read_text())):
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            reasons = [value for key, value in zip(keys, node.values, strict=True) if key == "reason"]
            constants = [n.value for value in reasons for n in ast.walk(value) if isinstance(n, ast.Constant)]
            found |= {text for text in constants if isinstance(text, str)}
    return found


def error_texts() -> dict[str, list[str]]:
    """Where an error is made, to the pieces of its text that are always the same."""
    found = {}
    for path in sorted((ROOT / OPERATOR).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            if ast.unparse(node.exc.func).rpartition(".")[2] not in ERRORS:
                continue
            pieces = [
                n.value.strip(" :'")
                for n in ast.walk(node.exc)
                if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value.strip()) > 8
            ]
            if pieces:
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = pieces
    return found


def test_every_event_has_an_entry() -> None:
    assert set(entries("Events")) == event_reasons()


def test_every_condition_reason_has_an_entry() -> None:
    # A reason that is an Event as well has one entry, there.
    assert set(entries("Conditions")) == condition_reasons() - set(entries("Events"))


def test_every_alert_has_an_entry() -> None:
    rules = yaml.safe_load((ROOT / "manifests/monitoring/rules.yaml").read_text())["spec"]["groups"]
    alerts = {rule["alert"] for group in rules for rule in group["rules"] if "alert" in rule}
    assert set(entries("Alerts")) == alerts


def test_every_error_of_the_command_line_has_an_entry() -> None:
    headings = entries("Errors of the command line")
    errors = error_texts()
    assert len(errors) > 10
    lacking = {
        where: pieces for where, pieces in errors.items() if not any(p in h for p in pieces for h in headings)
    }
    assert lacking == {}
    pieces = [piece for found in errors.values() for piece in found]
    other = "".join((ROOT / path).read_text() for path in (
        "operator/sharing_affinity/runtime/preflight.py", "operator/sharing_affinity/cli/explain.py",
        "operator/sharing_affinity/cli/cleanup.py",
    ))  # fmt: skip
    stale = [h for h in headings if not any(p in h for p in pieces) and h.split(" ... ")[0] not in other]
    assert stale == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_page_is_in_the_site(page: Path) -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"]
    assert page.name in str(nav)


def test_the_site_builds_without_a_complaint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    home = (tmp_path / "index.html").read_text()
    # Nothing is fetched from elsewhere when somebody reads it.
    assert "fonts.googleapis" not in home
    assert (tmp_path / "troubleshooting/index.html").exists()
