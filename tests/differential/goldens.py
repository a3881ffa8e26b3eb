"""Regenerates the goldens of ``tests/data``: what cel-go answers to fixed lists of expressions.

The goldens let every test run compare with cel-go without a Go toolchain. ``python -m differential.goldens``
(with ``tests`` on the path) asks the oracle the expressions of the file again and rewrites it; the
differential tests fail when the committed file and the oracle disagree. New expressions are added to the
file's ``rows`` as ``{"set", "env", "expression"}`` and filled in by a run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.oracle import Oracle

DATA = Path(__file__).resolve().parent.parent / "data"
#: The language and its environments; one call of every library function with typical and odd arguments.
GOLDEN, LIBRARIES = DATA / "cel_golden.json", DATA / "cel_library_golden.json"


def load(path: Path = GOLDEN) -> dict[str, Any]:
    """A golden file as it is committed."""
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def ask(oracle: Oracle, golden: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of ``golden``, answered anew by the oracle."""
    rows = golden["rows"]
    requests = [
        {"expression": row["expression"], "env": row["env"], "object": golden["objects"][row["set"]]}
        for row in rows
    ]
    answered = []
    for row, answer in zip(rows, oracle.ask_all(requests), strict=True):
        answer.pop("compileNanos", None)
        answer.pop("runNanos", None)
        if answer.get("unstable"):
            for changing in ("value", "error", "cost"):
                answer.pop(changing, None)
        answered.append({"set": row["set"], "env": row["env"], "expression": row["expression"], **answer})
    return answered


def dump(golden: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """The text of the file: one row a line, so that a change of an answer is a change of a line."""
    head = json.dumps({"about": golden["about"], "objects": golden["objects"]}, indent=1, ensure_ascii=False)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


def main() -> int:
    with Oracle("cel") as oracle:
        for path in (GOLDEN, LIBRARIES):
            golden = load(path)
            path.write_text(dump(golden, ask(oracle, golden)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
