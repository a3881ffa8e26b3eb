"""Extractors from a file: what an administrator writes, checked before any cluster sees it.

    sharingAffinity:
      - name: subnet
        expression: 'has(object.subnet) ? object.subnet : ""'

The same rules as of a SharingAffinitySlice's field of that name, compiled and costed as the operator does it.
Every mistake is told with its line, all of them at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import yaml

from affinity_driver.publish.validate import extractor_problem
from sharing_affinity.api import Extractor, names
from sharing_affinity.extraction import CelEvaluator

FIELD = "sharingAffinity"


class FileError(Exception):
    """The file cannot be used; one line per mistake, each ``file:line: what is wrong``."""


def read(path: Path) -> tuple[Extractor, ...]:
    """The extractors in ``path``, sorted by name. Raises FileError."""
    return parse(load(path), str(path))


def load(path: Path) -> str:
    """The text in ``path``. Raises FileError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def parse(text: str, file: str = "-") -> tuple[Extractor, ...]:
    """The extractors in ``text``; ``file`` is its name in messages. Raises FileError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FileError(f"{file}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise FileError(f"{file}:1: not YAML: {error}") from error
    found: list[tuple[int, Extractor]] = []
    problems = [f"{file}:{line}: {problem}" for line, problem in _walk(root, found)]
    if problems:
        raise FileError("\n".join(problems))
    return tuple(sorted((extractor for _, extractor in found), key=lambda extractor: extractor.name))


def _walk(root: Any, found: list[tuple[int, Extractor]]) -> Iterator[tuple[int, str]]:
    """Collect the entries and yield what is wrong with them, with line numbers from 1."""
    fields = _fields(root)
    if fields is None or fields.keys() != {FIELD}:
        yield _line(root), f"one field is needed, {FIELD}, a list of name and expression"
        return
    entries = fields[FIELD]
    if not isinstance(entries, yaml.SequenceNode) or not entries.value:
        yield _line(entries), f"{FIELD}: a list of at least one entry is needed"
        return
    for entry in entries.value:
        extractor = yield from _entry(entry)
        if extractor is not None:
            found.append((_line(entry), extractor))
    yield from _together(found)


def _entry(node: yaml.Node) -> Generator[tuple[int, str], None, Extractor | None]:
    fields = _fields(node)
    if fields is None or fields.keys() != {"name", "expression"}:
        yield _line(node), "an entry has exactly the fields name and expression"
        return None
    for field, value in fields.items():
        if not isinstance(value, yaml.ScalarNode) or value.tag != "tag:yaml.org,2002:str":
            yield _line(value), f"{field}: a string is needed; put it into quotes"
            return None
    return Extractor(fields["name"].value, fields["expression"].value)


def _together(found: list[tuple[int, Extractor]]) -> Iterator[tuple[int, str]]:
    evaluator = CelEvaluator(1)
    first: dict[str, int] = {}
    total = 0
    for line, extractor in found:
        if extractor.name in first:
            yield line, f"{extractor.name}: declared in line {first[extractor.name]} already"
        first.setdefault(extractor.name, line)
        if problem := extractor_problem(extractor):
            yield line, problem
        elif problem := evaluator.problem(extractor.expression):
            yield line, f"{extractor.name}: {problem.splitlines()[0]}"
        else:
            cost = evaluator.estimate(extractor.expression) or 0
            total += cost
            if total > names.POOL_COST_BUDGET:
                yield (
                    line,
                    (
                        f"{extractor.name}: the extractors up to here may cost {total}, over the budget of "
                        f"{names.POOL_COST_BUDGET}; docs/cel.md says what to write instead"
                    ),
                )
                return


def _fields(node: Any) -> dict[str, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    fields = {str(key.value): value for key, value in node.value}
    return fields if len(fields) == len(node.value) else None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1 if node is not None else 1
