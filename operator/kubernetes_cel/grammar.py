"""cel-python's parser, with the grammar that Kubernetes' CEL accepts.

`celpy.celparser.CELParser` brings the grammar and the LALR set-up. The subclass here redefines what differs:
optional syntax (`.?f`, `[?i]`, `[?e]`, `{?k: v}`), escaped field names, trailing commas, strict tokens
(escapes, numbers, line ends in strings), and rules that collapse, so that trees are small. It keeps its
parser to itself, where cel-python's own keeps one per process in a class attribute, and needs no raised
recursion limit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib import resources

import lark
from celpy.celparser import CELParser
from lark import Token, Tree

#: Rules and terminals that take the place of cel-python's of the same name.
_REDEFINED = {
    "expr": '?expr : conditionalor | conditionalor QUESTION conditionalor ":" expr -> ternary',
    "conditionalor": "?conditionalor : conditionaland | conditionaland (OR conditionaland)+ -> logical",
    "conditionaland": "?conditionaland : relation | relation (AND relation)+ -> logical",
    "relation": "?relation : addition | relation (RELOP | IN) addition -> binary",
    "addition": "?addition : multiplication | addition (PLUS | MINUS) multiplication -> binary",
    "multiplication": "?multiplication : unary | multiplication MULOP unary -> binary",
    "unary": "?unary : member | NOT+ member -> unary_op | MINUS+ member -> unary_op",
    "member": """?member : primary
        | member DOT _field -> select
        | member DOT IDENT LPAR [exprlist] ")" -> member_call
        | member LSQB [QUESTION] expr "]" -> index
        | member LBRACE [fieldinits] "}" -> struct_lit""",
    "primary": """?primary : literal
        | [DOT] IDENT -> ident
        | [DOT] IDENT LPAR [exprlist] ")" -> call
        | "(" expr ")" -> paren
        | LSQB [listinits] "]" -> list_lit
        | LBRACE [mapinits] "}" -> map_lit""",
    "exprlist": 'exprlist : expr ("," expr)*',
    "fieldinits": 'fieldinits : "," | fieldinit ("," fieldinit)* [","]',
    "mapinits": 'mapinits : "," | mapinit ("," mapinit)* [","]',
    "literal": """literal : UINT_LIT | FLOAT_LIT | INT_LIT | STRING_LIT | BYTES_LIT
        | BOOL_LIT | NULL_LIT""",
    "INT_LIT": "INT_LIT.1 : /0x[0-9a-fA-F]+|[0-9]+/",
    "UINT_LIT": "UINT_LIT.2 : /(?:0x[0-9a-fA-F]+|[0-9]+)[uU]/",
    "FLOAT_LIT": r"FLOAT_LIT.3 : /[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
    r"|\.[0-9]+(?:[eE][+-]?[0-9]+)?/",
    "STRING_LIT": "STRING_LIT.4 : /{string}/",
    "BYTES_LIT": "BYTES_LIT.5 : /[bB](?:{string})/",
    "WHITESPACE": r"WHITESPACE : /[\t\n\f\r ]+/",
    "COMMENT": r"COMMENT.6 : /\/\/[^\n]*/",
}

#: Rules and terminals that cel-python's grammar does not have.
_ADDED = r"""
_field    : [QUESTION] (IDENT | ESC_IDENT)
listinits : "," | optexpr ("," optexpr)* [","]
?optexpr  : expr | QUESTION expr -> optional
mapinit   : optexpr COLON expr
fieldinit : [QUESTION] (IDENT | ESC_IDENT) COLON expr
ESC_IDENT : /`[a-zA-Z0-9_.\/ -]+`/
RELOP     : "<=" | "<" | ">=" | ">" | "==" | "!="
OR        : "||"
AND       : "&&"
NOT       : "!"
MINUS     : "-"
PLUS      : "+"
MULOP     : "*" | "/" | "%"
QUESTION  : "?"
DOT       : "."
LPAR      : "("
LSQB      : "["
LBRACE    : "{"
COLON     : ":"
IN        : "in"
"""

# Quotes in character classes are written as \\x22 and \\x27: lark unescapes quotes of its own accord.
_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
_STRING = "|".join(
    (
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        r'[rR]"""[\s\S]*?"""',
        r"[rR]'''[\s\S]*?'''",
        rf'"(?:{_ESCAPE}|[^\\\x22\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\\x27\n\r])*'",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
    )
)


def extended_grammar() -> str:
    """cel-python's grammar file with our redefinitions in place. ValueError when one of them has no place
    there.
    """
    text = resources.files("celpy").joinpath("cel.lark").read_text()
    for name, definition in _REDEFINED.items():
        pattern = rf"^\??{name}(?:\.\d+)?[ \t]*:.*\n(?:[ \t]+\|.*\n)*"
        ours = definition.replace("{string}", _STRING.replace("/", r"\/")) + "\n"
        text, count = re.subn(pattern, ours.replace("\\", r"\\"), text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"cel-python's grammar has {count} definitions of {name}, not one")
    return text + _ADDED


class _SignedLiterals:
    """Joins a minus sign and the number after it into one token, where the sign is no operator.

    A single sign before a number belongs to it (`-5`, `1 - -5`, `!-5`); two or more are operators (`--5`).
    """

    always_accept = ()
    _OPERAND_ENDS = frozenset(
        (
            "IDENT",
            "ESC_IDENT",
            "RPAR",
            "RSQB",
            "RBRACE",
            "INT_LIT",
            "UINT_LIT",
            "FLOAT_LIT",
            "STRING_LIT",
            "BYTES_LIT",
            "BOOL_LIT",
            "NULL_LIT",
        )
    )

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The token stream, signs joined."""
        after_operand = False
        signs: list[Token] = []
        for token in stream:
            if token.type == "MINUS":
                if after_operand:
                    after_operand = False
                    yield token
                else:
                    signs.append(token)
                continue
            if len(signs) == 1 and token.type in ("INT_LIT", "FLOAT_LIT"):
                token = Token.new_borrow_pos(token.type, "-" + token.value, signs[0])
            else:
                yield from signs
            signs.clear()
            yield token
            after_operand = token.type in self._OPERAND_ENDS
        yield from signs


def _keyword(token: Token) -> Token:
    if token.value in ("true", "false"):
        return Token.new_borrow_pos("BOOL_LIT", token.value, token)
    return token


class KubernetesParser(CELParser):
    """cel-python's parser over the extended grammar. `parse` returns a tree or raises lark's exceptions."""

    def __init__(self) -> None:
        self._lark = lark.Lark(
            extended_grammar(),
            parser="lalr",
            lexer="basic",
            start="expr",
            g_regex_flags=re.MULTILINE,
            lexer_callbacks={"IDENT": _keyword},
            postlex=_SignedLiterals(),
            propagate_positions=False,
            maybe_placeholders=False,
        )

    def parse(self, text: str) -> Tree[Token]:
        """The syntax tree. Safe in threads: a parse keeps its state to itself."""
        return self._lark.parse(text)


@functools.cache
def kubernetes_parser() -> KubernetesParser:
    """The one parser of this process; its tables never change after this."""
    return KubernetesParser()
