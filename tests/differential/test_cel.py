"""Generated expressions and objects: this project's CEL and cel-go agree on all but the wording of errors.

Each pair compares the kind of compile error, the static type, the estimate, the value or the kind of run-time
error, and the cost. The mix of the corpus is printed and asserted, so that a generator that only makes
nonsense cannot pass for a test. `CEL_PAIRS` and `CEL_SEED` choose other corpora.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from differential.cel_compare import Engine, difference, upstream
from differential.cel_generator import Expression, Generator
from harness.oracle import Oracle

pytestmark = pytest.mark.differential

PAIRS = int(os.environ.get("CEL_PAIRS", "20000"))
SEED = int(os.environ.get("CEL_SEED", "20261130"))
BATCH = 1000

#: Expressions whose answers differ on purpose, by a phrase that occurs in them, with the reason.
DELIBERATE: dict[str, str] = {}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle("cel") as running:
        yield running


def _pairs(generator: Generator, count: int) -> Iterator[tuple[Expression, dict[str, Any]]]:
    made = 0
    while made < count:
        expression = generator.expression()
        for _ in range(generator.random.choice([1, 1, 2, 3])):
            value = generator.device() if expression.env == "device" else generator.object()
            yield expression, {"expression": expression.text, "env": expression.env, "object": value}
            made += 1


def _shown(request: dict[str, Any]) -> str:
    """The parts of an object that an expression names."""
    value = request["object"]
    return json.dumps({key: value[key] for key in value if key in request["expression"]}, ensure_ascii=False)


def test_generated_expressions_agree_with_cel_go(oracle: Oracle) -> None:
    engine = Engine()
    pairs = _pairs(Generator(SEED), PAIRS)
    mix: Counter[str] = Counter()
    deliberate: Counter[str] = Counter()
    wrong: list[str] = []
    while batch := list(itertools.islice(pairs, BATCH)):
        answers = oracle.ask_all(request for _, request in batch)
        for (expression, request), answer in zip(batch, answers, strict=True):
            theirs = upstream(answer, expression.env)
            mix["pairs"] += 1
            mix[expression.source] += 1
            mix[theirs.kind] += 1
            mix[f"{expression.source} {theirs.kind}"] += 1
            unstable = answer.get("unstable", False)
            mix["unstable"] += unstable
            mix["compiles"] += theirs.kind in ("value", "error", "cost")
            try:
                problem = difference(engine.ask(request), theirs, unstable=unstable)
            except Exception as error:
                problem = f"crash: {type(error).__name__}: {error}"
            if problem is None:
                continue
            reason = next((why for phrase, why in DELIBERATE.items() if phrase in expression.text), None)
            if reason is not None and expression.source != "extractor":
                deliberate[reason] += 1
            else:
                wrong.append(f"{expression.source}: {expression.text}\n    {problem}\n    {_shown(request)}")
    for name, count in sorted(mix.items()):
        print(f"{count:6d} {name}")
    for reason, count in deliberate.items():
        print(f"{count:6d} deliberately different: {reason}")
    assert not wrong, f"{len(wrong)} of {mix['pairs']} differ:\n" + "\n".join(wrong[:40])
    total = mix["pairs"]
    assert total >= PAIRS
    assert 0.45 <= mix["compiles"] / total <= 0.62
    assert mix["extractor"] >= 0.2 * total
    assert mix["value"] >= 0.25 * total
    assert mix["error"] >= 0.05 * total
    assert mix["cost"] >= 0.0005 * total
    assert mix["parse"] >= 0.1 * total
    assert mix["type"] >= 0.08 * total
    assert mix["unstable"] <= 0.02 * total
