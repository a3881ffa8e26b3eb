"""Objects from files: what ``kubectl get -o yaml`` prints and what people write, read as kubectl would read
it.

YAML scalars are resolved like kubectl resolves them (``no`` is false, ``010`` is 8, but a MAC address or a
date stays text), so that a file means the same here and there. Lists are unwrapped. A mistake is reported
with file and line; for that the document is composed once more, since the fast way does not remember lines.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from kubernetes_cel.values import well_formed
from sharing_affinity.api import BadObject

JSON = dict[str, Any]
NAMESPACED: Final = frozenset({"Pod", "ResourceClaim", "ResourceClaimTemplate", "PersistentVolumeClaim"})
_RESOURCE_VERSIONS: Final = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2")


class InputError(Exception):
    """What is wrong with the input, one line per mistake."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it comes from: document number in a text, path inside it (items of lists), and how
    many lines of the file stand before the text."""

    raw: JSON
    file: str
    number: int
    path: str
    text: str
    before: int = 0

    def locate(self, path: str = "") -> str:
        """``file:line`` of a JSON path inside the object, as near as it can be told."""
        line = _line_of(self.text, self.number, ".".join(p for p in (self.path, path.lstrip("$.")) if p))
        return f"{self.file}:{self.before + line}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Scalars as kubectl's parser resolves them."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    kept: dict[str, list[tuple[str, Any]]] = {}
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept[first] = [
            (tag, pattern)
            for tag, pattern in entries
            if not tag.endswith((":timestamp", ":int", ":float", ":value"))
        ]
    integer = re.compile(r"^[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)$")
    real = re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    )
    for first in "-+0123456789.":
        kept.setdefault(first, []).extend(
            [("tag:yaml.org,2002:int", integer), ("tag:yaml.org,2002:float", real)]
        )
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbBoO":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read(files: Iterable[str]) -> list[Document]:
    """All objects of all files (``-`` is standard input), lists unwrapped, in order.

    Raises :class:`InputError`.
    """
    documents: list[Document] = []
    problems: list[str] = []
    for file in files:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(f"{file}: {reason}")
            continue
        try:
            for document in _parse(text, file):
                documents.extend(_objects(document))
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            problems.append(f"{file}:{line}: not YAML: {error.problem or error.context}")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problems.append(f"{file}:1: not YAML: {error}")
        except InputError as error:
            problems.extend(error.lines)
    if problems:
        raise InputError(problems)
    return documents


def read_value(file: str) -> Any:
    """The one JSON value in a JSON or YAML file (``-`` is standard input), which need not be an object.

    Raises :class:`InputError`.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        values = list(_parse(text, file))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError([f"{file}: {error}"]) from None
    if len(values) != 1:
        raise InputError([f"{file}: has {len(values)} documents, not one"])
    return _jsonable({"object": values[0].raw}, values[0])["object"]


def _parse(text: str, file: str) -> Iterator[Document]:
    """What is in a file, whatever it is: JSON values one after another, or YAML documents."""
    if text.lstrip().startswith(("{", "[", '"')):
        try:
            yield from list(_json(text, file))
            return
        except ValueError:
            pass  # YAML in flow style
    for number, content in enumerate(yaml.load_all(text, Loader=_Loader)):
        yield Document(content, file, number, "", text)


def _json(text: str, file: str) -> Iterator[Document]:
    decoder, visible = json.JSONDecoder(), re.compile(r"\S")
    before = at = end = 0
    while (found := visible.search(text, end)) is not None:
        before += text.count("\n", at, found.start())
        at = found.start()
        content, end = decoder.raw_decode(text, at)
        yield Document(content, file, 0, "", text[at:end], before)


def _objects(document: Document) -> Iterator[Document]:
    content, path = document.raw, document.path
    if content is None:
        return
    if not isinstance(content, Mapping):
        raise InputError([f"{document.locate()}: not a Kubernetes object"])
    kind = content.get("kind")
    if not isinstance(kind, str) or not kind:
        raise InputError([f"{document.locate()}: kind is missing"])
    items = content.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            if isinstance(item, Mapping) and "kind" not in item and kind != "List":
                # Typed lists of the API leave kind and version to the list.
                item = {"kind": kind[:-4], "apiVersion": content.get("apiVersion"), **item}
            yield from _objects(replace(document, raw=item, path=f"{path}.items[{index}]".lstrip(".")))
        return
    yield replace(document, raw=_jsonable(dict(content), document))


def _jsonable(content: JSON, document: Document) -> JSON:
    """Keys as strings and only values that JSON has, as kubectl converts YAML."""

    def convert(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {_key(k): convert(v, f"{path}.{_key(k)}" if path else _key(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [convert(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError([f"{document.locate(path)}: {path}: {value} is not a JSON number"])
        if isinstance(value, str):
            return well_formed(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise InputError([f"{document.locate(path)}: {path}: is not a JSON value"])

    return {_key(k): convert(v, _key(k)) for k, v in content.items()}


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return well_formed(key) if isinstance(key, str) else "null" if key is None else str(key)


def check_version(document: Document) -> None:
    """Refuse versions of resource.k8s.io whose shape is another one."""
    version = document.raw.get("apiVersion", "")
    kind = document.raw.get("kind")
    if kind == "DeviceTaintRule" or not isinstance(version, str):
        return
    if version.startswith("resource.k8s.io/") and version not in _RESOURCE_VERSIONS:
        raise InputError(
            [f"{document.locate('apiVersion')}: {version} is not supported; use resource.k8s.io/v1"]
        )


def located(document: Document, build: Callable[[Any], Any]) -> Any:
    """Build a view; a bad object becomes an :class:`InputError` with its line."""
    try:
        return build(document.raw)
    except BadObject as error:
        raise InputError([f"{document.locate(error.path)}: {error}"]) from None


def _line_of(text: str, number: int, path: str) -> int:
    """The line of a path in a document; the nearest parent's when the path itself is missing."""
    try:
        for index, node in enumerate(yaml.compose_all(text, Loader=_Loader)):
            if index == number:
                return _descend(node, _steps(path))
    except yaml.YAMLError:
        pass
    return 1


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    for part in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        steps.append(int(part[1:-1]) if part.startswith("[") else part)
    return steps


def _descend(node: Any, steps: list[str | int]) -> int:
    line = int(node.start_mark.line) + 1
    remaining = list(steps)
    while remaining:
        step = remaining[0]
        if isinstance(node, yaml.MappingNode):
            # Keys may contain dots, so the longest run of steps that is a key wins.
            found = _member(node, remaining)
            if found is None:
                return line
            key, node, used = found
            line = int(key.start_mark.line) + 1
            del remaining[:used]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = int(node.start_mark.line) + 1
            del remaining[0]
        else:
            return line
    return line


def _member(node: yaml.MappingNode, steps: list[str | int]) -> tuple[Any, Any, int] | None:
    for used in range(len(steps), 0, -1):
        name = ".".join(str(s) for s in steps[:used])
        for key, value in node.value:
            if getattr(key, "value", None) == name:
                return key, value, used
    return None
