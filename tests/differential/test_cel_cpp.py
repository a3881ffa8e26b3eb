"""Values against a second, independent engine: Google's C++ implementation of CEL (`cel-expr-python`).

It knows none of Kubernetes' functions and no costs, stops at 32 levels of nesting, and differs from
cel-go in a few known ways; what it can say about generated extractors has to agree. Needs no Go.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from differential.cel_generator import Generator
from harness.cel_values import typed

from kubernetes_cel import CompileError, Environment, from_json
from kubernetes_cel.values import Optional

PAIRS = 3000
SEED = 5981
#: Functions that only Kubernetes has, or that the older string library of Kubernetes does differently.
_FOREIGN = re.compile(
    r"\b(?:find|findAll|cidr|ip|quantity|semver|url|sort|min|max|isSorted|includes|format|isURL|containsIP)\("
)


#: `null.?field` is an error in C++, and optional.none() in cel-go, which decides.
_OPTIONAL_OF_NULL = re.compile(r"No matching overloads found : _(?:\?\._|\[\?_\])\(null_type")


def _environment() -> Any:
    return cel.NewEnv(
        variables={"object": cel.Type.DYN},
        extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
    )


def _typed(value: Any) -> dict[str, Any]:
    """A value of the C++ engine as typed JSON."""
    name = value.type().name().lower()
    plain = value.value()
    if name in ("int", "uint"):
        return {name: str(plain)}
    if name in ("null", "null_type"):
        return {"null": True}
    if name == "double":
        return typed(float(plain))
    if name == "bytes":
        return {"bytes": base64.b64encode(plain).decode()}
    if name.startswith("list"):
        return {"list": [_typed(item) for item in plain]}
    if name.startswith("map"):
        entries = [[typed(key), _typed(item)] for key, item in plain.items()]
        return {"map": sorted(entries, key=json.dumps)}
    return {name: plain}


def _theirs(environment: Any, text: str, value: Any) -> dict[str, Any] | str:
    """Typed JSON, or what went wrong: compile, error, depth, or foreign (where it is known to differ)."""
    try:
        expression = environment.compile(text)
    except Exception as error:
        return "depth" if "recursion" in str(error).lower() else "compile"
    try:
        result = expression.eval(data={"object": value})
        if result.type().name() == cel.Type.ERROR.name():
            return "foreign" if _OPTIONAL_OF_NULL.search(str(result)) else "error"
        return _typed(result)
    except Exception:
        return "error"


def test_generated_extractors_have_the_same_values() -> None:
    mine, theirs = Environment.admission(), _environment()
    generator = Generator(SEED)
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    while seen["pairs"] < PAIRS:
        expression = generator.expression()
        if expression.source != "extractor" or _FOREIGN.search(expression.text):
            continue
        value = from_json(generator.object())
        seen["pairs"] += 1
        try:
            outcome = mine.compile(expression.text).run({"object": value})
        except CompileError:
            seen["not compiled here"] += 1  # cel-go decides about that, and it is stricter
            continue
        if outcome.error is None and isinstance(outcome.value, Optional):
            seen["optional result"] += 1  # the other engine has no Python value for one
            continue
        answer = _theirs(theirs, expression.text, value)
        if answer in ("depth", "compile", "foreign"):
            seen[f"{answer} there"] += 1
            continue
        ours = "error" if outcome.error is not None else typed(outcome.value)
        seen["error" if ours == "error" else "value"] += 1
        if ours != answer:
            wrong.append(f"{expression.text}\n    {ours} instead of {answer}: {outcome.error}")
    print(dict(seen))
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:20])
    assert seen["value"] > PAIRS * 0.6
    assert seen["error"] > PAIRS * 0.05
