"""From text to tree: bounds, cel-python's parser, then nodes with ids and places, macros expanded.

Bounds are upstream's: the text's length, and a depth of 250 counted twice, as upstream does (nested `expr`
rules of the grammar, and nested operators, selections, indexes and member calls of the tree). Parsing itself
is a loop (LALR), and trees are built by a loop as well, so hostile nesting never meets Python's recursion
limit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from lark import Token, Tree
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from kubernetes_cel import literals
from kubernetes_cel.ast import (
    Call,
    Entry,
    Expr,
    Field,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    Source,
    StructLiteral,
)
from kubernetes_cel.declarations import Macro
from kubernetes_cel.errors import Issue, ParseError
from kubernetes_cel.grammar import kubernetes_parser
from kubernetes_cel.macros import Expander, MacroError
from kubernetes_cel.values import MAX_INT, MAX_UINT, MIN_INT, Uint

#: Nesting that upstream still parses.
MAX_DEPTH = 250
#: Nodes of one tree. Macros that copy their receiver double it each time they are chained.
MAX_NODES = 100_000

#: Identifiers nobody may use as variables or functions.
RESERVED = frozenset(
    (
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    )
)
_OPERATORS = {
    "||": "_||_",
    "&&": "_&&_",
    "<": "_<_",
    "<=": "_<=_",
    ">": "_>_",
    ">=": "_>=_",
    "==": "_==_",
    "!=": "_!=_",
    "in": "@in",
    "+": "_+_",
    "-": "_-_",
    "*": "_*_",
    "/": "_/_",
    "%": "_%_",
}
#: Tree nodes that count for the depth of the tree.
_DEEP = frozenset(("ternary", "binary", "select", "member_call", "index"))

_Tree: TypeAlias = Tree[Token]
_Build: TypeAlias = Generator[_Tree, Expr, Expr]
Macros: TypeAlias = Mapping[tuple[str, int, bool], Macro]


def parse(text: str, macros: Macros) -> tuple[Expr, Source]:
    """The tree of an expression, macros expanded. Raises `ParseError`."""
    source = Source(text)
    try:
        tree = kubernetes_parser().parse(text)
    except UnexpectedInput as problem:
        raise ParseError([_syntax_issue(problem, source)], text) from None
    except LarkError as problem:
        raise ParseError([Issue(1, 0, f"Syntax error: {problem}")], text) from None
    _check_depth(tree, source)
    return _Builder(source, macros).build(tree), source


def _syntax_issue(problem: UnexpectedInput, source: Source) -> Issue:
    if isinstance(problem, UnexpectedToken):
        token = problem.token
        if token.type == "$END":
            return Issue(*source.locate(len(source.text)), "Syntax error: unexpected end of expression")
        return Issue(*source.locate(token.start_pos or 0), f"Syntax error: unexpected '{token.value}'")
    position = problem.pos_in_stream or 0
    if isinstance(problem, UnexpectedCharacters):
        found = source.text[position : position + 1]
        return Issue(*source.locate(position), f"Syntax error: token recognition error at: '{found}'")
    return Issue(*source.locate(position), "Syntax error")


def _check_depth(tree: _Tree, source: Source) -> None:
    todo = [(tree, 1, 0)]
    while todo:
        node, expressions, depth = todo.pop()
        kind = node.data
        if kind in _DEEP:
            depth += 1
        if kind == "paren" or kind == "exprlist" or kind == "listinits" or kind == "index":
            expressions += 1
        if depth > MAX_DEPTH:
            raise ParseError([Issue(-1, -1, "max recursion depth exceeded")], source.text)
        if expressions > MAX_DEPTH:
            message = f"expression recursion limit exceeded: {MAX_DEPTH}"
            raise ParseError([Issue(-1, -1, message)], source.text)
        last = len(node.children) - 1
        for i, child in enumerate(node.children):
            if isinstance(child, Tree):
                # The receiver of an index is no nested expression, the last branch of a ternary is one.
                inner = expressions
                if kind == "index" and i == 0:
                    inner -= 1
                elif (kind == "ternary" and i == last) or kind == "mapinit" or kind == "fieldinit":
                    inner += 1
                todo.append((child, inner, depth))


class _Builder:
    """Builds nodes of one text. Each rule of the grammar has a method; methods that need a child yield it."""

    def __init__(self, source: Source, macros: Macros) -> None:
        self._source = source
        self._macros = macros
        self._next = 1
        self._rules: dict[str, Callable[[list[Any]], _Build]] = {
            "ternary": self._ternary,
            "logical": self._logical,
            "binary": self._binary,
            "unary_op": self._unary,
            "select": self._select,
            "member_call": self._member_call,
            "index": self._index,
            "struct_lit": self._struct,
            "call": self._call,
            "list_lit": self._list,
            "map_lit": self._map,
        }

    def build(self, tree: _Tree) -> Expr:
        """The node of a tree. A loop instead of recursion: a method's `yield subtree` comes back as its
        node.
        """
        pending: list[_Build] = []
        while True:
            while tree.data == "paren":
                tree = tree.children[0]  # type: ignore[assignment]
            node: Any = None
            if tree.data == "literal":
                node = self._literal(tree.children)
            elif tree.data == "ident":
                node = self._ident(tree.children)
            else:
                pending.append(self._rules[tree.data](tree.children))
            while True:
                if not pending:
                    return node  # type: ignore[no-any-return]
                try:
                    tree = pending[-1].send(node)
                    break
                except StopIteration as done:
                    pending.pop()
                    node = done.value

    # -- ids, places, errors

    def _id(self, offset: int) -> int:
        new = self._next
        if new > MAX_NODES:
            raise ParseError(
                [Issue(1, 0, "expression is too large once its macros are expanded")], self._source.text
            )
        self._next = new + 1
        self._source.offsets[new] = offset
        return new

    def _at(self, token: Token) -> int:
        return self._id(token.start_pos or 0)

    def _fail(self, offset: int, message: str) -> ParseError:
        return ParseError([Issue(*self._source.locate(offset), message)], self._source.text)

    # -- leaves

    def _literal(self, children: list[Any]) -> Expr:
        token: Token = children[0]
        text = token.value
        offset = token.start_pos or 0
        value: Any
        kind = token.type
        if kind == "INT_LIT":
            value = _integer(text)
            if not MIN_INT <= value <= MAX_INT:
                raise self._fail(offset, "invalid int literal")
        elif kind == "UINT_LIT":
            value = Uint(_integer(text[:-1]))
            if value > MAX_UINT:
                raise self._fail(offset, "invalid uint literal")
        elif kind == "FLOAT_LIT":
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise self._fail(offset, "invalid double literal")
        elif kind == "BOOL_LIT":
            value = text == "true"
        elif kind == "NULL_LIT":
            value = None
        else:
            try:
                value = literals.unquote(text) if kind == "STRING_LIT" else literals.unquote_bytes(text[1:])
            except ValueError as problem:
                raise self._fail(offset, str(problem)) from None
        return Literal(self._id(offset), value)

    def _ident(self, children: list[Any]) -> Expr:
        name = self._name(children)
        return Ident(self._at(children[-1]), name)

    def _name(self, tokens: list[Any]) -> str:
        name: str = tokens[-1].value
        if name in RESERVED:
            raise self._fail(tokens[-1].start_pos or 0, f"reserved identifier: {name}")
        return "." + name if len(tokens) == 2 else name

    # -- operators

    def _ternary(self, children: list[Any]) -> _Build:
        condition = yield children[0]
        node = self._at(children[1])
        yes = yield children[2]
        no = yield children[3]
        return Call(node, "_?_:_", None, [condition, yes, no])

    def _logical(self, children: list[Any]) -> _Build:
        terms: list[Expr] = []
        ids: list[int] = []
        for child in children:
            if isinstance(child, Token):
                ids.append(self._at(child))
            else:
                terms.append((yield child))
        return _balanced(_OPERATORS[children[1].value], terms, ids, 0, len(ids) - 1)

    def _binary(self, children: list[Any]) -> _Build:
        left = yield children[0]
        node = self._at(children[1])
        right = yield children[2]
        return Call(node, _OPERATORS[children[1].value], None, [left, right])

    def _unary(self, children: list[Any]) -> _Build:
        signs = children[:-1]
        operand = yield children[-1]
        if len(signs) % 2 == 0:
            return operand
        return Call(self._at(signs[0]), "!_" if signs[0].type == "NOT" else "-_", None, [operand])

    # -- members

    def _select(self, children: list[Any]) -> _Build:
        operand = yield children[0]
        token = children[-1]
        field = token.value[1:-1] if token.type == "ESC_IDENT" else token.value
        node = self._at(children[1])
        if len(children) == 4:  # .?
            return Call(node, "_?._", None, [operand, Literal(self._at(token), field)])
        return Select(node, operand, field)

    def _index(self, children: list[Any]) -> _Build:
        operand = yield children[0]
        node = self._at(children[1])
        index = yield children[-1]
        return Call(node, "_[?_]" if len(children) == 4 else "_[_]", None, [operand, index])

    def _member_call(self, children: list[Any]) -> _Build:
        target = yield children[0]
        function = children[2].value
        node = self._at(children[3])
        args = yield from self._arguments(children[4:])
        return self._expand(node, function, target, args)

    def _call(self, children: list[Any]) -> _Build:
        tokens = [child for child in children if isinstance(child, Token)]
        function = self._name(tokens[:-1])
        node = self._at(tokens[-1])
        args = yield from self._arguments(children[len(tokens) :])
        return self._expand(node, function, None, args)

    def _arguments(self, rest: list[Any]) -> Generator[_Tree, Expr, list[Expr]]:
        args: list[Expr] = []
        for child in rest[0].children if rest else ():
            args.append((yield child))
        return args

    def _expand(self, node: int, function: str, target: Expr | None, args: list[Expr]) -> Expr:
        macro = self._macros.get((function, len(args), target is not None))
        if macro is not None:
            offset = self._source.offsets[node]
            try:
                expanded = macro.expand(Expander(lambda: self._id(offset)), target, args)
            except MacroError as problem:
                raise self._fail(self._source.offsets[problem.node], problem.message) from None
            if expanded is not None:
                return expanded
        return Call(node, function, target, args)

    # -- aggregates

    def _list(self, children: list[Any]) -> _Build:
        node = self._at(children[0])
        elements: list[Expr] = []
        optional: set[int] = set()
        for child in children[1].children if len(children) > 1 else ():
            if child.data == "optional":
                optional.add(len(elements))
                child = child.children[1]
            elements.append((yield child))
        return ListLiteral(node, elements, frozenset(optional))

    def _map(self, children: list[Any]) -> _Build:
        node = self._at(children[0])
        entries: list[Entry] = []
        for init in children[1].children if len(children) > 1 else ():
            key_tree, colon, value_tree = init.children
            entry = self._at(colon)
            optional = key_tree.data == "optional"
            key = yield key_tree.children[1] if optional else key_tree
            value = yield value_tree
            entries.append(Entry(entry, key, value, optional))
        return MapLiteral(node, entries)

    def _struct(self, children: list[Any]) -> _Build:
        name = self._dotted(children[0])
        if name is None:
            raise self._fail(children[1].start_pos or 0, "Syntax error: unexpected '{'")
        node = self._at(children[1])
        fields: list[Field] = []
        for init in children[2].children if len(children) > 2 else ():
            tokens, value_tree = init.children[:-1], init.children[-1]
            field = self._at(tokens[-1])
            label = tokens[-2].value.strip("`")
            value = yield value_tree
            fields.append(Field(field, label, value, tokens[0].type == "QUESTION"))
        return StructLiteral(node, name, fields)

    def _dotted(self, tree: _Tree) -> str | None:
        parts: list[str] = []
        while tree.data == "select":
            if len(tree.children) != 3 or tree.children[2].type != "IDENT":  # type: ignore[union-attr]
                return None
            parts.append(str(tree.children[2]))
            tree = tree.children[0]  # type: ignore[assignment]
        if tree.data != "ident":
            return None
        tokens = tree.children
        head = "." + str(tokens[1]) if len(tokens) == 2 else str(tokens[0])
        return ".".join([head, *reversed(parts)])


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.removeprefix("-")
    if digits.startswith("0x"):
        return sign * int(digits[2:], 16)
    return sign * (int(digits) if len(digits.lstrip("0")) <= 20 else MAX_UINT + 1)


def _balanced(function: str, terms: list[Expr], ids: list[int], low: int, high: int) -> Expr:
    """A balanced tree of a chain of && or ||, as upstream rearranges it."""
    middle = (low + high + 1) // 2
    left = terms[middle] if middle == low else _balanced(function, terms, ids, low, middle - 1)
    right = terms[middle + 1] if middle == high else _balanced(function, terms, ids, middle + 1, high)
    return Call(ids[middle], function, None, [left, right])
