"""Literals as they are written: escapes of strings and bytes, and numbers in Go's notations."""

from __future__ import annotations

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "?": "?",
}
_HEX_LENGTH = {"x": 2, "X": 2, "u": 4, "U": 8}


def unquote(token: str) -> str:
    """The value of a string token, quotes and `r` prefix included. ValueError tells what is wrong."""
    raw, body = _body(token)
    if raw or "\\" not in body:
        return body
    return "".join(chr(code) for code, _ in _unescape(body, for_bytes=False))


def unquote_bytes(token: str) -> bytes:
    """The value of a bytes token without its `b` prefix: text is UTF-8, escapes are bytes."""
    raw, body = _body(token)
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    out = bytearray()
    for code, is_text in _unescape(body, for_bytes=True):
        if is_text:
            out += chr(code).encode("utf-8", "surrogatepass")
        else:
            out.append(code & 0xFF)
    return bytes(out)


def _body(token: str) -> tuple[bool, str]:
    text = token.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    quotes = 3 if len(text) >= 6 and text[:3] in ("'''", '"""') else 1
    return raw, text[quotes:-quotes]


def _unescape(body: str, *, for_bytes: bool) -> list[tuple[int, bool]]:
    out: list[tuple[int, bool]] = []
    i = 0
    while i < len(body):
        c = body[i]
        if c != "\\":
            out.append((ord(c), True))
            i += 1
            continue
        if i + 1 == len(body):
            raise ValueError("unable to unescape string, found '\\' as last character")
        c = body[i + 1]
        i += 2
        if c in _SIMPLE:
            out.append((ord(_SIMPLE[c]), True))
        elif c in _HEX_LENGTH:
            length = _HEX_LENGTH[c]
            digits = body[i : i + length]
            if len(digits) < length or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise ValueError("unable to unescape string")
            if for_bytes and length > 2:
                raise ValueError("unable to unescape string")
            i += length
            out.append((_code_point(int(digits, 16), for_bytes), not for_bytes))
        elif c in "0123":
            digits = body[i : i + 2]
            if len(digits) < 2 or not all(d in "01234567" for d in digits):
                raise ValueError("unable to unescape octal sequence in string")
            i += 2
            out.append((_code_point(int(c + digits, 8), for_bytes), not for_bytes))
        else:
            raise ValueError("unable to unescape string")
    return out


def _code_point(code: int, for_bytes: bool) -> int:
    if not for_bytes and (code > 0x10FFFF or 0xD800 <= code <= 0xDFFF):
        raise ValueError("invalid unicode code point")
    return code
