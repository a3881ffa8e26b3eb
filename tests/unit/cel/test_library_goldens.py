"""One call of each overload of the function libraries, as cel-go answered it. Needs no Go."""

from __future__ import annotations

from differential import goldens
from differential.cel_compare import Engine, difference, upstream


def test_calls_answer_and_cost_as_cel_go_does() -> None:
    engine = Engine()
    rows = goldens.load(goldens.LIBRARIES)["rows"]
    wrong = []
    for row in rows:
        problem = difference(engine.ask({**row, "object": {}}), upstream(row, row["env"]))
        if problem is not None:
            wrong.append(f"{row['expression']}: {problem}")
    assert len(rows) > 900
    assert not wrong, "\n".join(wrong)
