"""CEL values of this project as the oracle writes them: ``{type: text}``, so that types compare as well."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

from kubernetes_cel import types
from kubernetes_cel.libraries.formats import Format
from kubernetes_cel.libraries.gotext import format_g
from kubernetes_cel.libraries.network import CIDR, IP
from kubernetes_cel.libraries.quantity import Quantity
from kubernetes_cel.libraries.semver import Semver
from kubernetes_cel.libraries.time import timestamp_of_text, timestamp_text
from kubernetes_cel.libraries.urls import URL
from kubernetes_cel.types import Type
from kubernetes_cel.values import Duration, ListView, MapView, Optional, Timestamp, Uint, build_map, type_name


def typed(value: Any) -> dict[str, Any]:
    """The typed JSON of a value."""
    kind = type(value)
    if value is None:
        return {"null": True}
    if kind is bool:
        return {"bool": value}
    if kind is int:
        return {"int": str(value)}
    if kind is Uint:
        return {"uint": str(int(value))}
    if kind is float:
        return {"double": _double(value)}
    if kind is str:
        return {"string": value}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is Timestamp:
        return {"timestamp": timestamp_text(Timestamp(value.seconds, value.nanos))}
    if kind is Duration:
        return {"duration": str(value.nanos)}
    if kind is Optional:
        return {"optional": [typed(value.value)] if value.has_value else []}
    if isinstance(value, Type):
        return {"type": str(value)}
    if kind is Quantity:
        return {"quantity": str(value)}
    if kind is Semver:
        return {"semver": str(value)}
    if kind is IP:
        return {"ip": str(value)}
    if kind is CIDR:
        return {"cidr": str(value)}
    if kind is URL:
        return {"url": str(value)}
    if kind is Format:
        return {"format": value.name}
    if kind in (list, ListView):
        return {"list": [typed(item) for item in value]}
    if kind is dict or isinstance(value, MapView):
        entries = [(key, item) for key, item in value.items()]
        entries.sort(key=lambda entry: f"{type_name(entry[0])} {_key(entry[0])}".encode())
        return {"map": [[typed(key), typed(item)] for key, item in entries]}
    raise TypeError(f"not a CEL value: {value!r}")


def untyped(value: dict[str, Any]) -> Any:
    """The value of typed JSON: the inverse of `typed`, for values that tests bind to variables."""
    ((kind, body),) = value.items()
    plain = {"null": lambda: None, "bool": lambda: body, "string": lambda: body, "int": lambda: int(body)}
    if kind in plain:
        return plain[kind]()
    if kind == "uint":
        return Uint(int(body))
    if kind == "double":
        return float(body)
    if kind == "bytes":
        return base64.b64decode(body)
    if kind == "list":
        return [untyped(item) for item in body]
    if kind == "map":
        return build_map([(untyped(key), untyped(item)) for key, item in body])
    if kind == "timestamp":
        return timestamp_of_text(body)
    if kind == "duration":
        return Duration(int(body))
    if kind == "type":
        return parse_type(body)
    raise ValueError(f"no value of type {kind}")


_TYPE = re.compile(r"([\w.]+)(?:\((.*)\))?\Z")
_NAMED = {
    t.name: t
    for t in (
        *(
            types.dyn,
            types.null,
            types.bool_,
            types.int_,
            types.uint,
            types.double,
            types.string,
            types.bytes_,
        ),
        *(types.any_, types.duration, types.timestamp, types.type_),
    )
}


def parse_type(text: str) -> Type:
    """The type that upstream prints as `text`; `ValueError` for types this project does not have."""
    match = _TYPE.match(text)
    if match is None:
        raise ValueError(f"not a type: {text}")
    name, inside = match.groups()
    if inside is None:
        known = {**_NAMED, "list": types.list_dyn, "map": types.map_dyn}.get(name)
        if known is None:
            raise ValueError(f"no such type here: {text}")
        return known
    params = tuple(parse_type(part) for part in _split(inside))
    makers: dict[str, Any] = {
        "list": types.list_of,
        "map": types.map_of,
        "type": types.type_of_type,
        "optional_type": types.optional_of,
        "wrapper": types.wrapper_of,
    }
    if name not in makers:
        raise ValueError(f"no such type here: {text}")
    made: Type = makers[name](*params)
    return made


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _key(key: Any) -> str:
    if key is True or key is False:
        return str(key).lower()
    return _double(key) if type(key) is float else str(key)


def _double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return format_g(value)
