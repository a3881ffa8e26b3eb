"""Every overload of every function library against cel-go: value or error, and the cost of the call.

The implementations are called directly with arguments from pools of edge cases, one pool for each type;
cel-go gets the same arguments written as CEL. So a difference points at one function, without checker or
evaluator in between.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.cel_values import typed
from harness.oracle import Oracle

from kubernetes_cel import costs, types
from kubernetes_cel.declarations import Declarations, Function, Overload
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries import ADMISSION
from kubernetes_cel.libraries.conversions import LIBRARY as CONVERSIONS
from kubernetes_cel.libraries.formats import FORMAT_TYPE, FORMATS
from kubernetes_cel.libraries.network import CIDR_TYPE, IP_TYPE, parse_cidr, parse_ip
from kubernetes_cel.libraries.quantity import QUANTITY_TYPE, parse_quantity
from kubernetes_cel.libraries.semver import SEMVER_TYPE, parse_semver
from kubernetes_cel.libraries.time import duration_of_text, timestamp_of_text
from kubernetes_cel.libraries.urls import URL_TYPE, parse_url
from kubernetes_cel.types import Type
from kubernetes_cel.values import Uint, type_of

pytestmark = pytest.mark.differential

#: How many argument tuples of one overload are tried.
LIMIT = 300

#: Texts that some parser of the libraries finds hard.
WORDS: list[str] = json.loads((Path(__file__).parent.parent / "data" / "cel_words.json").read_text())


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return str(value).lower()
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    if type(value) is bytes:
        return "b'" + "".join(f"\\x{c:02x}" for c in value) + "'"
    if type(value) is Uint:
        return f"{int(value)}u"
    if type(value) is float:
        return f"double('{value!r}')" if value != value or abs(value) == float("inf") else repr(value)
    return str(value)


def _constants(*values: Any) -> list[tuple[str, Any]]:
    return [(_literal(value), value) for value in values]


def _called(function: str, parse: Any) -> list[tuple[str, Any]]:
    made = []
    for word in WORDS:
        try:
            value = parse(word)
        except EvaluationError:
            continue
        if value is not None:
            made.append((f"{function}({_literal(word)})", value))
    return made


INTS = _constants(
    0, 1, -1, 2, 3, 5, 7, 100, -(2**63), 2**63 - 1, 10**12, 253402300799, 253402300800, -62135596801
)
DOUBLES = _constants(
    *(0.0, -0.0, 1.0, 1.5, -2.5, 1e6, 123456.0, 1234567.0, 1e21, 1e-5, 0.0001, 123456789.125, 1e300, 5e-324),
    *(
        9.3e18,
        -9.3e18,
        0.1,
        2.5,
        1e22,
        1.0e-7,
        float("nan"),
        float("inf"),
        float("-inf"),
        9223372036854774784.0,
    ),
)
UINTS = _constants(Uint(0), Uint(1), Uint(7), Uint(2**63), Uint(2**64 - 1))
STRINGS = _constants(*WORDS)
BYTES = _constants(b"", b"abc", b"\xff\x00", "é".encode(), b"x" * 33)
DURATIONS = _called("duration", duration_of_text)
TIMESTAMPS = _called("timestamp", timestamp_of_text)
POOLS: dict[Type, list[tuple[str, Any]]] = {
    types.int_: INTS,
    types.uint: UINTS,
    types.double: DOUBLES,
    types.bool_: _constants(True, False),
    types.string: STRINGS,
    types.bytes_: BYTES,
    types.duration: DURATIONS,
    types.timestamp: TIMESTAMPS,
    IP_TYPE: _called("ip", parse_ip),
    CIDR_TYPE: _called("cidr", parse_cidr),
    QUANTITY_TYPE: _called("quantity", parse_quantity),
    SEMVER_TYPE: _called("semver", parse_semver),
    URL_TYPE: _called("url", parse_url),
    FORMAT_TYPE: [(f"format.{name}()", value) for name, value in FORMATS.items()],
}
SCALARS = [pool for kind, pool in POOLS.items() if kind.kind not in (types.STRUCT, types.OPAQUE)]
MIXED = [INTS[1], UINTS[1], DOUBLES[2], STRINGS[2], BYTES[1], ("null", None), ("true", True)]


def _list(items: list[tuple[str, Any]], *, dyn: bool = False) -> tuple[str, Any]:
    texts = [f"dyn({text})" if dyn else text for text, _ in items]
    return f"[{', '.join(texts)}]", [value for _, value in items]


def _arguments(kind: Type, bound: dict[str, Type], pick: random.Random) -> tuple[str, Any]:
    """One argument of a type: text and value."""
    if kind.kind == types.TYPE_PARAM:
        if kind.name not in bound:
            bound[kind.name] = pick.choice(
                [types.int_, types.string, types.double, types.bool_, types.duration]
            )
        return _arguments(bound[kind.name], bound, pick)
    if kind.kind == types.DYN:
        return pick.choice(pick.choice([*SCALARS, MIXED]))
    if kind.kind == types.LIST:
        element = kind.params[0]
        size = pick.choice([0, 1, 2, 3, 3, 5])
        if element.kind == types.DYN:
            return _list([pick.choice(pick.choice(SCALARS)) for _ in range(size)], dyn=True)
        return _list([_arguments(element, bound, pick) for _ in range(size)])
    return pick.choice(POOLS[kind])


def _rows(function: Function, overload: Overload) -> Iterator[tuple[str, list[Any], list[str]]]:
    """CEL text, argument values and argument texts."""
    simple = [POOLS.get(kind) for kind in overload.args]
    seed = random.Random(zlib.crc32(overload.id.encode()))
    chosen: list[list[tuple[str, Any]]]
    product = 1
    for pool in simple:
        product *= len(pool) if pool is not None else LIMIT + 1
    if product <= LIMIT:
        chosen = [list(combination) for combination in itertools.product(*[pool or [] for pool in simple])]
    else:
        chosen = []
        for _ in range(LIMIT):
            bound: dict[str, Type] = {}
            chosen.append([_arguments(kind, bound, seed) for kind in overload.args])
    for arguments in chosen:
        texts = [text for text, _ in arguments]
        if overload.member:
            text = f"({texts[0]}).{function.name}({', '.join(texts[1:])})"
        else:
            text = f"{function.name}({', '.join(texts)})"
        yield text, [value for _, value in arguments], texts


FUNCTIONS = [
    (function, overload)
    for function in Declarations.of(ADMISSION, {}).functions.values()
    for overload in function.overloads
    if not function.name.startswith("@") and (overload.impl or function.shared)
]
CONVERSION_NAMES = {function.name for function in CONVERSIONS.functions}
LIBRARY_NAMES = {function.name for library in ADMISSION for function in library.functions}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle("cel") as running:
        yield running


@pytest.fixture(scope="module")
def argument_costs() -> dict[str, int]:
    return {}


def _call(function: Function, overload: Overload, arguments: list[Any]) -> dict[str, Any]:
    impl = function.shared or overload.impl
    assert impl is not None
    try:
        return {"value": typed(impl(*arguments))}
    except EvaluationError:
        return {"error": True}


def _own_cost(function: Function, overload: Overload, arguments: list[Any], result: Any) -> int:
    actual = function.cost.actual if function.cost is not None else None
    cost = actual(overload.id, arguments, result) if actual is not None else None
    return 1 if cost is None else cost


@pytest.mark.parametrize(
    ("function", "overload"),
    FUNCTIONS,
    ids=[f"{function.name}-{overload.id}" for function, overload in FUNCTIONS],
)
def test_overload_answers_and_costs_as_upstream(
    oracle: Oracle, argument_costs: dict[str, int], function: Function, overload: Overload
) -> None:
    rows = list(_rows(function, overload))
    wanted = sorted({text for _, _, texts in rows for text in texts if text not in argument_costs})
    for text, answer in zip(wanted, oracle.ask_all({"expression": text} for text in wanted), strict=True):
        argument_costs[text] = int(answer.get("cost", 0))
    seen: Counter[str] = Counter()
    wrong = []
    for (text, arguments, texts), answer in zip(
        rows, oracle.ask_all({"expression": text} for text, _, _ in rows), strict=True
    ):
        failure = answer.get("compileError")
        if failure is not None and (failure["stage"] != "program" and "invalid" not in failure["message"]):
            seen["not compiled"] += 1
            continue
        if answer.get("costExceeded") or (function.name == "sum" and arguments[0] == []):
            seen["left out"] += 1  # stopped before the answer, or resolved to the overload for ints
            continue
        failed = failure or answer.get("error") or answer.get("panic")
        expected: dict[str, Any] = {"error": True} if failed else {"value": answer["value"]}
        mine = _call(function, overload, arguments)
        seen["error" if "error" in expected else "value"] += 1
        if mine != expected:
            wrong.append((text, expected, answer.get("error") or failure, mine))
        elif "value" in mine and function.name not in CONVERSION_NAMES:
            impl = function.shared or overload.impl
            assert impl is not None
            cost = _own_cost(function, overload, arguments, impl(*arguments))
            total = cost + sum(argument_costs[text] for text in texts)
            if total != int(answer["cost"]):
                wrong.append((text, "cost", answer["cost"], total))
    print(function.name, overload.id, dict(seen))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert seen["value"] > 0


def test_every_pool_value_has_the_type_of_its_pool() -> None:
    for kind, pool in POOLS.items():
        assert pool
        assert {type_of(value).name for _, value in pool} == {kind.name}
    assert costs.UNBOUNDED == 2**64 - 1
