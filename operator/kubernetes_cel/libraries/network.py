"""`ip("10.0.0.1")` and `cidr("10.0.0.0/8")`: addresses and networks, by the strict rules of Go's net/netip.

No leading zeros in octets, no zones, no IPv4-mapped IPv6 addresses. A network keeps the address it was
written with: `cidr("10.1.2.3/8")` is not `cidr("10.0.0.0/8")` until `masked()`.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar

from kubernetes_cel import costs, types
from kubernetes_cel.costs import NOMINAL
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.types import Type

IP_TYPE = types.opaque("net.IP")
CIDR_TYPE = types.opaque("net.CIDR")

_BITS = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z")
_GROUP = re.compile(r"[0-9a-fA-F]{1,4}\Z")
_OCTET = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z")


class _ParseError(Exception):
    """Why a text is no address."""


def _octets(text: str) -> int:
    parts = text.split(".")
    if len(parts) != 4:
        raise _ParseError("IPv4 address too short" if len(parts) < 4 else "IPv4 address too long")
    value = 0
    for part in parts:
        if not _OCTET.match(part) or int(part) > 255:
            raise _ParseError("invalid IPv4 field")
        value = value << 8 | int(part)
    return value


def _groups(text: str, *, last: bool) -> list[int]:
    """16-bit groups of one side of `::`; the last one may be written as an IPv4 address."""
    if not text:
        return []
    groups: list[int] = []
    parts = text.split(":")
    for index, part in enumerate(parts):
        if "." in part and last and index == len(parts) - 1:
            low = _octets(part)
            groups += [low >> 16, low & 0xFFFF]
        elif _GROUP.match(part):
            groups.append(int(part, 16))
        else:
            raise _ParseError("invalid IPv6 field")
    return groups


def _parse_ipv6(text: str) -> int:
    if len(text) > 64:
        raise _ParseError("invalid IPv6 field")
    head, gap, tail = text.partition("::")
    if not gap:
        groups = _groups(head, last=True)
        if len(groups) != 8:
            raise _ParseError(
                "address string too short" if len(groups) < 8 else "trailing garbage after address"
            )
    else:
        if "::" in tail or tail.startswith(":") or head.endswith(":"):
            raise _ParseError("multiple :: in address")
        left, right = _groups(head, last=False), _groups(tail, last=True)
        missing = 8 - len(left) - len(right)
        if missing < 1:
            raise _ParseError("the :: must expand to at least one field of zeros")
        groups = left + [0] * missing + right
    value = 0
    for group in groups:
        value = value << 16 | group
    return value


def _parse_address(text: str) -> tuple[int, int]:
    """Bits (32 or 128) and value."""
    for char in text:
        if char == ".":
            return 32, _octets(text)
        if char == ":":
            if "%" in text:
                raise _ParseError("zone value is not allowed")
            value = _parse_ipv6(text)
            if value >> 32 == 0xFFFF:
                raise _ParseError("IPv4-mapped IPv6 address is not allowed")
            return 128, value
        if char == "%":
            break
    raise _ParseError("unable to parse IP")


def _text(bits: int, value: int) -> str:
    return str(IPv4Address(value)) if bits == 32 else IPv6Address(value).compressed


class IP:
    """An address: 32 or 128 bits and their value."""

    __slots__ = ("bits", "value")
    cel_type: ClassVar[Type] = IP_TYPE

    def __init__(self, bits: int, value: int) -> None:
        self.bits = bits
        self.value = value

    def cel_equal(self, other: Any) -> bool:
        """The same address; anything else cannot be compared."""
        if type(other) is not IP:
            raise no_such_overload()
        return self.bits == other.bits and self.value == other.value

    def cel_size(self) -> int:
        """Bytes."""
        return self.bits // 8

    def __str__(self) -> str:
        return _text(self.bits, self.value)

    def __repr__(self) -> str:
        return f"IP({self})"


class CIDR:
    """A network as it was written: an address and a prefix length."""

    __slots__ = ("address", "prefix")
    cel_type: ClassVar[Type] = CIDR_TYPE

    def __init__(self, address: IP, prefix: int) -> None:
        self.address = address
        self.prefix = prefix

    def network(self) -> int:
        """The address without its host bits."""
        host = self.address.bits - self.prefix
        return self.address.value >> host << host

    def cel_equal(self, other: Any) -> bool:
        """The same address and length; anything else cannot be compared."""
        if type(other) is not CIDR:
            raise no_such_overload()
        return self.prefix == other.prefix and self.address.cel_equal(other.address)

    def cel_size(self) -> int:
        """Bytes of the prefix."""
        return -(-self.prefix // 8)

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix}"

    def __repr__(self) -> str:
        return f"CIDR({self})"


def parse_ip(text: str) -> IP:
    """`ip(text)`"""
    try:
        return IP(*_parse_address(text))
    except _ParseError as e:
        raise EvaluationError(
            f'IP Address "{text}" parse error during conversion from string: ParseAddr("{text}"): {e}'
        ) from None


def parse_cidr(text: str) -> CIDR:
    """`cidr(text)`"""
    address, slash, bits = text.rpartition("/")
    try:
        if not slash:
            raise _ParseError("no '/'")
        ip = IP(*_parse_address(address))
        if not _BITS.match(bits) or int(bits) > ip.bits:
            raise _ParseError("prefix length out of range")
    except _ParseError as e:
        problem = "network address parse error during conversion from string: "
        raise EvaluationError(f'{problem}{problem}netip.ParsePrefix("{text}"): {e}') from None
    return CIDR(ip, int(bits))


def _valid(parse: Any) -> Any:
    def check(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return check


def _contains(network: CIDR, ip: IP) -> bool:
    host = network.address.bits - network.prefix
    return network.address.bits == ip.bits and network.network() == ip.value >> host << host


def _contains_network(network: CIDR, inner: CIDR) -> bool:
    return network.prefix <= inner.prefix and _contains(network, inner.address)


def _masked(network: CIDR) -> CIDR:
    return CIDR(IP(network.address.bits, network.network()), network.prefix)


def _is_loopback(ip: IP) -> bool:
    return ip.value >> 24 == 127 if ip.bits == 32 else ip.value == 1


def _is_link_local_multicast(ip: IP) -> bool:
    if ip.bits == 32:
        return ip.value >> 8 == 0xE00000
    return ip.value >> 112 & 0xFF0F == 0xFF02


def _is_link_local_unicast(ip: IP) -> bool:
    return ip.value >> 16 == 0xA9FE if ip.bits == 32 else ip.value >> 118 == 0x3FA


def _is_global_unicast(ip: IP) -> bool:
    if ip.bits == 32:
        multicast = ip.value >> 28 == 0xE
        if ip.value == 0xFFFFFFFF:
            return False
    else:
        multicast = ip.value >> 120 == 0xFF
    return not (multicast or ip.value == 0 or _is_loopback(ip) or _is_link_local_unicast(ip))


def _of_ip(name: str, id_: str, result: Type, impl: Any) -> Function:
    return Function(name, (Overload(id_, (IP_TYPE,), result, impl, member=True),), cost=NOMINAL)


_S, _B = types.string, types.bool_

LIBRARY = Library(
    "kubernetes.net",
    functions=(
        Function(
            "ip",
            (
                Overload("string_to_ip", (_S,), IP_TYPE, parse_ip),
                Overload("cidr_ip", (CIDR_TYPE,), IP_TYPE, lambda network: network.address, member=True),
            ),
            cost=costs.IP,
        ),
        Function("isIP", (Overload("is_ip", (_S,), _B, _valid(parse_ip)),), cost=costs.PARSE_ARGUMENT),
        Function(
            "ip.isCanonical",
            (Overload("ip_is_canonical", (_S,), _B, lambda text: str(parse_ip(text)) == text),),
            cost=costs.CANONICAL,
        ),
        _of_ip("family", "ip_family", types.int_, lambda ip: 4 if ip.bits == 32 else 6),
        _of_ip("isUnspecified", "ip_is_unspecified", _B, lambda ip: ip.value == 0),
        _of_ip("isLoopback", "ip_is_loopback", _B, _is_loopback),
        _of_ip("isLinkLocalMulticast", "ip_is_link_local_multicast", _B, _is_link_local_multicast),
        _of_ip("isLinkLocalUnicast", "ip_is_link_local_unicast", _B, _is_link_local_unicast),
        _of_ip("isGlobalUnicast", "ip_is_global_unicast", _B, _is_global_unicast),
        Function(
            "string",
            (
                Overload("ip_to_string", (IP_TYPE,), _S, str),
                Overload("cidr_to_string", (CIDR_TYPE,), _S, str),
            ),
        ),
        Function(
            "cidr", (Overload("string_to_cidr", (_S,), CIDR_TYPE, parse_cidr),), cost=costs.PARSE_ARGUMENT
        ),
        Function("isCIDR", (Overload("is_cidr", (_S,), _B, _valid(parse_cidr)),), cost=costs.PARSE_ARGUMENT),
        Function(
            "containsIP",
            (
                Overload(
                    "cidr_contains_ip_string",
                    (CIDR_TYPE, _S),
                    _B,
                    lambda network, text: _contains(network, parse_ip(text)),
                    member=True,
                ),
                Overload("cidr_contains_ip_ip", (CIDR_TYPE, IP_TYPE), _B, _contains, member=True),
            ),
            cost=costs.CONTAINS_IP,
        ),
        Function(
            "containsCIDR",
            (
                Overload(
                    "cidr_contains_cidr_string",
                    (CIDR_TYPE, _S),
                    _B,
                    lambda network, text: _contains_network(network, parse_cidr(text)),
                    member=True,
                ),
                Overload("cidr_contains_cidr", (CIDR_TYPE, CIDR_TYPE), _B, _contains_network, member=True),
            ),
            cost=costs.CONTAINS_CIDR,
        ),
        Function(
            "prefixLength",
            (Overload("cidr_prefix_length", (CIDR_TYPE,), types.int_, lambda n: n.prefix, member=True),),
            cost=NOMINAL,
        ),
        Function(
            "masked", (Overload("cidr_masked", (CIDR_TYPE,), CIDR_TYPE, _masked, member=True),), cost=NOMINAL
        ),
    ),
    types=(IP_TYPE, CIDR_TYPE),
)
