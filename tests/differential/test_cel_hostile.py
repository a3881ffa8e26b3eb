"""Hostile expressions end as cel-go ends them: same kind, estimate and cost.

They take at most ten times its time, and at most three seconds.
Only what cel-go comes back from; tests/unit/cel/test_cel_bounds.py has the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness.oracle import Oracle

from kubernetes_cel import CompileError, CostLimitExceeded, Environment, EvaluationError

pytestmark = pytest.mark.differential

OBJECT = {
    "s": "x" * 1000,
    "l": list(range(10)),
    "big": list(range(1000)),
    "strs": ["abc" * 30] * 200,
    "m": {str(i): i for i in range(500)},
    "kind": "x",
}
#: A tenth of this is below what can be measured.
LEAST_S = 0.05


def _nested(head: str, inner: str, tail: str, depths: tuple[int, ...]) -> list[str]:
    return [head * n + inner + tail * n for n in depths]


DOUBLED = "[object.l]" + ".map(x, x + x)" * 45
CASES = [
    *_nested("(", "1", ")", (248, 249, 250)),
    *_nested("dyn(", "1", ")", (249, 250)),
    *_nested("object[", "1", "]", (249, 250)),
    *_nested("true ? 'a' : ", "'b'", "", (249, 250)),
    *_nested("object.s == 'y' ? 'a' : ", "'b'", "", (248, 249)),
    *_nested("[1].all(x, ", "true", ")", (120, 250)),
    *_nested("!", "true", "", (3000, 3001)),
    *_nested("-", "1", "", (3000, 3001)),
    *["+".join(["1"] * n) for n in (250, 251, 252)],
    *["object" + ".a" * n for n in (250, 251)],
    "(" * 5000,
    "[" * 5000,
    "a." * 3000,
    "-" * 10000,
    "9" * 5000,
    "0x" + "f" * 5000,
    " || ".join(["object.l[0] == 2"] * 500),
    " && ".join(["object.l[0] == 0"] * 500),
    "||".join(["true"] * 1700),
    " || ".join(['object.gone == "x"'] * 400),
    "object.l.all(a, " * 7 + "true" + ")" * 7,
    "object.big.all(a, object.big.all(b, object.big.all(c, a + b + c >= 0)))",
    "object.big.map(a, object.big.map(b, a * b)).size()",
    "object.big.exists(a, object.big.exists(b, a == b + 5000))",
    "object.big.filter(a, object.big.exists_one(b, a == b)).size()",
    "object.m.transformMap(k, v, object.m).size()",
    "object.m.transformList(k, v, object.m).size()",
    "object.big.all(x, object.big == object.big)",
    "object.big.map(x, object).size()",
    "[string(object.s)]" + ".map(x, x + x)" * 45 + "[0].size()",
    "[object.l]" + ".map(x, x + x)" * 59 + "[0].size()",
    "[object.l]" + ".map(x, x + x)" * 60 + "[0].size()",
    DOUBLED + "[0][12345678901234]",
    '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!".matches("^(a+)+$")',
    'object.s.matches("(x*)*(x*)*y")',
    'object.s.matches("x{1000}{1000}")',
    "object.strs.map(a, object.strs.map(b, a.contains(b))).size()",
    'object.s.split("").map(x, object.s.split("")).size()',
    "lists.range(100000).size()",
    "lists.range(1000000).map(x, x).size()",
    "lists.range(1000001).size()",
    "object.big.distinct().size()",
    "lists.range(500).sort().size()",
    "sets.contains(object.big, object.big)",
    "optional.of(1)" + ".optMap(x, x)" * 5 + ".value()",
    "int('" + "9" * 5000 + "')",
    "duration('" + "9" * 3000 + "h')",
    "'" + "%s" * 2000 + "'.format(['a'])",
    "'" + "a" * 9000 + "' == object.s",
]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle("cel") as running:
        yield running


def _upstream(answer: dict[str, Any]) -> str:
    if answer.get("compileError"):
        return str(answer["compileError"]["kind"])
    if answer.get("costExceeded"):
        return "cost"
    return "runtime" if answer.get("error") else "value"


def _kind(error: Exception | None) -> str:
    if error is None:
        return "value"
    if isinstance(error, CostLimitExceeded):
        return "cost"
    assert isinstance(error, EvaluationError)
    return "runtime"


@pytest.mark.parametrize("expression", CASES, ids=lambda text: text[:50])
def test_ends_as_upstream_ends_it(oracle: Oracle, expression: str) -> None:
    answer = oracle.ask({"expression": expression, "env": "admission", "object": OBJECT})
    theirs = (answer.get("compileNanos", 0) + answer.get("runNanos", 0)) / 1e9
    environment = Environment.admission()
    started = time.process_time()
    outcome = refused = None
    try:
        program = environment.compile(expression)
        outcome = program.run({"object": OBJECT})
    except CompileError as problem:
        refused = problem
    ours = time.process_time() - started
    print(f"{ours:.3f} s, cel-go {theirs:.3f} s")

    if outcome is None:
        assert refused is not None
        assert refused.kind == _upstream(answer)
    else:
        assert _kind(outcome.error) == _upstream(answer)
        assert [str(bound) for bound in program.estimate] == answer["estHint"]
        assert str(outcome.cost) == answer["cost"]
    assert ours < 3
    assert ours < 10 * max(theirs, LEAST_S)
