"""Metadata in protobuf form is changed, and every other byte stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.runtime.wire import read_metadata, with_metadata


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def claim(annotations: dict[str, str], finalizers: list[str], spec: bytes, labels: bytes = b"") -> bytes:
    """An object as the API server writes it: name, uid, resourceVersion, generation, then the rest."""
    meta = field(1, b"c") + field(3, b"ns") + field(5, b"u-1") + field(6, b"77") + field(7, 3)
    meta += field(8, field(1, 1_700_000_000)) + labels
    for key, text in annotations.items():
        meta += field(12, field(1, key.encode()) + field(2, text.encode()))
    for name in finalizers:
        meta += field(14, name.encode())
    raw = field(1, meta) + field(2, spec) + field(3, b"status")
    kind = field(1, b"resource.k8s.io/v1") + field(2, b"ResourceClaim")
    return b"k8s\x00" + field(1, kind) + field(2, raw) + field(3, b"") + field(4, b"")


texts = st.text(max_size=200)
maps = st.dictionaries(texts, texts, max_size=5)


@given(maps, st.lists(texts, max_size=3), st.binary(max_size=400))
def test_what_is_written_is_read(annotations: dict[str, str], finalizers: list[str], spec: bytes) -> None:
    found = read_metadata(claim(annotations, finalizers, spec))

    assert (found.uid, found.resource_version) == ("u-1", "77")
    assert found.annotations == annotations
    assert found.finalizers == tuple(finalizers)


@given(maps, st.lists(texts, max_size=3), st.binary(max_size=400), st.dictionaries(texts, st.none() | texts))
def test_annotations_change_and_the_spec_does_not(
    annotations: dict[str, str], finalizers: list[str], spec: bytes, change: dict[str, str | None]
) -> None:
    labels = field(11, field(1, b"a") + field(2, b"b"))
    before = claim(annotations, finalizers, spec, labels)

    after = with_metadata(before, change, ["x", *finalizers])

    found = read_metadata(after)
    expected = {key: text for key, text in {**annotations, **change}.items() if text is not None}
    assert found.annotations == expected
    assert found.finalizers == ("x", *finalizers)
    assert field(2, spec) + field(3, b"status") in after
    assert labels in after
    assert with_metadata(after, {key: annotations.get(key) for key in change}, finalizers)[:4] == b"k8s\x00"


@pytest.mark.parametrize("body", [b"", b"{}", b"k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_what_is_not_an_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an object|message ends"):
        read_metadata(body)
