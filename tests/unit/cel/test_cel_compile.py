"""Parsing and checking: what is refused, as which kind, and where the finger points."""

from __future__ import annotations

import pytest

from kubernetes_cel import CheckError, CompileError, Environment, LengthError, ParseError
from kubernetes_cel.grammar import extended_grammar

ENVIRONMENT = Environment.admission()


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "object.in",
        "object.true",
        "object.null",
        "if",
        "object[0",
        '"a\nb"',
        '"\\q"',
        "'\\400'",
        "true ? true ? 1 : 2 : 3",
        "-!true",
        "a{b: 1}{",
        "9223372036854775808",
        "18446744073709551616u",
        "1e999",
        "object\u00a0.a",
        "`a`",
        "1 2",
        "object.all(object.x, true)",
        "has(object)",
        "has(object['k'])",
        "[1].all(__result__, true)",
        "[1].all(i, i, true)",
    ],
)
def test_syntax_errors(expression: str) -> None:
    with pytest.raises(ParseError):
        ENVIRONMENT.compile(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "unknown",
        "object.foo(1)",
        "1 + 'a'",
        "1 == 1.0",
        "[1, 'a']",
        "{'a': 1, 'b': 'x'}",
        "[object.a, 'x']",
        "'a'[0]",
        "duration('x')",
        "timestamp('x')",
        "'a'.matches('[')",
        "'a'.find('[')",
        "int('x')",
        "object[['k']]",
        "[?object.x]",
        "{?'k': object.x}",
        "{b'a': 1}",
        "cel.bind(x, 1, x)",
        "math.greatest(1, 2)",
        "base64.encode(b'a')",
        "'abc'.reverse()",
        "[1].existsOne(x, true)",
        "oldObject.a",
        "params.a",
        "google.protobuf.FieldMask{}",
        "quantity('1').sign()",
        "true && 'x'",
        "1.all(x, true)",
    ],
)
def test_check_errors(expression: str) -> None:
    with pytest.raises(CheckError):
        ENVIRONMENT.compile(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "object.?a[?0].`b-c/d e`.orValue('x')",
        "[1, 2,]",
        "[,]",
        "{,}",
        "{'a': 1,}",
        "[?object.?a, object.b]",
        "r'\\d' + R\"\\\" + '''a\n'b''' + \"\"\"c\"\"\"",
        "b'\\xff' + br'\\x' + B\"\\377\"",
        "'\\a\\b\\f\\n\\r\\t\\v\\\\\\?\\`\\'\\\"\\x41\\u00e9\\U0001F600\\101'",
        "0xFf + 0x1 == 256 && 0x1u == 1u && .5e-1 < 1E3",
        "// comment\nobject.a // more",
        ".object.a",
        "object.a.exists(object, object == .object.b)",
        "object.inside || object.truely || object.nullable",
        "type(object) == map && type(1) == int && net.IP != net.CIDR",
        "object.x.all(i, v, i == v) && object.x.transformMapEntry(i, v, {v: i}).size() > 0",
        "object.?x.optMap(v, v + 1).orValue(0) == object.?x.optFlatMap(v, optional.of(v)).orValue(0)",
        "object.x.map(e, e > 1, e).sortBy(e, -e)[0]",
        "!(-5 == 5) ? 1 : 2",
    ],
)
def test_the_whole_syntax(expression: str) -> None:
    ENVIRONMENT.compile(expression)


def test_errors_show_the_place() -> None:
    with pytest.raises(CheckError) as caught:
        ENVIRONMENT.compile("object.a == 'x' &&\n\tobject.b + nonsense == 'é' + 1")
    assert caught.value.message == (
        "ERROR: <input>:2:13: undeclared reference to 'nonsense' (in container '')\n"
        " |  object.b + nonsense == 'é' + 1\n"
        " | ............^\n"
        "ERROR: <input>:2:29: found no matching overload for '_+_' applied to '(string, int)'\n"
        " |  object.b + nonsense == 'é' + 1\n"
        " | .........................\uff0e..^"
    )
    assert [(issue.line, issue.column) for issue in caught.value.issues] == [(2, 12), (2, 28)]


def test_length_counts_bytes() -> None:
    ENVIRONMENT.compile("'" + "a" * 10238 + "'")
    with pytest.raises(LengthError):
        ENVIRONMENT.compile("'" + "a" * 10239 + "'")
    ENVIRONMENT.compile("'" + "é" * 5119 + "'")
    with pytest.raises(LengthError):
        ENVIRONMENT.compile("'" + "é" * 5120 + "'")


def test_output_types() -> None:
    for output, expression in (("string", "1"), ("bool", "'a'"), ("string", "optional.of('a')")):
        with pytest.raises(CheckError, match="must evaluate to"):
            ENVIRONMENT.compile(expression, output)  # type: ignore[arg-type]
    assert ENVIRONMENT.compile("object.a", "bool").output_type == "dyn"
    assert ENVIRONMENT.compile("[object.a]").output_type == "list(dyn)"


def test_every_compile_error_has_a_kind() -> None:
    kinds = set()
    for expression in ("1 +", "1 + 'a'", "'" + "a" * 20000 + "'"):
        with pytest.raises(CompileError) as caught:
            ENVIRONMENT.compile(expression)
        kinds.add(caught.value.kind)
    assert kinds == {"parse", "type", "length"}


def test_the_grammar_is_cel_pythons_with_our_rules_in_place() -> None:
    grammar = extended_grammar()
    assert "cel-spec" in grammar  # its head
    assert grammar.count("-> ternary") == 1
