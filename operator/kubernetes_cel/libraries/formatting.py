"""`"...".format([...])`: printing values by clauses such as `%s`, `%.2f` or `%x`.

The library version that Kubernetes uses prints numbers for American readers: `%f` groups thousands with
commas, `%e` writes `1.500000×10⁰³` and takes its precision as a width (an upstream quirk that answers
depend on). Texts are walked as UTF-8 bytes, since upstream does so and its messages show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import TYPE_CHECKING, Any

from kubernetes_cel import costs, types
from kubernetes_cel.ast import Call, Entry, Expr, ListLiteral, Literal, MapLiteral
from kubernetes_cel.costs import CallEstimate, CostModel, Node, SizeHint, estimated_size
from kubernetes_cel.declarations import Function, Overload
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.libraries.conversions import to_string
from kubernetes_cel.libraries.gotext import parse_int, quote
from kubernetes_cel.passes import Work, drive
from kubernetes_cel.types import Type
from kubernetes_cel.values import MAX_INT, Duration, ListView, MapView, Timestamp, Uint, type_name

if TYPE_CHECKING:
    from kubernetes_cel.checker import Checked
    from kubernetes_cel.declarations import Declarations

_DEFAULT_PRECISION = 6
_MAX_TEXT = 1 << 24
#: Elements of lists and maps that one clause prints.
_MAX_ELEMENTS = 1 << 18
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_EXACT = Context(prec=5000, rounding=ROUND_HALF_EVEN)

_STRING = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
    "and timestamps, was given {}"
)
_DECIMAL = "decimal clause can only be used on integers, was given {}"
_FIXED = "fixed-point clause can only be used on doubles, was given {}"
_SCIENTIFIC = "scientific clause can only be used on doubles, was given {}"
_BINARY = "only integers and bools can be formatted as binary, was given {}"
_HEX = "only integers, byte buffers, and strings can be formatted as hex, was given {}"
_OCTAL = "octal clause can only be used on integers, was given {}"
#: clause -> (message for a wrong type, kinds of types a constant format accepts)
_CLAUSES: dict[str, tuple[str, frozenset[str]]] = {
    "s": (
        _STRING,
        frozenset(
            (
                *(types.LIST, types.MAP, types.INT, types.UINT, types.DOUBLE, types.BOOL, types.STRING),
                *(types.TIMESTAMP, types.BYTES, types.DURATION, types.TYPE, types.NULL),
            )
        ),
    ),
    "d": (_DECIMAL, frozenset((types.INT, types.UINT))),
    "f": (_FIXED, frozenset((types.DOUBLE, types.STRING))),
    "e": (_SCIENTIFIC, frozenset((types.DOUBLE, types.STRING))),
    "b": (_BINARY, frozenset((types.INT, types.UINT, types.BOOL))),
    "x": (_HEX, frozenset((types.INT, types.UINT, types.STRING, types.BYTES))),
    "X": (_HEX, frozenset((types.INT, types.UINT, types.STRING, types.BYTES))),
    "o": (_OCTAL, frozenset((types.INT, types.UINT))),
}


class FormatError(Exception):
    """A format that cannot be used; `node` is the id of the argument at fault, or None for the whole call."""

    def __init__(self, message: str, node: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node


#: (clause, precision or None, index of the argument) -> text
_Emit = Callable[[str, "int | None", int], str]


def _walk(text: str, arguments: int, emit: _Emit) -> tuple[str, int]:
    """Replace the clauses of a format; the text and the number of clauses. Raises `FormatError`."""
    data = text.encode("utf-8", "surrogatepass")
    out = bytearray()
    at = used = 0
    while at < len(data):
        if data[at] != 0x25:
            following = data.find(b"%", at)
            following = len(data) if following < 0 else following
            out += data[at:following]
            at = following
            continue
        if data[at + 1 : at + 2] == b"%":
            out.append(0x25)
            at += 2
            continue
        if at + 1 >= len(data):
            raise FormatError("unexpected end of string")
        if used >= arguments:
            raise FormatError(f"index {used} out of range")
        clause, precision, at = _clause(data, at + 1)
        try:
            out += emit(clause, precision, used).encode("utf-8", "surrogatepass")
        except FormatError as e:
            raise FormatError(f"error during formatting: {e.message}", e.node) from None
        if len(out) > _MAX_TEXT:
            raise FormatError(f"result of {len(out)} bytes is too large")
        used += 1
    return out.decode("utf-8", "surrogatepass"), used


def _clause(data: bytes, at: int) -> tuple[str, int | None, int]:
    """Clause letter, precision, and where the text goes on."""
    precision: int | None = None
    if data[at] == 0x2E:
        start = at = at + 1
        while data[at : at + 1].isdigit():
            at += 1
        problem = "could not parse formatting clause: error while parsing precision: "
        if at >= len(data):
            raise FormatError(problem + "could not find end of precision specifier")
        digits = data[start:at].decode()
        precision = parse_int(digits, 0, MAX_INT)
        if precision is None:
            raise FormatError(f'{problem}error while converting precision to integer: parsing "{digits}"')
    letter = chr(data[at])
    if letter not in _CLAUSES:
        raise FormatError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    return letter, precision, at + 1


_PLAIN = frozenset((int, Uint, float, bool, bytes, Timestamp, Duration, Type))


_CONTAINERS = (list, ListView, dict, MapView)


class _Printer:
    """Prints one argument; stops when lists and maps have too many elements or their text gets too long."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _MAX_ELEMENTS

    def text(self, value: Any) -> str:
        """A value by itself."""
        kind = type(value)
        if kind is str:
            return str(value)
        if isinstance(value, _CONTAINERS):
            return drive(self._container(value))
        if value is None:
            return "null"
        if kind in _PLAIN:
            return _plain(value)
        raise FormatError(_STRING.format(type_name(value)))

    def _element(self, value: Any) -> str:
        """A plain value inside a list or map, as a CEL literal."""
        kind = type(value)
        if kind is str:
            return quote(value)
        if kind is bytes:
            return "b" + quote(_plain(value))
        if kind is float:
            if math.isnan(value):
                return '"NaN"'
            if math.isinf(value):
                return '"+Inf"' if value > 0 else '"-Inf"'
            return f"{value:.6f}"
        if kind is Timestamp:
            return f'timestamp("{_plain(value)}")'
        if kind is Duration:
            return f'duration("{_plain(value)}")'
        if value is None or kind in _PLAIN:
            return self.text(value)
        raise FormatError(f"no formatting function for {type_name(value)}")

    def _count(self, size: int) -> None:
        self._left -= 1
        if self._left < 0 or size > _MAX_TEXT:
            raise FormatError("the result is too large")

    def _container(self, value: Any) -> Work[str]:
        return self._list(value) if isinstance(value, list | ListView) else self._map(value)

    def _list(self, items: Any) -> Work[str]:
        parts: list[str] = []
        size = 0
        for item in items:
            part = (yield self._container(item)) if isinstance(item, _CONTAINERS) else self._element(item)
            size += len(part) + 2
            self._count(size)
            parts.append(part)
        return f"[{', '.join(parts)}]"

    def _map(self, value: Any) -> Work[str]:
        parts: list[tuple[bytes, str]] = []
        size = 0
        for key, item in value.items():
            if type(key) not in (str, bool, int, Uint):
                raise FormatError(f"no formatting function for map key of type {type_name(key)}")
            name = self._element(key)
            element = (yield self._container(item)) if isinstance(item, _CONTAINERS) else self._element(item)
            part = f"{name}:{element}"
            size += len(part) + 2
            self._count(size)
            parts.append((name.encode("utf-8", "surrogatepass"), part))
        parts.sort(key=lambda part: part[0])
        return f"{{{', '.join(part for _, part in parts)}}}"


def _plain(value: Any) -> str:
    try:
        return to_string(value)
    except EvaluationError as e:
        raise FormatError(f'could not convert argument "{e.message}" to string') from None


def _as_double(value: Any, message: str) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise FormatError(message.format(type_name(value)))


def _fixed(value: Any, precision: int | None) -> str:
    number = _as_double(value, _FIXED)
    special = _special(number)
    if special is not None:
        return special
    wanted = _DEFAULT_PRECISION if precision is None else precision
    exact = Decimal(number)
    places = -int(exact.as_tuple().exponent)
    if places > wanted:
        exact = exact.quantize(Decimal(1).scaleb(-wanted), context=_EXACT)
    whole, _, fraction = f"{abs(exact):,f}".partition(".")
    # The printer keeps the wanted number of places in one byte, so above 255 only some zeros are padded.
    fraction = fraction.rstrip("0").ljust(wanted % 256, "0")
    sign = "-" if exact.is_signed() and not exact.is_zero() else ""
    return sign + whole + ("." + fraction if fraction else "")


def _scientific(value: Any, precision: int | None) -> str:
    number = _as_double(value, _SCIENTIFIC)
    text = _special(number)
    if text is None:
        mantissa, _, exponent = f"{number:.6e}".partition("e")
        raised = f"{int(exponent):03d}" if int(exponent) < 0 else f"{int(exponent):02d}"
        if number == 0:
            mantissa = mantissa.lstrip("-")
        text = f"{mantissa}×10{raised.translate(_SUPERSCRIPT)}"
    width = (_DEFAULT_PRECISION if precision is None else precision) % 65536
    return text.rjust(width)


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return None


def _integer(value: Any, message: str) -> int:
    if type(value) is int or type(value) is Uint:
        return int(value)
    raise FormatError(message.format(type_name(value)))


def _emit(value: Any, clause: str, precision: int | None) -> str:
    if clause == "s":
        return _Printer().text(value)
    if clause == "d":
        return str(_integer(value, _DECIMAL))
    if clause == "f":
        return _fixed(value, precision)
    if clause == "e":
        return _scientific(value, precision)
    if clause == "b":
        return str(int(value)) if type(value) is bool else f"{_integer(value, _BINARY):b}"
    if clause == "o":
        return f"{_integer(value, _OCTAL):o}"
    if type(value) is str:
        value = value.encode("utf-8", "surrogatepass")
    text = value.hex() if type(value) is bytes else f"{_integer(value, _HEX):x}"
    return text.upper() if clause == "X" else text


def string_format(text: str, arguments: Any) -> str:
    """`text.format(arguments)`. Arguments beyond the last clause are ignored."""
    try:
        return _walk(
            text, len(arguments), lambda clause, precision, index: _emit(arguments[index], clause, precision)
        )[0]
    except FormatError as e:
        raise EvaluationError(e.message) from None


def check_format(text: str, arguments: Sequence[Expr], type_of: Callable[[int], Type]) -> None:
    """Check a constant format against the literal list of its arguments; raises `FormatError`.

    `type_of` gives the checked type of a node by its id.
    """

    def emit(clause: str, precision: int | None, index: int) -> str:
        message, kinds = _CLAUSES[clause]
        bad = _unfit(arguments[index], kinds, type_of, deep=clause == "s")
        if bad is not None:
            raise FormatError(message.format(type_of(bad).name), bad)
        return ""

    _, used = _walk(text, len(arguments), emit)
    if len(arguments) > used:
        raise FormatError(
            f"too many arguments supplied to string.format (expected {used}, got {len(arguments)})"
        )


def check_formats(checked: Checked, _: Declarations) -> Iterator[tuple[int, str]]:
    """Validator: all calls of `format` with a constant format and a literal list of arguments."""
    for node in checked.nodes:
        if not isinstance(node, Call) or node.function != "format" or len(node.args) != 1:
            continue
        text, arguments = node.target, node.args[0]
        if isinstance(text, Literal) and type(text.value) is str and isinstance(arguments, ListLiteral):
            try:
                check_format(text.value, arguments.elements, checked.types.__getitem__)
            except FormatError as problem:
                yield node.id if problem.node is None else problem.node, problem.message


def _unfit(node: Expr, kinds: frozenset[str], type_of: Callable[[int], Type], *, deep: bool) -> int | None:
    """The id of the first node whose type no clause of this kind prints, or None."""
    kind = type_of(node.id).kind
    if kind != types.DYN and kind not in kinds:
        return node.id
    if deep and isinstance(node, ListLiteral):
        parts: list[Expr] = node.elements
    elif deep and isinstance(node, MapLiteral):
        parts = [part for entry in node.entries for part in _entry(entry)]
    else:
        return None
    for part in parts:
        bad = _unfit(part, kinds, type_of, deep=True)
        if bad is not None:
            return bad
    return None


def _entry(entry: Entry) -> tuple[Expr, Expr]:
    return entry.key, entry.value


def _estimate(hint: SizeHint, _: str, target: Node | None, __: Sequence[Node]) -> CallEstimate | None:
    if target is None:
        return None
    return CallEstimate(estimated_size(hint, target).scaled(costs.TRAVERSAL_FACTOR))


def _actual(overload: str, args: Sequence[Any], _: Any) -> int | None:
    return costs.traversal(costs.plain_size(args[0])) if overload else None


FORMAT = Function(
    "format",
    (
        Overload(
            "string_format",
            (types.string, types.list_dyn),
            types.string,
            string_format,
            member=True,
            variadic=True,
        ),
    ),
    cost=CostModel(_estimate, _actual),
    grows=True,
)
