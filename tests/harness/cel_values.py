"""CEL values of this project as the oracle writes them: ``{type: text}``, so that types compare as well."""

from __future__ import annotations

import base64
import math
from typing import Any

from kubernetes_cel.libraries.formats import Format
from kubernetes_cel.libraries.gotext import format_g
from kubernetes_cel.libraries.network import CIDR, IP
from kubernetes_cel.libraries.quantity import Quantity
from kubernetes_cel.libraries.semver import Semver
from kubernetes_cel.libraries.time import timestamp_text
from kubernetes_cel.libraries.urls import URL
from kubernetes_cel.types import Type
from kubernetes_cel.values import Duration, ListView, MapView, Optional, Timestamp, Uint, type_name


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
