"""Expressions and objects for comparing CEL engines: seeded, weighted to what authors of extractors write.

*Extractors* are the idioms of drivers' slices (guards on kind and version, optional fields, string
clean-up, picking from lists). *Grammar* builds expressions of a wanted type from all of the environment's
functions, now and then with a wrong type. *Paths* select and index oddly, *heavy* ones run into the cost
limit. *Mutations* take an extractor or a grammar's expression and spoil tokens. Objects are
configurations such as those extractors read, with fields missing, of wrong types, or odd in value.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes_cel import types
from kubernetes_cel.declarations import Declarations, Overload
from kubernetes_cel.libraries import ADMISSION
from kubernetes_cel.libraries.formats import FORMAT_TYPE, FORMATS
from kubernetes_cel.libraries.network import CIDR_TYPE, IP_TYPE
from kubernetes_cel.libraries.quantity import QUANTITY_TYPE
from kubernetes_cel.libraries.semver import SEMVER_TYPE
from kubernetes_cel.libraries.urls import URL_TYPE
from kubernetes_cel.types import Type

_S, _I, _U, _D, _B, _Y = types.string, types.int_, types.uint, types.double, types.bool_, types.bytes_
_DUR, _TS = types.duration, types.timestamp

STRINGS = [
    *(
        "",
        "a",
        "Subnet-A",
        "subnet-b",
        "NICConfig",
        "networking.example.com/v1",
        "héllo",
        "x y",
        "0x8001",
        "gold",
    ),
    *(
        "10.0.0.1",
        "10.0.0.0/24",
        "fd00::1",
        "1.2.3",
        "v1",
        "100Mi",
        "1Gi",
        "5",
        "5.5",
        "true",
        "2024-01-01T00:00:00Z",
    ),
    *(
        "1h30m",
        "https://example.com:8443/a?b=c",
        "my-name",
        "acme",
        "-",
        "_",
        "/",
        "a.b-c",
        "^[a-z]+-[0-9]+$",
        "[",
        "%s",
    ),
]
PATTERNS = [
    "^[a-z]+$",
    "subnet-[a-z]",
    "[0-9]+",
    "(?i)nic",
    ".*",
    "^10\\.",
    "[",
    "v[0-9]+$",
    "a|b",
    "\\d+",
]
#: Paths that objects usually have, and what is usually found there.
PATHS: list[tuple[str, str]] = [
    *(
        (path, "string")
        for path in ("apiVersion", "kind", "subnetID", "vendor", "qos", "ibPKey", "metadata.name")
    ),
    *(
        (path, "string")
        for path in ("network.vpc", "rdma.gid.type", "address", "cidr", "memory", "version", "url")
    ),
    *((path, "int") for path in ("mtu", "vlanTag", "rdma.gid.index", "n")),
    *((path, "double") for path in ("ratio", "f")),
    *((path, "bool") for path in ("enabled", "rdma.enabled")),
    *((path, "list") for path in ("tags", "rdma.pkeys", "network.dns", "numbers", "mixed")),
    *((path, "maps") for path in ("network.subnets", "ports")),
    *((path, "map") for path in ("metadata.labels", "metadata", "network", "rdma", "empty")),
    *((path, "null") for path in ("nothing",)),
    *((path, "missing") for path in ("missing", "network.missing", "missing.deeper", "kind.length")),
]
_BY_KIND: dict[str, list[str]] = {}
for _path, _kind in PATHS:
    _BY_KIND.setdefault(_kind, []).append(_path)


@dataclass(frozen=True, slots=True)
class Expression:
    """`source` is extractor, grammar, selector, paths, heavy or mutation."""

    text: str
    source: str
    env: str = "admission"


def quoted(text: str) -> str:
    """A string literal."""
    return json.dumps(text, ensure_ascii=False)


class Generator:
    """All randomness comes from one seeded source, so a seed is a corpus."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._calls = _calls_by_result()
        self._scope: list[tuple[str, Type]] = []
        self._sloppy = 0.0

    # Objects

    def object(self) -> dict[str, Any]:
        """A configuration, most often whole, sometimes spoilt."""
        r = self.random
        value: dict[str, Any] = {
            "apiVersion": r.choice(["networking.example.com/v1", "networking.example.com/v2", "v1"]),
            "kind": r.choice(["NICConfig", "NICConfig", "FPGAConfig", "Other"]),
            "metadata": {"name": r.choice(STRINGS), "labels": {"team": "infra"}},
            "subnetID": r.choice(["Subnet-A", "subnet-b", " Subnet-C ", "", "sübnet"]),
            "vendor": r.choice(["acme", "ACME", "other"]),
            "qos": r.choice(["gold", "silver", ""]),
            "ibPKey": r.choice(["0x8001", "0x8002", "8001"]),
            "mtu": r.choice([1500, 9000, 0, -1]),
            "vlanTag": r.choice([1, 100, 4094]),
            "n": r.choice([5, 0, -3, 9223372036854775807, 18446744073709551615, 2**70, 5.0, 5.5]),
            "ratio": r.choice([0.5, 1.0, 1e30, -0.0]),
            "f": r.choice([2.0, 2.5, 1e6, 123456789.0]),
            "enabled": r.choice([True, False]),
            "nothing": None,
            "address": r.choice(["10.0.0.7", "192.168.1.1", "fd00::1", "nonsense"]),
            "cidr": r.choice(["10.0.0.0/24", "10.0.0.0/8", "fd00::/8", "10.0.0.0"]),
            "memory": r.choice(["1Gi", "512Mi", "1.5", "100m", "junk"]),
            "version": r.choice(["1.2.3", "1.10.0", "2.0.0-rc.1", "v1"]),
            "url": r.choice(["https://example.com/a?b=c", "http://h:80", "junk"]),
            "network": {
                "vpc": r.choice(["vpc-0123", "vpc-4567"]),
                "subnets": [
                    {
                        "id": f"subnet-{c}",
                        "cidr": f"10.0.{i}.0/24",
                        "role": r.choice(["data", "mgmt", "storage"]),
                    }
                    for i, c in enumerate("abc"[: r.choice([0, 1, 2, 3])])
                ],
                "dns": ["8.8.8.8", "8.8.4.4"][: r.choice([0, 1, 2])],
            },
            "rdma": {
                "enabled": r.choice([True, False]),
                "pkeys": r.choice([["0x8001", "0x8002"], ["b", "a"], []]),
                "gid": {"index": r.choice([0, 3]), "type": r.choice(["RoCEv2", "IB"])},
            },
            "tags": r.choice([["a", "b", "c"], ["b", "a", "a"], [], ["x"]]),
            "numbers": r.choice([[3, 1, 2], [1, 2, 3], [1, 2.5], []]),
            "mixed": [1, 2.0, "x", None, True, [1], {"a": 1}],
            "ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}][: r.choice([0, 1, 2])],
            "empty": {},
            "long": list(range(r.choice([3, 40, 120, 250]))),
        }
        for _ in range(r.choice([0, 0, 1, 1, 2, 4])):
            self._spoil(value)
        return value

    def _spoil(self, value: dict[str, Any]) -> None:
        r = self.random
        at: Any = value
        key = r.choice(sorted(at))
        while isinstance(at[key], dict) and at[key] and r.random() < 0.6:
            at = at[key]
            key = r.choice(sorted(at))
        if r.random() < 0.5:
            del at[key]
        else:
            odd = [None, "", 0, -1, 1.5, True, [], {}, "x", [1], {"k": "v"}, "é" * 20, 2**64]
            at[key] = copy.deepcopy(r.choice(odd))

    def device(self) -> dict[str, Any]:
        """A device as a ResourceSlice has it, with the driver."""
        r = self.random
        attributes: dict[str, Any] = {}
        for name in (
            "model",
            "numa",
            "healthy",
            "firmware",
            "resource.kubernetes.io/pcieRoot",
            "other.example.com/vlans",
        ):
            if r.random() < 0.75:
                attributes[name] = r.choice(
                    [
                        {"string": r.choice(["ConnectX-7", "x", "", "é" * 10])},
                        {"int": r.choice([0, 1, -5, 2**62])},
                        {"bool": r.choice([True, False])},
                        {"version": r.choice(["1.2.3", "10.0.0-rc.1+b", "0.0.1"])},
                        {"ints": [1, 2, 3]},
                        {"strings": ["a", "b"]},
                    ]
                )
        capacity = {
            name: {"value": r.choice(["1Gi", "16", "1500m", "0", "10Mi"])}
            for name in ("memory", "slots", "other.example.com/bandwidth")
            if r.random() < 0.75
        }
        device: dict[str, Any] = {"driver": r.choice(["nic.example.com", "gpu.example.com"])}
        device["attributes"] = attributes
        device["capacity"] = capacity
        if r.random() < 0.7:
            device["allowMultipleAllocations"] = r.choice([True, False])
        return device

    # Expressions

    def expression(self) -> Expression:
        """One expression of the corpus."""
        r = self.random
        roll = r.random()
        if roll < 0.25:
            return Expression(self._extractor(), "extractor")
        if roll < 0.42:
            self._sloppy = 0.0 if r.random() < 0.5 else 0.06
            wanted = r.choice(
                [_S, _S, _S, _B, _B, _I, types.list_of(_S), _D, _DUR, _TS, QUANTITY_TYPE, types.dyn]
            )
            return Expression(self._of(wanted, r.choice([1, 2, 2, 3, 3, 4])), "grammar")
        if roll < 0.48:
            return Expression(self._selector(), "selector", env="device")
        if roll < 0.486:
            return Expression(self._heavy(), "heavy")
        if roll < 0.52:
            wrapped = r.choice(
                ["{}", "{}", "string({})", "size({})", "{}.hasValue()", "{}.orValue(1)", "{} == {}"]
            )
            return Expression(wrapped.replace("{}", self._odd_path()), "paths")
        self._sloppy = 0.0
        base = self._extractor() if r.random() < 0.7 else self._of(r.choice([_S, _B, _I]), 3)
        for _ in range(r.choice([1, 1, 2])):
            base = self._mutated(base)
        return Expression(base, "mutation")

    def expressions(self, count: int) -> Iterator[Expression]:
        """`count` expressions."""
        return (self.expression() for _ in range(count))

    def _path(self, kind: str) -> str:
        path = self.random.choice(_BY_KIND[kind])
        roll = self.random.random()
        if roll < 0.03:
            return self._odd_path()
        if roll < 0.07:
            head, _, last = path.rpartition(".")
            return f'object{"." + head if head else ""}["{last}"]'
        return f"object.{path}"

    def _odd_path(self) -> str:
        """Selections and indexes that authors write rarely, and wrong ones."""
        r = self.random
        path = "object"
        if self._scope and r.random() < 0.3:
            path = r.choice(self._scope)[0]
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            name = r.choice(
                [*_BY_KIND["string"], "tags", "network", "rdma", "mixed", "missing", "nothing", "ports"]
            )
            name = name.rpartition(".")[2]
            indexes = [
                "0",
                "1",
                "-1",
                "5",
                "1u",
                "0.0",
                "1.5",
                "true",
                "null",
                '"role"',
                '"missing"',
                "object.n",
                "[1]",
            ]
            path += r.choice(
                [
                    f".{name}",
                    f".{name}",
                    f".?{name}",
                    f'["{name}"]',
                    f'[?"{name}"]',
                    f"[{r.choice(indexes)}]",
                    f"[?{r.choice(indexes)}]",
                    f".`{name}`",
                    f"[{self._path('string')}]",
                ]
            )
        return path

    def _heavy(self) -> str:
        """Loops in loops over long lists, around the cost limit."""
        r = self.random
        lists = ["object.long", "object.long.map(l, l)", "(object.long + object.long)", "lists.range(200)"]
        inner = r.choice(
            [
                "x == y",
                "x != y",
                "string(x) != string(y)",
                "object.long.exists(z, z == x + y)",
                "object.long.all(z, z != -1)",
                "object.long.map(z, z * x).size() > y",
                '(string(x) + "-").startsWith(string(y))',
                "[x, y].sort()[0] == x || object.long.distinct().size() > 0",
            ]
        )
        macros = ["all", "exists", "exists_one", "filter", "map"]
        outer, middle = r.choice(macros), r.choice(["all", "exists", "exists_one"])
        return f"{r.choice(lists)}.{outer}(x, {r.choice(lists)}.{middle}(y, {inner}))"

    def _text_field(self) -> str:
        return self._path("string") if self.random.random() < 0.95 else self._path("missing")

    def _string(self) -> str:
        return quoted(self.random.choice(STRINGS))

    def _guard(self) -> str:
        r = self.random
        version = quoted(r.choice(["networking.example.com/v1", "networking.example.com/v2", "v1"]))
        kind = quoted(r.choice(["NICConfig", "FPGAConfig"]))
        return r.choice(
            [
                f"object.apiVersion == {version} && object.kind == {kind}",
                f"object.kind == {kind}",
                f"object.kind in [{kind}, {self._string()}]",
                f"has(object.kind) && object.kind == {kind}",
                f'object.apiVersion.startsWith("networking.example.com/") && object.kind == {kind}',
                f'(object.apiVersion == {version} || object.apiVersion == "v1") && object.kind == {kind}',
                f"object.?kind.orValue({self._string()}) == {kind}",
                f"has(object.{r.choice(_BY_KIND['string'])})",
                f"object.enabled && object.mtu >= {r.choice([1500, 9000, 0])}",
                f"size(object.tags) > {r.choice([0, 1])}",
                f"object.tags.exists(t, t == {self._string()})",
            ]
        )

    def _picked(self) -> str:
        """Something an extractor returns."""
        r = self.random
        field = self._text_field()
        last = r.choice(_BY_KIND["string"])
        return r.choice(
            [
                field,
                field,
                field,
                f"{field}.lowerAscii()",
                f"{field}.trim().lowerAscii()",
                f'{field}.replace("-", "_")',
                f"string({self._path('int')})",
                f'{field} + "/" + {self._text_field()}',
                f'{field}.split("-")[{r.choice([0, 1, -1, 2])}]',
                f"{field}.substring({r.choice([0, 2, 5])})",
                f"object.?{last}.orValue({self._string()})",
                f"has(object.{last}) ? object.{last} : {self._string()}",
                f"object.network.subnets.filter(s, s.role == {quoted(r.choice(['data', 'mgmt']))})[0].id",
                f"object.network.subnets.map(s, s.id).join({quoted(r.choice([',', '', '-']))})",
                f"object.tags[{r.choice([0, 1, 5])}]",
                f"object.tags.{r.choice(['min', 'max', 'sort', 'isSorted', 'size'])}()",
                f"object.metadata.labels[{quoted(r.choice(['team', 'zone', 'none']))}]",
                f"object.metadata.?labels[?{quoted(r.choice(['team', 'none']))}].orValue({self._string()})",
                f'"%s-%d".format([{field}, {self._path("int")}])',
                f"{field}.find({quoted(r.choice(PATTERNS))})",
                "string(cidr(object.cidr).masked())",
                'cidr(object.cidr).containsIP(object.address) ? "in" : "out"',
                'quantity(object.memory).isGreaterThan(quantity("1Gi")) ? "big" : "small"',
                'semver(object.version).major() >= 1 ? "new" : "old"',
                "url(object.url).getHost()",
                f"object.rdma.enabled ? object.rdma.pkeys[0] : {self._string()}",
                f"object.ports.exists(p, p.port == {r.choice([80, 443])}) ? {self._string()} : {field}",
                f"object.vlanTag == {r.choice(['100', '100.0', '100u'])} ? {field} : {self._string()}",
                self._string(),
            ]
        )

    def _branch(self) -> str:
        """The same between `?` and `:`, where another condition needs parentheses (mostly there)."""
        picked = self._picked()
        return f"({picked})" if " ? " in picked and self.random.random() < 0.97 else picked

    def _extractor(self) -> str:
        r = self.random
        roll = r.random()
        if roll < 0.4:
            other = '""' if r.random() < 0.7 else self._picked()
            return f"{self._guard()} ? {self._branch()} : {other}"
        if roll < 0.6:
            other = f"{self._guard()} ? {self._branch()} : {self._string()}"
            return f"{self._guard()} ? {self._branch()} : ({other})"
        if roll < 0.75:
            both = f"({self._guard()}) {r.choice(['&&', '||'])} ({self._guard()})"
            return f"{both} ? {self._branch()} : {self._picked()}"
        return self._picked()

    def _selector(self) -> str:
        r = self.random
        domain = r.choice(
            ['"nic.example.com"', '"other.example.com"', '"resource.kubernetes.io"', '"absent.example.com"']
        )
        name = r.choice(["model", "numa", "healthy", "firmware", "pcieRoot", "vlans", "missing"])
        attribute = r.choice(
            [f"device.attributes[{domain}].{name}", f'device.attributes[{domain}]["{name}"]']
        )
        amount = f"device.capacity[{domain}].{r.choice(['memory', 'slots', 'bandwidth', 'missing'])}"
        driver = quoted(r.choice(["nic.example.com", "gpu.example.com"]))
        atoms = [
            f"device.driver == {driver}",
            f"device.driver.startsWith({quoted(r.choice(['nic', 'gpu']))})",
            f"{attribute} == {r.choice([quoted('ConnectX-7'), '1', 'true', '1.0', self._string()])}",
            f"has(device.attributes[{domain}].{name})",
            f"{domain} in device.attributes",
            f'"{name}" in device.attributes[{domain}]',
            f"{attribute}.compareTo(semver({quoted(r.choice(['1.2.3', '0.1.0', 'x']))})) >= 0",
            f"{attribute} > {r.choice(['0', '1.5', '2u'])}",
            f"{amount}.compareTo(quantity({quoted(r.choice(['1Gi', '10', 'x']))})) >= 0",
            f"{amount}.isGreaterThan(quantity({quoted(r.choice(['1Gi', '10']))}))",
            "device.allowMultipleAllocations == true",
            "device.allowMultipleAllocations",
            f"device.attributes[{domain}].?{name}.orValue({self._string()}) == {self._string()}",
            f"device.attributes[{domain}].exists(k, k == {quoted(name)})",
            f"cel.bind(a, device.attributes[{domain}], a.{name} == {self._string()} && has(a.model))",
            f"{attribute}.lowerAscii().matches({quoted(r.choice(PATTERNS))})",
            f"{attribute}.includes({r.choice(['1', quoted('a')])})",
            f"size(device.attributes) > {r.choice([0, 1, 2])}",
            attribute,
            "device.nope",
        ]
        text = r.choice(atoms)
        for _ in range(r.choice([0, 0, 1, 2])):
            text = f"{text} {r.choice(['&&', '||'])} {r.choice(atoms)}"
        return f"!({text})" if r.random() < 0.1 else text

    # Grammar

    def _of(self, wanted: Type, depth: int) -> str:
        """An expression of a type, or by accident of another."""
        r = self.random
        if self._sloppy and r.random() < self._sloppy:
            wanted = r.choice([_S, _I, _B, _D, _U, _Y, _DUR, _TS, types.list_of(_I), IP_TYPE, types.null])
        if depth <= 0:
            return self._leaf(wanted)
        roll = r.random()
        if roll < 0.2:
            return self._leaf(wanted)
        if roll < 0.28:
            return (
                f"({self._of(_B, depth - 1)} ? {self._of(wanted, depth - 1)} : {self._of(wanted, depth - 1)})"
            )
        if roll < 0.55:
            made = self._operator(wanted, depth - 1)
            if made is not None:
                return made
        return self._call(wanted, depth - 1)

    def _leaf(self, wanted: Type) -> str:
        r = self.random
        known = [name for name, kind in self._scope if kind in (wanted, types.dyn)]
        if known and r.random() < 0.6:
            return r.choice(known)
        if wanted == _S:
            return self._text_field() if r.random() < 0.5 else self._string()
        if wanted == _I:
            numbers = ["0", "1", "2", "-1", "5", "100", "9223372036854775807", "-9223372036854775808", "0x1F"]
            return self._path("int") if r.random() < 0.4 else r.choice(numbers)
        if wanted == _U:
            return r.choice(["0u", "1u", "5u", "18446744073709551615u", "uint(object.n)"])
        if wanted == _D:
            return (
                self._path("double")
                if r.random() < 0.4
                else r.choice(["0.0", "1.5", "-2.5", "1e6", "1e300", ".5"])
            )
        if wanted == _B:
            return self._path("bool") if r.random() < 0.5 else r.choice(["true", "false"])
        if wanted == _Y:
            return r.choice(["b''", "b'abc'", "b'\\xff'", "bytes(object.kind)", "(b'a' + b'b')"])
        if wanted == _DUR:
            return f"duration({quoted(r.choice(['1h', '1h30m', '-5s', '0', '1ns', '2562047h']))})"
        if wanted == _TS:
            stamps = [
                "2024-02-29T12:30:45.5Z",
                "0001-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
                "2024-01-01T00:00:00+05:30",
            ]
            return f"timestamp({quoted(r.choice(stamps))})"
        if wanted == types.null:
            return "null"
        if wanted.kind == types.TYPE:
            return r.choice(["int", "string", "type(object.kind)", "bool", "list"])
        if wanted.kind == types.LIST:
            if r.random() < 0.35:
                return self._path("list")
            return f"[{', '.join(self._leaf(wanted.params[0]) for _ in range(r.choice([0, 1, 2, 3])))}]"
        if wanted.kind == types.MAP:
            if r.random() < 0.5:
                return self._path("map")
            key, value = wanted.params
            entries = (f"{self._leaf(key)}: {self._leaf(value)}" for _ in range(r.choice([0, 1, 1])))
            return f"{{{', '.join(entries)}}}"
        if wanted.kind == types.OPAQUE and wanted.name == "optional_type":
            inner = wanted.params[0]
            return r.choice(
                [
                    f"optional.of({self._leaf(inner)})",
                    "optional.none()",
                    f"object.?{r.choice(_BY_KIND['string'])}",
                ]
            )
        parsed: dict[Type, tuple[str, list[str]]] = {
            IP_TYPE: ("ip", ["10.0.0.1", "fd00::1", "bad"]),
            CIDR_TYPE: ("cidr", ["10.0.0.0/8", "fd00::/8", "10.1.2.3/16", "bad"]),
            QUANTITY_TYPE: ("quantity", ["1Gi", "1.5", "100m", "1e3", "bad"]),
            SEMVER_TYPE: ("semver", ["1.2.3", "1.2.3-rc.1", "bad"]),
            URL_TYPE: ("url", ["https://example.com:8443/a?b=c", "/p", "bad"]),
        }
        if wanted in parsed:
            function, texts = parsed[wanted]
            return f"{function}({quoted(r.choice(texts))})"
        if wanted == FORMAT_TYPE:
            return f"format.{r.choice(sorted(FORMATS))}()"
        if wanted.kind == types.TYPE_PARAM:
            return self._leaf(r.choice([_S, _I]))
        kinds = ("string", "int", "list", "map", "bool", "null", "missing")
        return self._path(r.choice(kinds)) if r.random() < 0.8 else "dyn(1)"

    def _bound(self, name: str, kind: Type, body: Callable[[], str]) -> str:
        self._scope.append((name, kind))
        try:
            return body()
        finally:
            self._scope.pop()

    def _operator(self, wanted: Type, depth: int) -> str | None:
        """Operators and macros, which no library declares."""
        r = self.random
        var = r.choice(["x", "y", "k"])
        if wanted == _B:
            kind = r.choice([_I, _S, _S, _D, _U, _DUR, _TS, _B, types.dyn])
            items = r.choice([_S, _I, types.dyn])
            over = self._of(types.list_of(items), depth)
            return r.choice(
                [
                    lambda: f"{self._of(kind, depth)} {r.choice(['==', '!='])} {self._of(kind, depth)}",
                    lambda: (
                        f"{self._of(kind, depth)} {r.choice(['<', '<=', '>', '>='])} {self._of(kind, depth)}"
                    ),
                    lambda: f"({self._of(_B, depth)} {r.choice(['&&', '||'])} {self._of(_B, depth)})",
                    lambda: f"!{self._of(_B, 0)}",
                    lambda: f"has(object.{r.choice(PATHS)[0]})",
                    lambda: f"{self._of(items, depth)} in {over}",
                    lambda: f"{self._of(_S, 0)} in {self._path('map')}",
                    lambda: (
                        f"{over}.{r.choice(['all', 'exists', 'exists_one'])}({var}, "
                        f"{self._bound(var, items, lambda: self._of(_B, depth))})"
                    ),
                    lambda: (
                        f"{over}.{r.choice(['all', 'exists', 'existsOne'])}(i, {var}, "
                        f"{self._bound(var, items, lambda: self._of(_B, depth))})"
                    ),
                    lambda: (
                        f"{self._of(_S, depth)}.{r.choice(['startsWith', 'endsWith', 'contains'])}"
                        f"({self._of(_S, 0)})"
                    ),
                    lambda: f"{self._of(_S, depth)}.matches({quoted(r.choice(PATTERNS))})",
                    lambda: f"{self._of(types.optional_of(_S), depth)}.hasValue()",
                ]
            )()
        if wanted == _S:
            return r.choice(
                [
                    lambda: f"{self._of(_S, depth)} + {self._of(_S, depth)}",
                    lambda: f"{self._of(types.list_of(_S), depth)}[{self._of(_I, 0)}]",
                    lambda: f"{self._of(types.optional_of(_S), depth)}.orValue({self._of(_S, depth)})",
                    lambda: (
                        f'"{r.choice(["%s", "%s-%s", "%d", "%.2f", "%x"])}".format([{self._of(_S, depth)}])'
                    ),
                ]
            )()
        if wanted in (_I, _D, _U):
            sign = r.choice(["+", "-", "*", "/", "%"] if wanted != _D else ["+", "-", "*", "/"])
            if wanted == _I and r.random() < 0.4:
                return f"size({self._of(r.choice([_S, types.list_of(_S), _Y]), depth)})"
            return f"({self._of(wanted, depth)} {sign} {self._of(wanted, depth)})"
        if wanted == _DUR:
            return r.choice(
                [
                    f"({self._of(_DUR, depth)} + {self._of(_DUR, 0)})",
                    f"({self._of(_TS, 0)} - {self._of(_TS, 0)})",
                ]
            )
        if wanted == _TS:
            return f"({self._of(_TS, depth)} {r.choice(['+', '-'])} {self._of(_DUR, depth)})"
        if wanted.kind == types.LIST:
            element = wanted.params[0]
            source = r.choice([_S, _I])
            over = self._of(types.list_of(source), depth)
            return r.choice(
                [
                    lambda: f"[{', '.join(self._of(element, depth) for _ in range(r.choice([1, 2, 3])))}]",
                    lambda: f"({self._of(wanted, depth)} + {self._of(wanted, depth)})",
                    lambda: (
                        f"{over}.map({var}, {self._bound(var, source, lambda: self._of(element, depth))})"
                    ),
                    lambda: (
                        f"{self._of(wanted, depth)}.filter({var}, "
                        f"{self._bound(var, element, lambda: self._of(_B, depth))})"
                    ),
                    lambda: (
                        f"{over}.map({var}, {self._bound(var, source, lambda: self._of(_B, 0))}, "
                        f"{self._bound(var, source, lambda: self._of(element, depth))})"
                    ),
                    lambda: (
                        f"{over}.transformList(i, {var}, "
                        f"{self._bound(var, source, lambda: self._of(element, depth))})"
                    ),
                    lambda: (
                        f"{self._of(wanted, depth)}.sortBy({var}, "
                        f"{self._bound(var, element, lambda: self._of(_I, 1))})"
                    ),
                ]
            )()
        if wanted.kind == types.MAP:
            return f"{self._of(types.list_of(_I), depth)}.transformMap(i, v, {self._leaf(wanted.params[1])})"
        if wanted.kind == types.OPAQUE and wanted.name == "optional_type":
            inner = self._of(wanted.params[0], depth)
            return r.choice(
                [
                    f"optional.ofNonZeroValue({inner})",
                    f"optional.of({inner}).optMap(o, o)",
                    f"optional.of({inner})",
                ]
            )
        return None

    def _call(self, wanted: Type, depth: int) -> str:
        r = self.random
        choices = self._calls.get(wanted.name if wanted.kind != types.LIST else "list", [])
        if wanted.kind == types.DYN or not choices:
            return self._leaf(wanted)
        name, overload = r.choice(choices)
        bound: dict[str, Type] = {}
        if wanted.kind == types.LIST and overload.result.kind == types.LIST:
            _bind(overload.result.params[0], wanted.params[0], bound)

        def argument(kind: Type) -> str:
            return self._of(_resolved(kind, bound, r), depth)

        arguments = [argument(kind) for kind in overload.args]
        if name in ("find", "findAll") and r.random() < 0.9:
            arguments[1] = quoted(r.choice(PATTERNS))
        if overload.member:
            return f"{arguments[0]}.{name}({', '.join(arguments[1:])})"
        return f"{name}({', '.join(arguments)})"

    # Mutations

    def _mutated(self, text: str) -> str:
        r = self.random
        tokens = re.findall(
            r'"(?:[^"\\]|\\.)*"|[A-Za-z_][A-Za-z_0-9]*|[0-9.]+u?|\s+|&&|\|\||==|!=|<=|>=|.', text
        )
        if not tokens:
            return "object"
        at = r.randrange(len(tokens))
        roll = r.random()
        if roll < 0.22:
            del tokens[at]
        elif roll < 0.25:
            tokens.insert(at, tokens[at])
        elif roll < 0.44:
            other = r.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif roll < 0.6:
            words = [i for i, token in enumerate(tokens) if re.match(r"[A-Za-z_]", token)]
            if words:
                names = [
                    "missing",
                    "object",
                    "kind",
                    "size",
                    "Object",
                    "x",
                    "in",
                    "null",
                    "true",
                    "self",
                    "tags",
                    "int",
                ]
                tokens[r.choice(words)] = r.choice(names)
        elif roll < 0.85:
            literals = [i for i, token in enumerate(tokens) if token[0] == '"' or token[0].isdigit()]
            odd = [
                "1",
                "1.5",
                "2u",
                "null",
                "true",
                '"x"',
                "[]",
                "{}",
                "b'x'",
                "-1",
                '"\\u00e9"',
                "'\\q'",
                "[1, 'a']",
            ]
            if literals:
                tokens[r.choice(literals)] = r.choice(odd)
        else:
            extra = [
                "(",
                ")",
                "[",
                "]",
                ".",
                ",",
                "?",
                ":",
                "+",
                "&&",
                "!",
                "-",
                "{",
                "}",
                "`",
                "\\",
                "@",
                " in ",
                "'",
                "//",
            ]
            tokens.insert(at, r.choice(extra))
        return "".join(tokens)


def _calls_by_result() -> dict[str, list[tuple[str, Overload]]]:
    calls: dict[str, list[tuple[str, Overload]]] = {}
    for function in Declarations.of(ADMISSION, {}).functions.values():
        if not re.match(r"[A-Za-z]", function.name):
            continue
        for overload in function.overloads:
            result = overload.result
            calls.setdefault(result.name if result.kind != types.LIST else "list", []).append(
                (function.name, overload)
            )
    return calls


def _bind(pattern: Type, actual: Type, bound: dict[str, Type]) -> None:
    if pattern.kind == types.TYPE_PARAM:
        bound.setdefault(pattern.name, actual)


def _resolved(kind: Type, bound: dict[str, Type], r: random.Random) -> Type:
    if kind.kind == types.TYPE_PARAM:
        if kind.name not in bound:
            bound[kind.name] = r.choice([_S, _I, _S, _B])
        return bound[kind.name]
    if kind.params:
        return Type(kind.kind, kind.name, tuple(_resolved(p, bound, r) for p in kind.params))
    return kind
