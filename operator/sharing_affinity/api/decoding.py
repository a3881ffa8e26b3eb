"""JSON from the API server, whatever a tenant has put into it.

The server passes a claim's opaque parameters on byte for byte, and Go is more lenient about them than Python:
they may be five thousand levels deep, and hold bytes and escapes that are not Unicode. One such claim must
not keep every other object of its list or watch from being read.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

_SHALLOW: Final = 12
"""Levels at which parts are given to Python's decoder, which is much faster but gives up a thousand levels
down; opaque parameters begin at the tenth of a list at the latest."""
_TOKEN: Final = re.compile(r'[ \t\n\r]*([\[\]{},:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\[\]{},:"\s]+)')
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(rf"{_PAIR}|\\u[dD][89a-fA-F][0-9a-fA-F]{{2}}|\\\\")
_scan: Final = json.JSONDecoder().raw_decode


def decode(text: bytes) -> Any:
    """The value of a JSON text. What is not Unicode becomes U+FFFD, as in Go. Raises ValueError."""
    known = text.decode("utf-8", _AS_GO)
    if "\\ud" in known or "\\uD" in known:
        known = _ESCAPE.sub(_paired, known)
    try:
        return json.loads(known)
    except RecursionError:
        return _deep(known)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for each byte."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


_AS_GO: Final = "sharing-affinity-go"
codecs.register_error(_AS_GO, _replaced)


def _paired(escape: re.Match[str]) -> str:
    """Half of a surrogate pair stands for nothing."""
    return r"\ufffd" if len(escape[0]) == len(r"\ud800") else escape[0]


def _deep(text: str) -> Any:
    """Level by level, with a stack of its own."""
    found: list[Any] = []
    above: list[tuple[str, list[Any]]] = []
    at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        mark, at = token[1], token.end()
        if mark in "[{":
            value, end = _shallow(text, token.start(1)) if len(above) < _SHALLOW else (None, 0)
            if end:
                found.append(value)
                at = end
            else:
                above.append((mark, found))
                found = []
        elif mark in "]}":
            if not above:
                raise ValueError(f"{mark!r} closes nothing")
            opening, outer = above.pop()
            outer.append(_closed(opening + mark, found))
            found = outer
        elif mark not in ",:":
            found.append(json.loads(mark))
    if above or len(found) != 1 or text[at:].strip():
        raise ValueError("the text ends too soon or too late")
    return found[0]


def _shallow(text: str, at: int) -> tuple[Any, int]:
    """What begins at a place, and where it ends; the end is 0 where it is too deep."""
    try:
        return _scan(text, at)
    except RecursionError:
        return None, 0


def _closed(brackets: str, found: list[Any]) -> Any:
    if brackets == "[]":
        return found
    keys, values = found[::2], found[1::2]
    if brackets != "{}" or len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
        raise ValueError("brackets or keys do not fit together")
    return dict(zip(keys, values, strict=True))
