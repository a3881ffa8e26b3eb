"""Changing an object's metadata without touching a single byte of its spec.

A claim's opaque parameters are kept by the API server byte for byte, and an update must return the same
bytes, or the spec counts as changed, which is forbidden. JSON cannot promise that: servers write ``<`` as
``\\u003c``, clients write ``ü`` as ``\\u00fc`` or not, ``1.10`` becomes ``1.1``. Even every kind of PATCH
fails on a claim with an ``&`` in its parameters, because the server itself sends the object through JSON.
Kubernetes' protobuf form carries the bytes as they are. So where a patch is refused for that reason, the
object is read and written in that form.

Nothing of the schema is needed but the numbers of a few fields of ObjectMeta; the rest passes through as
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
# runtime.Unknown
_RAW: Final = 2
# every object: ObjectMeta is the first field
_METADATA: Final = 1
# ObjectMeta
_UID: Final = 5
_RESOURCE_VERSION: Final = 6
_ANNOTATIONS: Final = 12
_FINALIZERS: Final = 14

_VARINT: Final = 0
_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is read of an object's metadata."""

    uid: str
    resource_version: str
    annotations: Mapping[str, str]
    finalizers: tuple[str, ...]


def read_metadata(body: bytes) -> Metadata:
    """Metadata of an object in protobuf form. Raises ValueError for bytes that are none."""
    uid = version = ""
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    for number, value, _ in _fields(_metadata_of(_raw_of(body))):
        if number == _UID:
            uid = value.decode()
        elif number == _RESOURCE_VERSION:
            version = value.decode()
        elif number == _ANNOTATIONS:
            key, text = _entry(value)
            annotations[key] = text
        elif number == _FINALIZERS:
            finalizers.append(value.decode())
    return Metadata(uid, version, annotations, tuple(finalizers))


def with_metadata(body: bytes, annotations: Mapping[str, str | None], finalizers: Sequence[str]) -> bytes:
    """The object with these annotations set (None: removed) and exactly these finalizers; all else as it
    was."""
    metadata = b""
    for number, value, whole in _fields(_metadata_of(_raw_of(body))):
        if number == _FINALIZERS or (number == _ANNOTATIONS and _entry(value)[0] in annotations):
            continue
        metadata += whole
    for key, text in annotations.items():
        if text is not None:
            metadata += _field(_ANNOTATIONS, _field(1, key.encode()) + _field(2, text.encode()))
    for name in finalizers:
        metadata += _field(_FINALIZERS, name.encode())
    return _replace_raw(body, _replace(_raw_of(body), _METADATA, metadata))


def _raw_of(body: bytes) -> bytes:
    if not body.startswith(_MAGIC):
        raise ValueError("not an object in Kubernetes' protobuf form")
    return next((value for number, value, _ in _fields(body[len(_MAGIC) :]) if number == _RAW), b"")


def _replace_raw(body: bytes, raw: bytes) -> bytes:
    return _MAGIC + _replace(body[len(_MAGIC) :], _RAW, raw)


def _metadata_of(raw: bytes) -> bytes:
    return next((value for number, value, _ in _fields(raw) if number == _METADATA), b"")


def _replace(message: bytes, number: int, value: bytes) -> bytes:
    rest = b"".join(whole for found, _, whole in _fields(message) if found != number)
    return _field(number, value) + rest


def _entry(value: bytes) -> tuple[str, str]:
    parts = {number: text.decode() for number, text, _ in _fields(value)}
    return parts.get(1, ""), parts.get(2, "")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, payload of a length-delimited field or b"", the whole field) of a message."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        kind = key & 7
        payload = b""
        if kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind == _BYTES:
            length, at = _read_varint(message, at)
            payload = message[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"field of unknown wire type {kind}")
        if at > len(message):
            raise ValueError("message ends within a field")
        yield key >> 3, payload, message[start:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("message ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
