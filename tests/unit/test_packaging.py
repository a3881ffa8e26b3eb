"""The repository's own shape: `operator/` never shadows the standard library, the lock fits pyproject.

The folder `operator/` is safe only as long as it is no package: with an `__init__.py` it would replace the
standard library's `operator`, and with it nearly every import, wherever the repository root is on
`sys.path`.
"""

from __future__ import annotations

import importlib.util
import operator
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def test_operator_is_the_standard_library() -> None:
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    assert operator.__file__ is not None
    assert Path(operator.__file__).resolve().is_relative_to(stdlib)
    spec = importlib.util.find_spec("operator")
    assert spec is not None
    assert spec.origin == operator.__file__


@pytest.mark.parametrize("folder", ["operator", "driver", "tests"])
def test_folder_is_not_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_fresh_interpreter_at_repository_root() -> None:
    code = "import sys; sys.modules.pop('operator', None); import operator; print(operator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert str(ROOT / "operator") not in done.stdout


def test_no_tool_is_called_like_a_module_of_the_standard_library() -> None:
    """tools/bootstrap.py is run by its path, which puts its folder first on sys.path."""
    names = {path.stem for path in (ROOT / "tools").glob("*.py")} - {"__init__"}
    assert not names & sys.stdlib_module_names


def locked() -> dict[str, str]:
    """Package to version, as pinned."""
    pins = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", LOCK, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def wanted() -> list[Requirement]:
    project = PROJECT["project"]
    texts = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        texts += extra
    for group in PROJECT["dependency-groups"].values():
        texts += group
    texts += PROJECT["build-system"]["requires"]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_lock_file_fits_pyproject(requirement: Requirement) -> None:
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    assert name in locked(), f"{name} is not in requirements.lock: make lock"
    assert requirement.specifier.contains(locked()[name], prereleases=True), "make lock"


def test_every_pin_has_hashes() -> None:
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_layers_name_existing_modules() -> None:
    """Only layers in parentheses may be absent, and import-linter overlooks a mistyped one."""
    layers = " ".join(PROJECT["tool"]["importlinter"]["contracts"][0]["layers"])
    mandatory = [name for name in re.findall(r"[\w.]+", re.sub(r"\([^)]*\)", "", layers)) if "." in name]
    for name in mandatory:
        assert importlib.util.find_spec(name) is not None, name


def test_wheel_has_the_packages_and_the_crds_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {"kubernetes_cel", "sharing_affinity", "affinity_driver"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    crds = {path.name for path in (ROOT / "crds").glob("sharingaffinity.dev_*.yaml")}
    assert {f"sharing_affinity/_crds/{name}" for name in crds} <= set(names)
    for package, folder in {"kubernetes_cel": "operator", "sharing_affinity": "operator"}.items():
        modules = {str(p.relative_to(ROOT / folder)) for p in (ROOT / folder / package).rglob("*.py")}
        assert modules <= set(names)
