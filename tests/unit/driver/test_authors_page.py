"""docs/driver-authors.md: its examples are good objects, its expressions compile, what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from affinity_driver.cli import parser
from sharing_affinity.cli import _files, _lint
from sharing_affinity.extraction import CelEvaluator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/driver-authors.md"
TEXT = PAGE.read_text()


def test_example_objects_make_a_usable_pool(tmp_path: Path) -> None:
    before_the_tutorial = TEXT[: TEXT.index("## Tutorial")]
    blocks = re.findall(r"```yaml\n(.*?)```", before_the_tutorial, re.DOTALL)
    path = tmp_path / "pool.yaml"
    path.write_text("---\n".join(blocks))
    documents = _files.read([str(path)])
    assert [document.raw["kind"] for document in documents] == ["ResourceSlice", "SharingAffinitySlice"]
    assert _lint.lint(documents) == []


def test_expressions_compile() -> None:
    found = re.findall(r"```cel\n(.*?)```", TEXT, re.DOTALL)
    assert found
    assert [CelEvaluator(1).problem(expression) for expression in found] == ["" for _ in found]


def test_files_and_links_exist() -> None:
    table = TEXT[TEXT.index("## In this code") : TEXT.index("## Tutorial")]
    for name in re.findall(r"`([\w/.]+(?:\.py|/))`", table):
        folder = ROOT / ("operator" if name.startswith("sharing_affinity") else "driver/affinity_driver")
        assert (folder / name).exists() or (ROOT / name).exists(), name
    for target in re.findall(r"\]\((\w[\w-]*\.md)", TEXT):
        assert (PAGE.parent / target).exists(), target


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ affinity-driver (extractors .*?)\s*(?:#.*)?$", TEXT, re.MULTILINE)
)
def test_commands_are_understood(line: str) -> None:
    assert parser().parse_args(line.split()).command == "extractors"
