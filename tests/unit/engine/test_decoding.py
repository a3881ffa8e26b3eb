"""Whatever JSON one claim holds, the others are read: the API server stores more than Python understands."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from harness import objects as o
from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.api import BadObject, parse_claim
from sharing_affinity.api.decoding import _deep, decode
from sharing_affinity.runtime.client import _encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def nested(depth: int) -> str:
    return '{"kind":"NICConfig","a":' + "[" * depth + '"\\"]}é"' + "]" * depth + "}"


def claims(*parameters: str) -> bytes:
    """A list of claims, each with one opaque config."""
    items = []
    for number, text in enumerate(parameters):
        raw = o.claim(f"c{number}", "A")
        raw["spec"]["devices"]["config"][0]["opaque"]["parameters"] = "HERE"
        items.append(json.dumps(raw).replace('"HERE"', text))
    return ('{"kind":"ResourceClaimList","metadata":{},"items":[' + ", ".join(items) + "]}").encode()


def depth(value: Any) -> int:
    levels = 0
    while isinstance(value, list):
        value, levels = value[0], levels + 1
    assert value == '"]}é'
    return levels


def test_one_deep_claim_does_not_keep_the_others_from_being_read() -> None:
    items = decode(claims(o_nic := json.dumps(o.nic("A")), nested(5000), o_nic))["items"]

    assert [item["metadata"]["name"] for item in items] == ["c0", "c1", "c2"]
    parameters = items[1]["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert (parameters["kind"], depth(parameters["a"])) == ("NICConfig", 5000)
    assert parse_claim(items[0]).configs == parse_claim(items[2]).configs
    # Newer Pythons understand even that; the others refuse it alone.
    with contextlib.suppress(BadObject):
        parse_claim(items[1])


def test_deep_claims_are_read_soon() -> None:
    text = claims(*[nested(5000)] * 32, *[json.dumps(o.nic("A" * 4000))] * 500)
    started = time.process_time()
    assert len(decode(text)["items"]) == 532
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"\xe4\xb8", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\\ud800", "\ufffd"),
        (b"\\uDC00\\ud800", "\ufffd\ufffd"),
        (b"\\ud800\\u0041", "\ufffdA"),
        (b"\\ud83d\\uDE00", "\U0001f600"),
        (b"\\\\ud800", "\\ud800"),
        (b"\\\\\\ud800", "\\\ufffd"),
        ("é\U0001f600".encode(), "é\U0001f600"),
    ],
)
def test_what_is_not_unicode_is_read_as_go_reads_it(stored: bytes, text: str) -> None:
    found = decode(claims('{"a":"HERE"}').replace(b"HERE", stored))["items"][0]

    assert found["spec"]["devices"]["config"][0]["opaque"]["parameters"] == {"a": text}
    # It can be written again: an allocation carries the configs of its claim.
    assert decode(_encode("PUT", "claims", found)) == found


@given(JSON)
def test_both_ways_of_reading_agree(value: Any) -> None:
    for text in (json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False)):
        # Fourteen levels down nothing is left to Python's decoder.
        inner = _deep("[" * 14 + text + "]" * 14)
        for _ in range(14):
            [inner] = inner
        assert json.dumps(inner) == json.dumps(value)
        assert json.dumps(_deep(text)) == json.dumps(value)


@pytest.mark.parametrize("end", ["", "]" * 5001, "]" * 4999 + "}", "]" * 4998 + "{1:2}]]", '"' + "]" * 5000])
def test_what_is_cut_or_wrong_is_a_value_error(end: str) -> None:
    with pytest.raises(
        ValueError, match=r"closes nothing|fit together|too soon|Extra data|Expecting|Unterminated"
    ):
        _deep("[" * 5000 + end)
