"""What a check found, and how findings are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    UNSURE = "unsure"
    """Nothing is known to be wrong, but something could not be found out, or is not as usual."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what is so, and, unless it is ok, what to do."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Verdict.OK, found)


def unsure(check: str, found: str, remedy: str) -> Finding:
    """A person should look."""
    return Finding(check, Verdict.UNSURE, found, remedy)


def wrong(check: str, found: str, remedy: str) -> Finding:
    """This has to be put right."""
    return Finding(check, Verdict.WRONG, found, remedy)


def render(findings: Sequence[Finding], output: str) -> str:
    """As ``table`` (text for people) or ``json``."""
    if output == "json":
        healthy = all(finding.verdict is not Verdict.WRONG for finding in findings)
        return json.dumps(
            {"healthy": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2
        )
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict.value:6}  {finding.check:{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':6}  {'':{width}}  -> {finding.remedy}")
    return "\n".join(lines)
