"""Static types: what the checker reasons with, and what `type(x)` returns at run time.

A type is a kind, a name and parameters. Two types are equal when all three are; names matter for objects,
opaque types and type parameters. Source of the rules: the CEL language definition (gradual typing), as cel-go
applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

DYN, ANY, ERROR, TYPE_PARAM = "dyn", "any", "error", "type_param"
NULL, BOOL, INT, UINT, DOUBLE, STRING, BYTES = "null", "bool", "int", "uint", "double", "string", "bytes"
DURATION, TIMESTAMP, LIST, MAP, TYPE, STRUCT, OPAQUE = (
    "duration",
    "timestamp",
    "list",
    "map",
    "type",
    "struct",
    "opaque",
)


class Type:
    """`kind` is one of the constants above, `name` the run-time type name, `params` the type parameters.

    Immutable. Types compare by a text made once, so that comparing deep ones needs no recursion; `generic`
    tells whether a type parameter is anywhere inside. `nullable` marks protobuf's wrappers of primitives
    (`google.protobuf.Int32Value`): equal to the type they wrap, as upstream has it, and null fits them, too.
    """

    __slots__ = ("_text", "generic", "kind", "name", "nullable", "params")

    def __init__(
        self, kind: str, name: str, params: tuple[Type, ...] = (), *, nullable: bool = False
    ) -> None:
        self.kind = kind
        self.name = name
        self.params = params
        self.nullable = nullable
        self.generic: bool = kind == TYPE_PARAM or any(p.generic for p in params)
        self._text: str = f"{kind} {name}({','.join([p._text for p in params])})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Type) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Type({self._text})"

    def __str__(self) -> str:
        """As upstream prints declared types: `list(string)`, `google.protobuf.Timestamp`, `<T>`."""
        return _written(self, lambda t: f"<{t.name}>" if t.kind == TYPE_PARAM else None)


_SHORT = {ANY: "any", DURATION: "duration", ERROR: "!error!", NULL: "null", TIMESTAMP: "timestamp"}


def format_type(t: Type) -> str:
    """As the checker's messages print types: like `str`, with short names for well-known types."""
    return _written(t, lambda t: _SHORT.get(t.kind))


def _written(t: Type, name: Callable[[Type], str | None]) -> str:
    """The type as text, however deep; `name` has another name for some types, parameters and all."""
    parts: list[str] = []
    todo: list[Type | str] = [t]
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            parts.append(part)
        elif (known := name(part)) is not None:
            parts.append(known)
        elif not part.params:
            parts.append(f"wrapper({part.name})" if part.nullable else part.name)
        else:
            inner = [piece for param in part.params for piece in (", ", param)]
            todo.extend(reversed([f"{part.name}(", *inner[1:], ")"]))
    return "".join(parts)


dyn = Type(DYN, "dyn")
any_ = Type(ANY, "google.protobuf.Any")
error = Type(ERROR, "error")
null = Type(NULL, "null_type")
bool_ = Type(BOOL, "bool")
int_ = Type(INT, "int")
uint = Type(UINT, "uint")
double = Type(DOUBLE, "double")
string = Type(STRING, "string")
bytes_ = Type(BYTES, "bytes")
duration = Type(DURATION, "google.protobuf.Duration")
timestamp = Type(TIMESTAMP, "google.protobuf.Timestamp")
type_ = Type(TYPE, "type")


def list_of(element: Type) -> Type:
    """list(element)."""
    return Type(LIST, "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """map(key, value)."""
    return Type(MAP, "map", (key, value))


def wrapper_of(primitive: Type) -> Type:
    """wrapper(primitive): a primitive type that may be null."""
    return Type(primitive.kind, primitive.name, nullable=True)


def optional_of(value: Type) -> Type:
    """optional_type(value)."""
    return Type(OPAQUE, "optional_type", (value,))


def type_of_type(value: Type) -> Type:
    """type(value): the type of a type expression."""
    return Type(TYPE, "type", (value,))


def opaque(name: str, *params: Type) -> Type:
    """An opaque type of a library, such as `net.IP`."""
    return Type(OPAQUE, name, params)


def struct(name: str) -> Type:
    """An object type; its fields, if it has any, are in the environment's `fields` table."""
    return Type(STRUCT, name)


def param(name: str) -> Type:
    """A type parameter of an overload, such as `T`."""
    return Type(TYPE_PARAM, name)


list_dyn = list_of(dyn)
map_dyn = map_of(dyn, dyn)


def is_dyn(t: Type) -> bool:
    """Whether the type says nothing."""
    return t.kind == DYN or t.kind == ANY


def is_dyn_or_error(t: Type) -> bool:
    """Whether the type says nothing, or an error was already reported for it."""
    return t.kind == DYN or t.kind == ANY or t.kind == ERROR


def unwrap_optional(t: Type) -> tuple[Type, bool]:
    """The value type of an optional type and True, else the type itself and False."""
    if t.kind == OPAQUE and t.name == "optional_type":
        return t.params[0], True
    return t, False


def param_names(types: Iterator[Type] | tuple[Type, ...]) -> list[str]:
    """Names of all type parameters in the given types, each once, in order of appearance."""
    found: dict[str, None] = {}
    todo = list(types)[::-1]
    while todo:
        t = todo.pop()
        if not t.generic:
            continue
        if t.kind == TYPE_PARAM:
            found[t.name] = None
        todo.extend(t.params[::-1])
    return list(found)


def replace_params(t: Type, replacement: Callable[[str], Type]) -> Type:
    """The type with each type parameter replaced."""
    if t.kind == TYPE_PARAM:
        return replacement(t.name)
    if not t.generic:
        return t
    return Type(t.kind, t.name, tuple(replace_params(p, replacement) for p in t.params))


def is_equivalent(a: Type, b: Type) -> bool:
    """Equality that ignores the names of type parameters."""
    if a == b:
        return True
    if a.kind != b.kind or len(a.params) != len(b.params):
        return False
    if a.kind != TYPE_PARAM and a.name != b.name:
        return False
    return all(is_equivalent(p, q) for p, q in zip(a.params, b.params, strict=True))
