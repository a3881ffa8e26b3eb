"""The abstract syntax tree: what parsing (with macros expanded) yields and every later pass reads.

Every node has an id that is unique in its tree; places in the text, types and resolved overloads are kept in
tables by id. The checker rewrites names in place (qualified names), so a tree belongs to one compilation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(slots=True)
class Literal:
    """A constant: None, bool, int, Uint, float, str or bytes."""

    id: int
    value: Any


@dataclass(slots=True)
class Ident:
    """A name; a leading dot means the root scope."""

    id: int
    name: str


@dataclass(slots=True)
class Select:
    """`operand.field`, or `has(operand.field)` when `test_only`."""

    id: int
    operand: Expr
    field: str
    test_only: bool = False


@dataclass(slots=True)
class Call:
    """A call of a function or operator; `target` is the receiver, or None."""

    id: int
    function: str
    target: Expr | None
    args: list[Expr]


@dataclass(slots=True)
class ListLiteral:
    """`[a, ?b]`; `optional` holds the indexes written with a question mark."""

    id: int
    elements: list[Expr]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True)
class Entry:
    """One `key: value` of a map literal."""

    id: int
    key: Expr
    value: Expr
    optional: bool = False


@dataclass(slots=True)
class MapLiteral:
    """`{k: v, ?k: v}`."""

    id: int
    entries: list[Entry]


@dataclass(slots=True)
class Field:
    """One `name: value` of a struct literal."""

    id: int
    name: str
    value: Expr
    optional: bool = False


@dataclass(slots=True)
class StructLiteral:
    """`pkg.Type{field: value}`."""

    id: int
    name: str
    fields: list[Field]


@dataclass(slots=True)
class Comprehension:
    """What all macros over ranges become: fold `iter_range` into `accu_var` while `condition` holds.

    `iter_var2` is empty for one-variable macros. `macro` names the macro this came from, for the code
    generator.
    """

    id: int
    iter_range: Expr
    iter_var: str
    iter_var2: str
    accu_var: str
    accu_init: Expr
    condition: Expr
    step: Expr
    result: Expr
    macro: str = ""


Expr: TypeAlias = Literal | Ident | Select | Call | ListLiteral | MapLiteral | StructLiteral | Comprehension


@dataclass(slots=True)
class Source:
    """The text, and for each node id the offset (in code points) where the node is reported."""

    text: str
    offsets: dict[int, int] = field(default_factory=dict)
    _line_starts: list[int] = field(default_factory=list)

    def location(self, node: int) -> tuple[int, int]:
        """1-based line and 0-based column of a node."""
        return self.locate(self.offsets.get(node, 0))

    def locate(self, offset: int) -> tuple[int, int]:
        """1-based line and 0-based column of an offset."""
        line = self.text.count("\n", 0, offset) + 1
        return line, offset - (self.text.rfind("\n", 0, offset) + 1)


def children(node: Expr) -> list[Expr]:
    """Direct subexpressions, in order of evaluation for literals and calls, in order of text otherwise."""
    if isinstance(node, Call):
        return ([node.target] if node.target is not None else []) + node.args
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, ListLiteral):
        return list(node.elements)
    if isinstance(node, MapLiteral):
        return [part for entry in node.entries for part in (entry.key, entry.value)]
    if isinstance(node, StructLiteral):
        return [entry.value for entry in node.fields]
    if isinstance(node, Comprehension):
        return [node.iter_range, node.accu_init, node.condition, node.step, node.result]
    return []


def walk(root: Expr) -> list[Expr]:
    """All nodes of a tree, parents first."""
    out: list[Expr] = []
    todo = [root]
    while todo:
        node = todo.pop()
        out.append(node)
        todo.extend(reversed(children(node)))
    return out
