"""Run-time values: plain JSON values where possible, small classes for the rest.

| CEL                 | Python                                              |
|---------------------|-----------------------------------------------------|
| null, bool, string  | None, bool, str                                     |
| int, uint, double   | int (int64 range), `Uint`, float                    |
| bytes               | bytes                                               |
| list                | list, or `ListView` where CEL builds one lazily     |
| map                 | dict with string keys, or a `MapView`               |
| duration, timestamp | `Duration`, `Timestamp`                             |
| optional_type       | `Optional`                                          |
| type                | `types.Type`                                        |
| opaque library types| anything with `cel_type` and `cel_equal` (`Opaque`) |

Types are told apart exactly (`type(v) is int`), because Python's bool is an int and its 1 equals its 1.0.
Values are never changed once an expression can see them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from kubernetes_cel import types
from kubernetes_cel.errors import EvaluationAborted, EvaluationError, no_such_overload
from kubernetes_cel.types import Type

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1


#: Elements that one look at a value may visit. Lists can be longer than this only by doubling themselves;
#: upstream would not come back from such a look either.
MAX_VISITED: Final = 5_000_000


def too_large() -> EvaluationAborted:
    """The end of an evaluation that looks at more elements than could ever be paid for."""
    return EvaluationAborted("the evaluation looks at a value that is too large")


class Uint(int):
    """An unsigned integer. Equal and hash-equal to the int of the same value; `type()` tells them apart."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class Missing:
    """The one value `MISSING`: what a lookup returns for "not there", since None is CEL's null."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@runtime_checkable
class Opaque(Protocol):
    """What a library's own value classes provide. `cel_size() -> int` is optional."""

    cel_type: ClassVar[Type]

    def cel_equal(self, other: Any) -> bool:
        """Whether CEL's == holds; `other` can be any value."""
        ...


class Optional:
    """optional_type: a value or none."""

    __slots__ = ("has_value", "value")
    cel_type: ClassVar[Type] = types.optional_of(types.dyn)

    def __init__(self, value: Any = MISSING) -> None:
        self.value = value
        self.has_value = value is not MISSING

    def get(self) -> Any:
        """The value; an `EvaluationError` when there is none."""
        if not self.has_value:
            raise EvaluationError("optional.none() dereference")
        return self.value

    def cel_equal(self, other: Any) -> bool:
        """Equal when both are none, or both have equal values."""
        if type(other) is not Optional or self.has_value is not other.has_value:
            return False
        return not self.has_value or equal(self.value, other.value)

    def __repr__(self) -> str:
        return f"optional.of({self.value!r})" if self.has_value else "optional.none()"


NONE: Final = Optional()


class Duration:
    """A signed time span in whole nanoseconds, within int64."""

    __slots__ = ("nanos",)
    cel_type: ClassVar[Type] = types.duration

    def __init__(self, nanos: int) -> None:
        self.nanos = nanos

    def cel_equal(self, other: Any) -> bool:
        """Same length."""
        return type(other) is Duration and self.nanos == other.nanos

    def __repr__(self) -> str:
        return f"Duration({self.nanos})"


class Timestamp:
    """A point in time: seconds since 1970 UTC, nanoseconds 0..999999999, and the offset it was written with.

    The offset (seconds east of UTC) matters for printing only.
    """

    __slots__ = ("nanos", "offset", "seconds")
    cel_type: ClassVar[Type] = types.timestamp
    MIN_SECONDS: ClassVar[int] = -62135596800
    MAX_SECONDS: ClassVar[int] = 253402300799

    def __init__(self, seconds: int, nanos: int = 0, offset: int = 0) -> None:
        self.seconds = seconds
        self.nanos = nanos
        self.offset = offset

    def cel_equal(self, other: Any) -> bool:
        """Same instant, whatever the offsets."""
        return type(other) is Timestamp and self.seconds == other.seconds and self.nanos == other.nanos

    def __repr__(self) -> str:
        return f"Timestamp({self.seconds}, {self.nanos}, {self.offset})"


class Empty:
    """The one value `EMPTY`: a `google.protobuf.Empty`."""

    __slots__ = ()
    cel_type: ClassVar[Type] = types.struct("google.protobuf.Empty")

    def cel_equal(self, other: Any) -> bool:
        """There is nothing to differ in."""
        return other is self

    def __repr__(self) -> str:
        return "google.protobuf.Empty{}"


EMPTY: Final = Empty()


class ListView(Sequence[Any]):
    """Two lists end to end, without copying either: concatenation in CEL costs 1 whatever the lengths.

    Lists that double themselves many times over have more elements than memory; only what is visited is
    computed.
    """

    __slots__ = ("_length", "left", "right")

    def __init__(self, left: Sequence[Any], right: Sequence[Any]) -> None:
        self.left = left
        self.right = right
        self._length = size_of_list(left) + size_of_list(right)

    def __len__(self) -> int:
        return self.length

    @property
    def length(self) -> int:
        """The number of elements. One beyond int64 ends the evaluation, wherever it is asked for but in
        `size`.
        """
        if self._length > MAX_INT:
            raise EvaluationAborted("internal error: a list's size is beyond int64")
        return self._length

    @property
    def counted(self) -> int:
        """The number of elements, whatever it is."""
        return self._length

    def __getitem__(self, index: Any) -> Any:
        here: Sequence[Any] = self
        while type(here) is ListView:
            left = size_of_list(here.left)
            if index < left:
                here = here.left
            else:
                index -= left
                here = here.right
        return here[index]

    def __iter__(self) -> Iterator[Any]:
        todo: list[Sequence[Any]] = [self]
        visited = 0
        while todo:
            part = todo.pop()
            if type(part) is ListView:
                todo.append(part.right)
                todo.append(part.left)
            else:
                visited += len(part)
                if visited > MAX_VISITED:
                    raise too_large()
                yield from part

    def __repr__(self) -> str:
        return f"ListView(length={self._length})"


def size_of_list(value: Sequence[Any]) -> int:
    """Number of elements, exact also for lists no memory could hold."""
    return value.length if type(value) is ListView else len(value)


def concatenate(left: Any, right: Any) -> Any:
    """Both lists end to end."""
    if not left:
        return right
    if not right:
        return left
    if type(left) is list and type(right) is list and len(left) + len(right) <= 64:
        return left + right
    return ListView(left, right)


class MapView:
    """Any map that is not a plain dict with string keys. Subclasses say what is in it."""

    __slots__ = ()

    def find(self, key: Any) -> Any:
        """The value at a key as field selection and indexing see it, or MISSING."""
        raise NotImplementedError

    def contains(self, key: Any) -> bool:
        """What `key in map` says."""
        return self.find(key) is not MISSING

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Keys and values, in order of insertion."""
        raise NotImplementedError

    def keys(self) -> Iterator[Any]:
        """Keys, in order of insertion."""
        return (key for key, _ in self.items())

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def __len__(self) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{k!r}: {v!r}' for k, v in self.items())}}}"


def _tagged(key: Any) -> tuple[type, Any]:
    """What tells keys apart: type and value; objects without a value of their own by identity."""
    kind = type(key)
    if kind in _KEYS:
        return kind, key
    if kind is bytes:
        raise EvaluationAborted("internal error: bytes cannot be keys of a map")
    if kind is Type:
        return kind, key.name
    if kind is Duration:
        return kind, key.nanos
    if kind is Timestamp:
        return kind, (key.seconds, key.nanos, key.offset)
    return kind, id(key)


_KEYS = frozenset((str, int, Uint, bool, float, type(None)))


class TypedMap(MapView):
    """A map with keys of any type. Keys of different numeric types are different entries, as in upstream."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[Any, Any]] = ()) -> None:
        self._entries: dict[tuple[type, Any], tuple[Any, Any]] = {}
        for key, value in entries:
            self._entries[_tagged(key)] = (key, value)

    def put(self, key: Any, value: Any) -> None:
        """Add an entry, while the map is being built."""
        self._entries[_tagged(key)] = (key, value)

    def find(self, key: Any) -> Any:
        kind = type(key)
        entries = self._entries
        hit = entries.get(_tagged(key))
        if hit is not None:
            return hit[1]
        if kind is int:
            if key >= 0:
                hit = entries.get((Uint, key))
        elif kind is Uint:
            if key <= MAX_INT:
                hit = entries.get((int, key))
        elif kind is float and key.is_integer():
            if MIN_INT < key < MAX_INT:
                hit = entries.get((int, int(key)))
            if hit is None and 0 <= key < 2**64:
                hit = entries.get((Uint, int(key)))
        return MISSING if hit is None else hit[1]

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._entries.values()

    def __len__(self) -> int:
        return len(self._entries)


class DefaultMap(MapView):
    """A string-keyed map in which every lookup succeeds: absent keys select an empty map.

    `in`, `size` and iteration see only what is there (DRA's `device.attributes` and `device.capacity`).
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def find(self, key: Any) -> Any:
        return self._values.get(key, {}) if type(key) is str else {}

    def contains(self, key: Any) -> bool:
        return type(key) is str and key in self._values

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)


def build_map(entries: Sequence[tuple[Any, Any]]) -> Any:
    """A map of the given entries, the last one winning; a plain dict when all keys are strings."""
    if all(type(key) is str for key, _ in entries):
        return dict(entries)
    return TypedMap(entries)


def find(container: Any, key: Any) -> Any:
    """The value at `key` of a map, or MISSING. `container` is a dict or `MapView`."""
    if type(container) is dict:
        return container.get(key, MISSING) if type(key) is str else MISSING
    return container.find(key)


_BUILTIN: dict[type, Type] = {
    type(None): types.null,
    bool: types.bool_,
    int: types.int_,
    Uint: types.uint,
    float: types.double,
    str: types.string,
    bytes: types.bytes_,
    list: types.list_dyn,
    ListView: types.list_dyn,
    dict: types.map_dyn,
    Type: types.type_,
}


def type_of(value: Any) -> Type:
    """The run-time type of a value, type parameters erased."""
    known = _BUILTIN.get(type(value))
    if known is not None:
        return known
    if isinstance(value, MapView):
        return types.map_dyn
    if isinstance(value, EvaluationError):
        return types.error
    declared = getattr(value, "cel_type", None)
    if isinstance(declared, Type):
        return declared
    raise TypeError(f"not a CEL value: {type(value).__name__}")


def type_name(value: Any) -> str:
    """The run-time type's name, as messages print it."""
    return type_of(value).name


def size_or_none(value: Any) -> int | None:
    """What `size()` says, or None for values without a size."""
    kind = type(value)
    if kind is str or kind is list or kind is dict or kind is bytes:
        return len(value)
    if kind is ListView:
        return value.length  # type: ignore[no-any-return]
    if isinstance(value, MapView):
        return len(value)
    size = getattr(value, "cel_size", None)
    return size() if size is not None else None


_NUMBERS = frozenset((int, Uint, float))


def _double_to_number(a: float, b: int) -> int:
    """Compare as upstream does: range first, then both as doubles (so large integers lose precision)."""
    low, high = (0, MAX_UINT) if type(b) is Uint else (MIN_INT, MAX_INT)
    if a < float(low):
        return -1
    if a > float(high):
        return 1
    other = float(b)
    return -1 if a < other else (1 if a > other else 0)


def compare_numbers(a: Any, b: Any) -> int:
    """-1, 0 or 1 for two numbers of any numeric types; NaN is an `EvaluationError`."""
    if (type(a) is float and math.isnan(a)) or (type(b) is float and math.isnan(b)):
        raise EvaluationError("NaN values cannot be ordered")
    if type(a) is float and type(b) is not float:
        return _double_to_number(a, b)
    if type(b) is float and type(a) is not float:
        return -_double_to_number(b, a)
    return -1 if a < b else (1 if a > b else 0)


def _scalar_equal(a: Any, b: Any) -> bool | None:
    """Equality when at least one side is no container, else None."""
    ka, kb = type(a), type(b)
    if ka is kb and (ka is str or ka is int or ka is bool or ka is bytes or ka is float):
        return bool(a == b)
    if a is None or b is None:
        return a is b
    if ka in _NUMBERS and kb in _NUMBERS:
        if ka is float and kb is not float:
            return not math.isnan(a) and _double_to_number(a, b) == 0
        if kb is float and ka is not float:
            return not math.isnan(b) and _double_to_number(b, a) == 0
        return bool(a == b)
    if ka is Type:
        return kb is Type and a.name == b.name
    if isinstance(a, list | ListView | dict | MapView):
        return None
    equals = getattr(a, "cel_equal", None)
    return bool(equals(b)) if equals is not None else False


def _element_equal(a: Any, b: Any) -> bool | None:
    try:
        return _scalar_equal(a, b)
    except EvaluationError:
        return True


def not_equal(a: Any, b: Any) -> bool:
    """CEL's !=, for which a refused comparison is a difference."""
    try:
        return not equal(a, b)
    except EvaluationError:
        return True


def equal(a: Any, b: Any) -> bool:
    """CEL's ==: numbers by value across types; lists and maps deep; else types must agree.

    Raises `EvaluationError` where an opaque type of a library refuses the comparison. Inside lists and maps
    upstream takes such a refusal for equality, so that is done here too.

    Iterative, and remembers pairs of containers already found equal, so neither depth nor sharing can hurt
    it.
    """
    scalar = _scalar_equal(a, b)
    if scalar is not None:
        return scalar
    seen: set[tuple[int, int]] = set()
    todo: list[tuple[Any, Any]] = [(a, b)]
    visited = 0
    while todo:
        x, y = todo.pop()
        visited += 1 if size_or_none(x) is None else len(x)
        if visited > MAX_VISITED:
            raise too_large()
        scalar = _element_equal(x, y)
        if scalar is not None:
            if not scalar:
                return False
            continue
        pair = (id(x), id(y))
        if pair in seen:
            continue
        seen.add(pair)
        if isinstance(x, list | ListView):
            if not isinstance(y, list | ListView) or size_of_list(x) != size_of_list(y):
                return False
            for p, q in zip(x, y, strict=True):
                scalar = _element_equal(p, q)
                if scalar is None:
                    todo.append((p, q))
                elif not scalar:
                    return False
        else:
            if not isinstance(y, dict | MapView) or len(x) != len(y):
                return False
            for key, value in x.items():
                other = find(y, key)
                if other is MISSING:
                    return False
                todo.append((value, other))
    return True


def compare(a: Any, b: Any) -> int:
    """-1, 0 or 1 for values that CEL can order; anything else is `no such overload`."""
    ka, kb = type(a), type(b)
    if ka is kb and (ka is str or ka is int or ka is bool or ka is bytes or ka is Uint):
        return -1 if a < b else (1 if a > b else 0)
    if ka in _NUMBERS:
        if ka is float and math.isnan(a):
            raise EvaluationError("NaN values cannot be ordered")
        if kb in _NUMBERS:
            return compare_numbers(a, b)
    elif ka is kb and ka is Duration:
        return -1 if a.nanos < b.nanos else (1 if a.nanos > b.nanos else 0)
    elif ka is kb and ka is Timestamp:
        x, y = (a.seconds, a.nanos), (b.seconds, b.nanos)
        return -1 if x < y else (1 if x > y else 0)
    raise no_such_overload()


def from_json(value: Any) -> Any:
    """A decoded JSON document as Kubernetes sees it: integers beyond int64 become doubles, lone surrogates
    U+FFFD.

    Returns the same object when nothing had to change.
    """
    kind = type(value)
    if kind is int:
        return value if MIN_INT <= value <= MAX_INT else _to_double(value)
    if kind is str:
        return value if value.isascii() else well_formed(value)
    if kind is dict:
        entries = [(from_json(k), from_json(v)) for k, v in value.items()]
        if any(a is not k or b is not v for (a, b), (k, v) in zip(entries, value.items(), strict=True)):
            return dict(entries)
        return value
    if kind is list:
        items = [from_json(v) for v in value]
        return items if any(w is not v for w, v in zip(items, value, strict=True)) else value
    return value


def well_formed(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which Go's JSON decoder puts there too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _to_double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
