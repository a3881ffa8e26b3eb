"""`url("https://host:80/path?q=1")`: absolute URLs and paths, as Go's net/url understands them.

A URL must pass Go's strict `ParseRequestURI`; its parts are those of the lenient `Parse`, which also cuts off
a fragment. Texts are walked as UTF-8 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

from kubernetes_cel import costs, types
from kubernetes_cel.costs import NOMINAL
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.libraries.network import parse_ip
from kubernetes_cel.types import Type

URL_TYPE = types.struct("kubernetes.URL")

_ALNUM = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_UNRESERVED = _ALNUM | frozenset(b"-_.~")
_PLAIN_IN_PATH = _UNRESERVED | frozenset(b"$&+,/:;=@")
_PLAIN_IN_HOST = _UNRESERVED | frozenset(b"!$&'()*+,;=:[]<>\"")
_PLAIN_IN_FRAGMENT = _UNRESERVED | frozenset(b"$&+,/:;=?@!()*")
_VALID_PATH = _PLAIN_IN_PATH | frozenset(b"!'()*[]%")
_VALID_FRAGMENT = _PLAIN_IN_FRAGMENT | frozenset(b"'[]%")
_USER_INFO = _ALNUM | frozenset(b"-._:~!$&'()*+,;=%@")
_PLAIN_IN_USER = _UNRESERVED | frozenset(b"$&+,;=")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_PORT = re.compile(rb"(?::[0-9]*)?\Z")
_SCHEME = re.compile(rb"([a-zA-Z][a-zA-Z0-9+.-]*):")
_BAD_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_MAX_PARAMETERS = 10_000
#: Longer hosts are refused: they are walked byte by byte.
_MAX_HOST = 100_000


class _UrlError(Exception):
    """Why a text is no URL."""


@dataclass(frozen=True, slots=True)
class _Parts:
    scheme: bytes
    opaque: bytes
    user: bytes | None
    host: bytes
    path: bytes
    raw_path: bytes
    force_query: bool
    query: bytes
    fragment: bytes
    raw_fragment: bytes
    omit_host: bool


_BYTES = [bytes((c,)) for c in range(256)]
_PERCENT = [b"%%%02X" % c for c in range(256)]


def _escape(text: bytes, plain: frozenset[int]) -> bytes:
    rare = set(text) - plain
    if not rare:
        return text
    return b"".join(_PERCENT[c] if c in rare else _BYTES[c] for c in text)


def _unescape(text: bytes, *, host: bool = False, zone: bool = False, plus: bool = False) -> bytes:
    """Decode percent escapes. In hosts they are for bytes beyond ASCII only."""
    if not host and not zone:
        wrong = _BAD_ESCAPE.search(text)
        if wrong is not None:
            raise _UrlError(
                f'invalid URL escape "{text[wrong.start() : wrong.start() + 3].decode(errors="replace")}"'
            )
        return unquote_to_bytes(text.replace(b"+", b" ") if plus else text)
    if len(text) > _MAX_HOST:
        raise _UrlError("host name is too long")
    out = bytearray()
    at = 0
    while at < len(text):
        c = text[at]
        if c == 0x25:
            digits = text[at + 1 : at + 3]
            if len(digits) < 2 or not _HEX.issuperset(digits):
                raise _UrlError(f'invalid URL escape "{text[at : at + 3].decode(errors="replace")}"')
            code = int(digits, 16)
            if host and code < 0x80 and digits != b"25":
                raise _UrlError(f'invalid URL escape "%{digits.decode()}"')
            if zone and digits != b"25" and code != 0x20 and code not in _PLAIN_IN_HOST:
                raise _UrlError(f'invalid URL escape "%{digits.decode()}"')
            out.append(code)
            at += 3
            continue
        if (host or zone) and c < 0x80 and c not in _PLAIN_IN_HOST:
            raise _UrlError("invalid character in host name")
        out.append(0x20 if plus and c == 0x2B else c)
        at += 1
    return bytes(out)


def _parse_host(scheme: bytes, host: bytes) -> bytes:
    opened = host.rfind(b"[")
    if opened > 0:
        raise _UrlError("invalid IP-literal")
    if opened == 0:
        closed = host.rfind(b"]")
        if closed < 0:
            raise _UrlError("missing ']' in host")
        port = host[closed + 1 :]
        if not _PORT.match(port):
            raise _UrlError("invalid port after host")
        name = host[1:closed]
        zone = name.find(b"%25")
        if zone >= 0:
            decoded = _unescape(name[:zone], host=True) + _unescape(name[zone:], zone=True)
        else:
            decoded = _unescape(name, host=True)
        _check_ipv6(decoded)
        return b"[" + decoded + b"]" + port
    first = host.find(b":")
    if first >= 0:
        last = host.rfind(b":")
        port = host[first if scheme in (b"http", b"https") else last :]
        if not _PORT.match(port):
            raise _UrlError("invalid port after host")
    return _unescape(host, host=True)


def _check_ipv6(text: bytes) -> None:
    """What stands in brackets is an IPv6 address, which here may have a zone or hold an IPv4 address."""
    address, percent, zone = text.partition(b"%")
    if b":" not in address.split(b".")[0] or (percent and not zone):
        raise _UrlError("invalid IP-literal")
    try:
        parse_ip(address.decode("ascii"))
    except UnicodeDecodeError:
        raise _UrlError("invalid host") from None
    except EvaluationError as e:
        if "IPv4-mapped" not in e.message:
            raise _UrlError("invalid host") from None


def _parse_user(text: bytes) -> bytes:
    """User and password, decoded and written anew."""
    if not _USER_INFO.issuperset(text):
        raise _UrlError("invalid userinfo")
    name, colon, password = text.partition(b":")
    user = _escape(_unescape(name), _PLAIN_IN_USER)
    return user + b":" + _escape(_unescape(password), _PLAIN_IN_USER) if colon else user


def _parse(text: bytes, *, request: bool) -> _Parts:
    """Go's parse(); `request` is the strict form: an absolute URL or path, and fragments are unknown."""
    if _CONTROL.search(text):
        raise _UrlError("invalid control character in URL")
    if not text and request:
        raise _UrlError("empty url")
    fragment = raw_fragment = b""
    if not request:
        text, _, fragment = text.partition(b"#")
    parts = _parse_whole(text, request)
    if fragment:
        raw_fragment = fragment
        fragment = _unescape(fragment)
        if _escape(fragment, _PLAIN_IN_FRAGMENT) == raw_fragment:
            raw_fragment = b""
    return _Parts(*parts[:8], fragment, raw_fragment, parts[8])


def _parse_whole(
    text: bytes, request: bool
) -> tuple[bytes, bytes, bytes | None, bytes, bytes, bytes, bool, bytes, bool]:
    """Scheme, opaque part, user, host, path, raw path, question mark without query, query, no host wanted."""
    if text == b"*":
        return b"", b"", None, b"", b"*", b"", False, b"", False
    match = _SCHEME.match(text)
    if text[:1] == b":":
        raise _UrlError("missing protocol scheme")
    scheme, rest = (match[1].lower(), text[match.end() :]) if match else (b"", text)
    query = b""
    force_query = rest.endswith(b"?") and rest.count(b"?") == 1
    if force_query:
        rest = rest[:-1]
    else:
        rest, _, query = rest.partition(b"?")
    if not rest.startswith(b"/"):
        if scheme:
            return scheme, rest, None, b"", b"", b"", force_query, query, False
        if request:
            raise _UrlError("invalid URI for request")
        if b":" in rest.partition(b"/")[0]:
            raise _UrlError("first path segment in URL cannot contain colon")
    user: bytes | None = None
    host = b""
    omit_host = False
    if (scheme or (not request and not rest.startswith(b"///"))) and rest.startswith(b"//"):
        authority, slash, path = rest[2:].partition(b"/")
        rest = slash + path
        info, at, host = authority.rpartition(b"@")
        host = _parse_host(scheme, host)
        if at:
            user = _parse_user(info)
    elif scheme and rest.startswith(b"/"):
        omit_host = True
    path = _unescape(rest)
    raw = b"" if _escape(path, _PLAIN_IN_PATH) == rest else rest
    return scheme, b"", user, host, path, raw, force_query, query, omit_host


class URL:
    """A parsed URL."""

    __slots__ = ("_parts", "_query", "_text")
    cel_type: ClassVar[Type] = URL_TYPE

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self._text: str | None = None
        self._query: dict[str, list[str]] | None = None

    def cel_equal(self, other: Any) -> bool:
        """Written the same; anything else cannot be compared."""
        if type(other) is not URL:
            raise no_such_overload()
        return str(self) == str(other)

    def scheme(self) -> str:
        """Lower case, empty for a path."""
        return _decoded(self._parts.scheme)

    def host(self) -> str:
        """With brackets and port, if any."""
        return _decoded(self._parts.host)

    def _split_host(self) -> tuple[bytes, bytes]:
        host = self._parts.host
        port = b""
        colon = host.rfind(b":")
        if colon >= 0 and _PORT.match(host[colon:]):
            host, port = host[:colon], host[colon + 1 :]
        if host.startswith(b"[") and host.endswith(b"]"):
            host = host[1:-1]
        return host, port

    def hostname(self) -> str:
        """Without brackets and port."""
        return _decoded(self._split_host()[0])

    def port(self) -> str:
        """Digits, or empty."""
        return _decoded(self._split_host()[1])

    def escaped_path(self) -> str:
        """As written where that is a valid encoding."""
        return _decoded(self._escaped_path())

    def _escaped_path(self) -> bytes:
        parts = self._parts
        if parts.raw_path and _VALID_PATH.issuperset(parts.raw_path):
            return parts.raw_path
        return b"*" if parts.path == b"*" else _escape(parts.path, _PLAIN_IN_PATH)

    def query(self) -> dict[str, list[str]]:
        """All values of each parameter; parameters that cannot be decoded are left out."""
        if self._query is None:
            self._query = self._parse_query()
        return self._query

    def _parse_query(self) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        query = self._parts.query
        if query.count(b"&") + 1 > _MAX_PARAMETERS:
            return values
        for part in query.split(b"&"):
            if not part or b";" in part:
                continue
            key, _, value = part.partition(b"=")
            try:
                name, decoded = _unescape(key, plus=True), _unescape(value, plus=True)
            except _UrlError:
                continue
            values.setdefault(_decoded(name), []).append(_decoded(decoded))
        return values

    def __str__(self) -> str:
        if self._text is None:
            self._text = _decoded(self._bytes())
        return self._text

    def _bytes(self) -> bytes:
        parts = self._parts
        out = parts.scheme + b":" if parts.scheme else b""
        if parts.opaque:
            out += parts.opaque
        else:
            bare = not parts.host and parts.user is None
            if (parts.scheme or not bare) and not (parts.omit_host and bare):
                if not bare or parts.path:
                    out += b"//"
                if parts.user is not None:
                    out += parts.user + b"@"
                out += _escape(parts.host, _PLAIN_IN_HOST)
            path = self._escaped_path()
            if path and path[:1] != b"/" and parts.host:
                out += b"/"
            if not out and b":" in path.partition(b"/")[0]:
                out += b"./"
            out += path
        if parts.force_query or parts.query:
            out += b"?" + parts.query
        if parts.fragment:
            raw = parts.raw_fragment
            valid = raw and _VALID_FRAGMENT.issuperset(raw)
            out += b"#" + (raw if valid else _escape(parts.fragment, _PLAIN_IN_FRAGMENT))
        return out

    def __repr__(self) -> str:
        return f"URL({self})"


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def parse_url(text: str) -> URL:
    """`url(text)`"""
    data = text.encode("utf-8", "surrogatepass")
    try:
        _parse(data, request=True)
        return URL(_parse(data, request=False))
    except _UrlError as e:
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": {e}') from None


def check_url(text: str) -> str | None:
    """Why the text is no absolute URL or path, or None when it is one."""
    try:
        _parse(text.encode("utf-8", "surrogatepass"), request=True)
    except _UrlError as e:
        return str(e)
    return None


def _getter(name: str, id_: str, result: Type, impl: Any) -> Function:
    return Function(name, (Overload(id_, (URL_TYPE,), result, impl, member=True),), cost=NOMINAL)


_S = types.string

LIBRARY = Library(
    "kubernetes.urls",
    functions=(
        Function("url", (Overload("string_to_url", (_S,), URL_TYPE, parse_url),), cost=costs.PARSE_URL),
        _getter("getScheme", "url_get_scheme", _S, URL.scheme),
        _getter("getHost", "url_get_host", _S, URL.host),
        _getter("getHostname", "url_get_hostname", _S, URL.hostname),
        _getter("getPort", "url_get_port", _S, URL.port),
        _getter("getEscapedPath", "url_get_escaped_path", _S, URL.escaped_path),
        _getter("getQuery", "url_get_query", types.map_of(_S, types.list_of(_S)), URL.query),
        Function(
            "isURL", (Overload("is_url_string", (_S,), types.bool_, lambda text: check_url(text) is None),)
        ),
    ),
)
