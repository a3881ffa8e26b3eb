"""cel-go's answers, committed: every row of values, error kinds, estimates and costs. Needs no Go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.cel_values import typed

from kubernetes_cel import CompileError, Environment, EvaluationError, from_json
from kubernetes_cel.device import device_variable

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "cel_golden.json").read_text())
ADMISSION = Environment.admission()
DEVICE = Environment.device()


def _variables(row: dict[str, Any]) -> dict[str, Any]:
    given = GOLDEN["objects"][row["set"]]
    if row["env"] == "admission":
        return {"object": from_json(given)}
    device = device_variable(
        given.get("driver", ""),
        given.get("attributes") or {},
        given.get("capacity") or {},
        bool(given.get("allowMultipleAllocations")),
    )
    return {"device": device}


def _id(row: dict[str, Any]) -> str:
    return f"{row['env']}-{row['set']}-{row['expression']}"[:90]


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=_id)
def test_answers_as_cel_go_does(row: dict[str, Any]) -> None:
    environment = ADMISSION if row["env"] == "admission" else DEVICE
    output: Any = "bool" if row["env"] == "device" else "any"
    failure = row.get("compileError")
    if failure or row.get("panic"):
        with pytest.raises(CompileError) as caught:
            environment.compile(row["expression"], output)
        # Where cel-go panics, an error is all that can be asked for.
        assert row.get("panic") or caught.value.kind == failure["kind"]
        return
    program = environment.compile(row["expression"], output)
    assert program.output_type == row["outType"]
    assert [str(bound) for bound in program.estimate] == row.get("estHint", row.get("estDevice"))
    outcome = program.run(_variables(row))
    if row.get("unstable"):
        return
    assert str(outcome.cost) == row["cost"]
    if row.get("error"):
        assert isinstance(outcome.error, EvaluationError), outcome
    else:
        assert outcome.error is None
        assert typed(outcome.value) == row["value"]


def test_the_goldens_are_all_there() -> None:
    assert len(GOLDEN["rows"]) >= 540
    assert sum(1 for row in GOLDEN["rows"] if "cost" in row) >= 480
