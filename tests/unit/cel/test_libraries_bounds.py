"""Library functions on input chosen to hurt: each ends soon, in little memory, in a value or an error.

Texts and lists here are as large as the cost limit lets an expression build them, and larger. Upstream would
run out of memory on some of them; ours is an error then.
"""

from __future__ import annotations

import resource
import time

import pytest

from kubernetes_cel import CostLimitExceeded, Environment, EvaluationError

BIG = 2_000_000
SECONDS = 9.0  # on a busy machine; a third of it on a quiet one
#: Growth of the process that one expression may cause, in KiB.
MEMORY_KIB = 900_000


@pytest.fixture(scope="module")
def environment() -> Environment:
    return Environment.admission()


@pytest.fixture(scope="module")
def value() -> dict[str, object]:
    return {
        "a": "a" * BIG,
        "digits": "9" * BIG,
        "dots": "1." * (BIG // 2),
        "colons": "1:" * (BIG // 2),
        "percent": "http://h/" + "%41" * (BIG // 3),
        "query": "http://h/?" + "a=b&" * (BIG // 4),
        "units": "0h" * (BIG // 2),
        "dashes": "a" + "-" * BIG,
        "list": list(range(10_000)),
        "words": ["a" * 1000] * 10_000,
    }


ENDS = [
    'object.a.replace("a", object.a).size()',
    'object.a.replace("", object.a).size()',
    "object.words.map(w, object.a).join(object.a).size()",
    '"%s%s%s%s".format([object.words, object.words, object.a, object.a]).size()',
    'lists.range(4000).map(i, "%s".format([object.a])).size()',
    'lists.range(3000).map(i, object.words[0].replace("a", object.words[0])).size()',
    "lists.range(9223372036854775807).size()",
    "lists.range(100000000).size()",
    "lists.range(900000).reverse().size()",
    "(object.list + object.list).sort().size()",
    "object.list.distinct().size()",
    "object.list.map(x, object.list).flatten().size()",
    'object.a.lastIndexOf("aaab")',
    'object.a.lastIndexOf(object.a + "b")',
    'object.a.indexOf(object.a.substring(1000000) + "b")',
    'object.a.split("").size()',
    "object.a.lowerAscii().upperAscii().trim().size()",
    'object.a.find("(a*)*b")',
    'object.a.findAll("a").size()',
    'object.a.findAll("a*").size()',
    'object.a.matches("(a|aa)+$")',
    "isURL(object.a) || isURL(object.percent) || isURL(object.query)",
    "url(object.percent).getEscapedPath().size()",
    "[url(object.query)].map(u, lists.range(1000).map(i, u.getQuery().size())).size()",
    "isIP(object.dots) || isIP(object.colons) || isIP(object.a) || isCIDR(object.dots)",
    "isQuantity(object.digits)",
    "quantity(object.digits).add(1).isInteger()",
    'quantity("1e9999999").isGreaterThan(quantity("1e-9999999"))',
    'quantity("1e9999999").add(quantity("1"))',
    'quantity("1E999999999999999999").add(1)',
    "isSemver(object.dots) || isSemver(object.digits)",
    "duration(object.units)",
    "timestamp(object.digits)",
    "int(object.digits)",
    "double(object.digits)",
    "format.dns1123Subdomain().validate(object.dashes).hasValue()",
    'format.dns1123Label().validate(object.a.substring(0, 9000) + "!").hasValue()',
    "format.byte().validate(object.digits.substring(0, 9000)).hasValue()",
    "strings.quote(object.a).size()",
    '"%.1000000f".format([1.0]).size()',
    '"%.999999999f".format([1.0]).size()',
    '"%.65535e".format([1.0]).size()',
    "sets.equivalent(object.list, object.list)",
    "object.list.sum() + object.list.max() + object.list.indexOf(-1)",
    'object.words.includes("b")',
]


@pytest.mark.parametrize("text", ENDS)
def test_ends_soon_and_small(environment: Environment, value: dict[str, object], text: str) -> None:
    program = environment.compile(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    outcome = program.run({"object": value})
    took = time.monotonic() - started
    assert took < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB
    assert outcome.error is None or isinstance(outcome.error, EvaluationError | CostLimitExceeded)


def test_a_list_too_large_to_build_costs_what_it_would_have(environment: Environment) -> None:
    doubled = "[object.list]" + ".map(l, l + l)" * 12 + "[0]"
    outcome = environment.compile(f"{doubled}.reverse().size()").run({"object": {"list": [0] * 1000}})
    assert isinstance(outcome.error, CostLimitExceeded)
    assert outcome.cost > 4_000_000


def test_texts_that_grow_unpaid_are_counted(environment: Environment) -> None:
    text = 'lists.range(3000).map(i, object.w.replace("a", object.w)).size()'
    outcome = environment.compile(text).run({"object": {"w": "a" * 1000}})
    assert isinstance(outcome.error, EvaluationError | CostLimitExceeded)


def test_layers_of_lists_are_printed_within_bounds(environment: Environment) -> None:
    text = '"%s".format([' + "[[1]]" + "".join(f".map(x{i}, [x{i}, x{i}])" for i in range(60)) + "]).size()"
    outcome = environment.compile(text).run({"object": {}})
    assert isinstance(outcome.error, EvaluationError)
