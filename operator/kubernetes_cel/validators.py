"""What is refused after checking although the types fit: constants that can only fail, and mixed literals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubernetes_cel import types
from kubernetes_cel.ast import Call, Expr, ListLiteral, Literal, MapLiteral, children
from kubernetes_cel.checker import Checked
from kubernetes_cel.declarations import Declarations
from kubernetes_cel.dispatch import target
from kubernetes_cel.errors import CheckError, EvaluationError, Issue
from kubernetes_cel.standard import compile_pattern
from kubernetes_cel.types import Type, format_type, is_equivalent


def validate(checked: Checked, declarations: Declarations) -> None:
    """Run all validators of an environment. Raises `CheckError` with everything they found."""
    found: list[tuple[int, str]] = []
    found.extend(_bad_times(checked, declarations))
    found.extend(_bad_patterns(checked))
    found.extend(_mixed_literals(checked, declarations))
    for validator in declarations.validators:
        found.extend(validator(checked, declarations))
    if found:
        source = checked.source
        raise CheckError([Issue(*source.location(node), message) for node, message in found], source.text)


def _first_literals(checked: Checked, functions: Iterable[str]) -> Iterator[tuple[Call, Literal]]:
    for node in checked.nodes:
        if isinstance(node, Call) and node.function in functions and node.args:
            first = node.args[0]
            if isinstance(first, Literal):
                yield node, first


def _bad_times(checked: Checked, declarations: Declarations) -> Iterator[tuple[int, str]]:
    """`duration` and `timestamp` of constants."""
    for call, literal in _first_literals(checked, ("duration", "timestamp")):
        bound = target(declarations.functions[call.function], (), 1)
        try:
            if bound is not None:
                bound.run(literal.value)
        except EvaluationError:
            yield literal.id, f"invalid {call.function} argument"


def _bad_patterns(checked: Checked) -> Iterator[tuple[int, str]]:
    """Constant patterns of `matches`. Of its two-argument form upstream looks at the first argument."""
    for _, literal in _first_literals(checked, ("matches",)):
        try:
            compile_pattern(str(literal.value))
        except EvaluationError:
            yield literal.id, "invalid matches argument"


def _mixed_literals(checked: Checked, declarations: Declarations) -> Iterator[tuple[int, str]]:
    """List and map literals whose elements differ in type, `dyn` being one of its own."""
    nodes: Iterable[Expr] = checked.nodes
    if any(isinstance(node, Call) and node.function in declarations.mixed for node in nodes):
        nodes = _outside(checked.root, declarations.mixed)
    for node in nodes:
        if isinstance(node, ListLiteral):
            common: Type | None = None
            for i, element in enumerate(node.elements):
                t = _element_type(checked, element, i in node.optional)
                if t is None:
                    yield element.id, "expected an optional value but found 'dyn'"
                    break
                if common is None:
                    common = t
                elif not is_equivalent(common, t):
                    yield element.id, _mismatch(common, t)
                    break
        elif isinstance(node, MapLiteral):
            yield from _mixed_entries(checked, node)


def _mixed_entries(checked: Checked, node: MapLiteral) -> Iterator[tuple[int, str]]:
    keys: Type | None = None
    values: Type | None = None
    for entry in node.entries:
        key = checked.types[entry.key.id]
        value = _element_type(checked, entry.value, entry.optional)
        if value is None:
            yield entry.value.id, "expected an optional value but found 'dyn'"
            return
        if keys is None or values is None:
            keys, values = key, value
            continue
        if not is_equivalent(keys, key):
            yield entry.key.id, _mismatch(keys, key)
        if not is_equivalent(values, value):
            yield entry.value.id, _mismatch(values, value)


def _mismatch(expected: Type, actual: Type) -> str:
    return f"expected type '{format_type(expected)}' but found '{format_type(actual)}'"


def _element_type(checked: Checked, node: Expr, optional: bool) -> Type | None:
    """The type of an element; None for an optional one of unknown type, on which upstream panics."""
    t = checked.types[node.id]
    if not optional:
        return t
    inner, is_optional = types.unwrap_optional(t)
    if is_optional:
        return inner
    return t.params[0] if t.params else None


def _outside(root: Expr, functions: frozenset[str]) -> Iterator[Expr]:
    """All nodes that are in no argument of the given functions."""
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, Call) and node.function in functions:
            continue
        yield node
        todo.extend(reversed(children(node)))
