"""Reading untrusted JSON with a finger on the line: every access knows its path, every refusal names it.

Tens of thousands of objects are read at every start, so a path is put together only when somebody asks, and
parts that many objects have alike (claims of one template, nodes of allocations) are read `once`.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

from sharing_affinity.api import quantity
from sharing_affinity.api.errors import BadObject
from sharing_affinity.api.quantity import Quantity

T = TypeVar("T")
_REMEMBERED: Final = 1024
"""Parts of one sort that are remembered."""
_WORTH_IT: Final = 2048
"""Bytes of a part that is remembered at most: large ones differ anyway, and would fill the memory."""
_NOTHING: Mapping[str, Any] = {}


class Reader:
    """A JSON object at a path of a document: at ``path`` itself or, below ``parent``, at ``path`` from there
    (in a list, its entry ``index``)."""

    __slots__ = ("_index", "_parent", "_path", "data", "document")

    def __init__(
        self,
        data: Mapping[str, Any],
        path: str,
        document: tuple[str, str, str],
        parent: Reader | None = None,
        index: int = -1,
    ) -> None:
        self.data = data
        self.document = document
        self._path, self._parent, self._index = path, parent, index

    @property
    def path(self) -> str:
        if self._parent is None:
            return self._path
        here = self._parent.at(self._path)
        return here if self._index < 0 else f"{here}[{self._index}]"

    @classmethod
    def document_of(cls, raw: object, kind: str) -> Reader:
        """The root of a document; its own name is read leniently so that every other error can carry it."""
        if not isinstance(raw, Mapping):
            raise BadObject(kind, "", "", "$", f"is {_type(raw)}, not an object")
        metadata = raw.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else _NOTHING
        name, namespace = metadata.get("name"), metadata.get("namespace")
        document = (
            kind,
            namespace if isinstance(namespace, str) else "",
            name if isinstance(name, str) else "",
        )
        if raw.get("kind", kind) != kind:
            raise BadObject(*document, path="kind", problem=f"is {raw.get('kind')!r}, not {kind}")
        return cls(raw, "", document)

    def fail(self, key: str, problem: str) -> BadObject:
        return BadObject(*self.document, path=self.at(key), problem=problem)

    def at(self, key: str) -> str:
        if not key:
            return self.path or "$"
        above = self.path
        return f"{above}.{key}" if above else key

    def has(self, key: str) -> bool:
        """Present and not null."""
        return self.data.get(key) is not None

    def obj(self, key: str) -> Reader:
        """An object, empty when absent."""
        value = self.data.get(key)
        if value is None:
            value = _NOTHING
        # The plain type first: asking an abstract class costs several times as much.
        if type(value) is not dict and not isinstance(value, Mapping):
            raise self.fail(key, f"is {_type(value)}, not an object")
        return Reader(value, key, self.document, self)

    def maybe(self, key: str) -> Reader | None:
        return self.obj(key) if self.data.get(key) is not None else None

    def text(self, key: str, default: str | None = "") -> str:
        """A string; ``default=None`` makes it required and non-empty."""
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None or (default is None and value == ""):
            raise self.fail(key, "is missing")
        if not isinstance(value, str):
            raise self.fail(key, f"is {_type(value)}, not a string")
        return value

    def flag(self, key: str) -> bool:
        value = self.data.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.fail(key, f"is {_type(value)}, not true or false")
        return value

    def integer(self, key: str, default: int | None = 0) -> int:
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, "is missing")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"is {_type(value)}, not a whole number")
        if abs(value) > quantity.INT64_MAX:
            raise self.fail(key, "is beyond 64 bits")
        return value

    def quantity(self, key: str) -> Quantity:
        return self.as_quantity(key, self.data.get(key))

    def as_quantity(self, key: str, value: object) -> Quantity:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.fail(key, "is missing" if value is None else f"is {_type(value)}, not a quantity")
        try:
            return quantity.parse(value if isinstance(value, str) else repr(value))
        except quantity.QuantityError as error:
            raise self.fail(key, str(error)) from None

    def quantities(self, key: str) -> dict[str, Quantity]:
        """A map of quantities."""
        inner = self.obj(key)
        return {_key(inner, name): inner.as_quantity(name, value) for name, value in inner.data.items()}

    def each(self, key: str) -> Iterator[Reader]:
        """The objects of a list."""
        for index, value in enumerate(self.items(key)):
            if type(value) is not dict and not isinstance(value, Mapping):
                raise self.fail(f"{key}[{index}]", f"is {_type(value)}, not an object")
            yield Reader(value, key, self.document, self, index)

    def many(self, key: str, build: Callable[[Reader], T]) -> tuple[T, ...]:
        return tuple(map(build, self.each(key))) if self.data.get(key) is not None else ()

    def items(self, key: str) -> list[Any]:
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self.fail(key, f"is {_type(value)}, not a list")
        return value if type(value) is list else list(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.items(key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self.fail(f"{key}[{index}]", f"is {_type(value)}, not a string")
        return tuple(values)

    def text_map(self, key: str) -> dict[str, str]:
        inner = self.obj(key)
        for name, value in inner.data.items():
            if not isinstance(value, str):
                raise inner.fail(str(name), f"is {_type(value)}, not a string")
        return dict(inner.data)

    def time(self, key: str) -> float | None:
        """An RFC 3339 time as seconds since the epoch."""
        value = self.text(key)
        if not value:
            return None
        seconds = parse_time(value)
        if seconds is None:
            raise self.fail(key, f"{value!r} is not an RFC 3339 time")
        return seconds

    def unknown(self, *known: str) -> tuple[str, ...]:
        """Paths of non-empty fields that are not ``known``."""
        return tuple(
            [self.at(str(key)) for key, value in self.data.items() if key not in known and not _empty(value)]
        )


def once(read: Callable[[Reader], T], path: str = "") -> Callable[[Reader], T]:
    """``read`` that remembers its answers by content; ``path`` is where in a document its parts are.

    What is refused is never kept, and read again where its document's name is known. Packing tells apart all
    that JSON can say, and takes a fraction of the time of writing JSON.
    """

    @lru_cache(maxsize=_REMEMBERED)
    def remembered(packed: bytes) -> T:
        return read(Reader(marshal.loads(packed), path, ("", "", "")))

    def reading(part: Reader) -> T:
        try:
            packed = marshal.dumps(part.data, 0)  # type: ignore[arg-type] # other mappings: a ValueError
            if len(packed) <= _WORTH_IT:
                return remembered(packed)
        except (ValueError, BadObject):
            pass
        return read(part)

    return reading


def parse_time(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=UTC).timestamp()


def format_time(seconds: float) -> str:
    """RFC 3339 in whole seconds, UTC: the only precision the server stores."""
    return _format_seconds(int(seconds))


@lru_cache(maxsize=16)
def _format_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00") + "Z"


def _empty(value: object) -> bool:
    return value is None or value is False or value == "" or value == [] or value == {} or value == 0


def _key(reader: Reader, key: object) -> str:
    if not isinstance(key, str):
        raise reader.fail(str(key), "has a key that is not a string")
    return key


def _type(value: object) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (int, "a number"), (float, "a number"), (str, "a string")):
        if isinstance(value, kind):
            return name
    return "a list" if isinstance(value, list | tuple) else "an object"
