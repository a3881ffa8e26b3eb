"""The CEL specification's own simple tests, as far as they are about what Kubernetes' environment has.

The files are read from the Go module `cel.dev/expr` (never copied here) by the oracle, which also runs cel-go
on them. A test counts when cel-go compiles it in Kubernetes' environment, with the test's own variables and
container. It
passes when this project agrees with cel-go on value, static type and cost, or on failing. Where cel-go itself
does not do what the suite expects (the older string library of Kubernetes, mostly), agreeing with cel-go is
right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from harness.cel_values import parse_type, typed, untyped
from harness.oracle import Oracle, module_directory

from kubernetes_cel import CompileError, Environment
from kubernetes_cel.libraries import ADMISSION

pytestmark = pytest.mark.differential

LEAST_COUNTED = 900
LEAST_PASSED = 0.995
#: Misses that are known, by file/section/test, with the reason.
MISSES: dict[str, str] = {
    "dynamic/any/var": "the variable holds a message that only the suite knows: there is no value to bind",
}

Suite = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def suite() -> Suite:
    directory = module_directory("cel.dev/expr") / "tests" / "simple" / "testdata"
    with Oracle("conformance") as oracle:
        files = [oracle.ask({"path": str(path)}) for path in sorted(directory.glob("*.textproto"))]
    return [
        (f"{file['name']}/{test['section']}/{test['name']}", test)
        for file in files
        for test in file["tests"] or []
    ]


def _left_out(test: dict[str, Any]) -> str | None:
    """Why a test does not count, or None."""
    if test.get("left"):
        return "needs " + ("messages" if "unknown" in test["left"] else test["left"])
    answer = test["go"]
    if answer.get("panic") or answer.get("compileError"):
        return "not in Kubernetes' environment"
    return None


def _problem(test: dict[str, Any]) -> str | None:
    """What is wrong with this project's answer, or None."""
    answer = test["go"]
    variables = test.get("variables", [])
    try:
        types = {v["name"]: parse_type(v["type"]) for v in variables}
        values = {v["name"]: untyped(v["value"]) for v in variables if "value" in v}
    except ValueError as error:
        return f"cannot bind the variables: {error}"
    environment = Environment(types, ADMISSION, container=test.get("container", ""))
    try:
        program = environment.compile(test["expression"])
    except CompileError as error:
        return f"does not compile: {error.message}"
    outcome = program.run(values)
    if program.output_type != answer["outType"]:
        return f"type {program.output_type} instead of {answer['outType']}"
    if (outcome.error is not None) != ("error" in answer):
        return f"{outcome} instead of {answer.get('error') or answer.get('value')}"
    if outcome.error is None and typed(outcome.value) != answer["value"]:
        return f"{typed(outcome.value)} instead of {answer['value']}"
    if not answer.get("unstable") and str(outcome.cost) != answer["cost"]:
        return f"cost {outcome.cost} instead of {answer['cost']}"
    return None


def _expected(test: dict[str, Any]) -> bool:
    """Whether cel-go does what the suite wants."""
    answer = test["go"]
    if test.get("fails"):
        return "error" in answer
    return "error" not in answer and ("value" not in test or test["value"] == answer["value"])


def _counted(
    suite: list[tuple[str, dict[str, Any]]], left: Counter[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, test in suite:
        reason = _left_out(test)
        if reason is None:
            yield name, test
        else:
            left[reason] += 1


def test_the_specifications_simple_tests_pass(suite: Suite) -> None:
    left: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    otherwise = 0
    misses: list[str] = []
    for name, test in _counted(suite, left):
        file = name.partition("/")[0]
        counted[file] += 1
        otherwise += not _expected(test)
        problem = _problem(test)
        if problem is None:
            passed[file] += 1
        else:
            misses.append(
                f"{name}: {test['expression']}\n    {problem}\n    {MISSES.get(name, 'no reason known')}"
            )
    for file in counted:
        print(f"{passed[file]:5d} of {counted[file]:5d} {file}")
    print(f"{passed.total()} of {counted.total()} passed")
    print(f"cel-go itself answers {otherwise} otherwise than the suite")
    for reason, number in left.most_common():
        print(f"{number:5d} left out: {reason}")
    assert counted.total() >= LEAST_COUNTED
    text = "\n".join(misses)
    print(text)
    assert passed.total() >= LEAST_PASSED * counted.total(), text
    assert all("no reason known" not in miss for miss in misses), text
