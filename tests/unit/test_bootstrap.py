"""The set-up program where it can be judged without a network: what it decides, and what it tells people."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with nothing but the files that count, and the program's paths pointing into it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)  # the settings of whoever runs the tests
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "requirements.lock").write_text("one==1.0 \\\n    --hash=sha256:00\ntwo==2 ; x\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "CACHE", tmp_path / ".cache")
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / ".venv" / "stamp.json")
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be installed; making .venv itself is left real."""
    seen: list[str] = []
    monkeypatch.setattr(bootstrap, "find_pip", lambda: ["pip"])
    monkeypatch.setattr(bootstrap, "install", lambda command, what, total=0: seen.append(what))
    monkeypatch.setattr(bootstrap, "leave_only_locked", lambda pip: None)
    return seen


def test_an_old_interpreter_gets_as_far_as_its_message() -> None:
    source = (ROOT / "tools" / "bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 6))


def test_an_old_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    problem = bootstrap.old_python()
    assert problem is not None
    assert "Python 3.11 or newer is needed" in problem
    assert "is 3.9" in problem
    assert "make PYTHON=" in problem


def test_second_call_does_nothing(clone: Path, calls: list[str]) -> None:
    bootstrap.bootstrap()
    assert calls == ["packages", "this project"]
    bootstrap.bootstrap()
    assert calls == ["packages", "this project"]


def test_changed_lock_installs_again_and_changed_project_only_itself(clone: Path, calls: list[str]) -> None:
    bootstrap.bootstrap()
    calls.clear()
    (clone / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    bootstrap.bootstrap()
    assert calls == ["this project"]
    calls.clear()
    (clone / "requirements.lock").write_text("one==1.1\n")
    bootstrap.bootstrap()
    assert calls == ["packages", "this project"]


def test_interrupted_run_is_done_again(
    clone: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[str], what: str, total: int = 0) -> None:
        if what == "this project":
            raise KeyboardInterrupt
        calls.append(what)

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.bootstrap()
    leftover = clone / ".venv" / "half-done"
    leftover.touch()
    bootstrap.bootstrap()
    assert calls == ["packages", "packages", "this project"]
    assert not leftover.exists()


def test_damaged_stamp_counts_as_none(clone: Path, calls: list[str]) -> None:
    bootstrap.bootstrap()
    (clone / ".venv" / "stamp.json").write_text("{")
    bootstrap.bootstrap()
    assert calls == ["packages", "this project"] * 2


def test_moved_clone_is_set_up_again(clone: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts in .venv hold absolute paths."""
    bootstrap.bootstrap()
    moved = bootstrap.found()
    moved["place"] = "/elsewhere/.venv"
    bootstrap.write_stamp(moved)
    bootstrap.bootstrap()
    assert calls == ["packages", "this project"] * 2


def test_venv_without_the_module_venv_runs(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = bootstrap.importlib.util.find_spec
    monkeypatch.setattr(
        bootstrap.importlib.util, "find_spec", lambda name: None if name == "venv" else find(name)
    )
    bootstrap.make_venv()
    code = "import sys, json; print(sys.prefix != sys.base_prefix, sys.prefix)"
    python = str(bootstrap.python_of(clone / ".venv"))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", str(clone / ".venv")]


def test_environment_keeps_index_settings_and_drops_misleading_ones(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "/somewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "mirror")
    monkeypatch.setenv("HTTPS_PROXY", "proxy")
    env = bootstrap.environment()
    assert not {"PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"} & set(env)
    assert (env["PIP_USER"], env["PIP_INDEX_URL"], env["HTTPS_PROXY"]) == ("0", "mirror", "proxy")


@pytest.mark.parametrize("home", [None, "", "/nonexistent"])
def test_no_home_gets_one_in_the_cache(
    clone: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    env = bootstrap.environment()
    assert env["HOME"] == str(clone / ".cache" / "home")
    assert Path(env["HOME"]).is_dir()
    assert env["PIP_CACHE_DIR"].startswith(str(clone))


def test_home_of_the_user_stays(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(clone))
    assert bootstrap.environment()["HOME"] == str(clone)


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: No space left on device", "the disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "differs from what requirements.lock pins"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED", "Set PIP_CERT"),
        ("ReadTimeoutError: Read timed out.", "set HTTPS_PROXY"),
        ("ERROR: No matching distribution found for x", "no ready-made wheel"),
        ("ERROR: something else", "something else"),
    ],
)
def test_failures_say_what_to_do(output: str, advice: str) -> None:
    text = bootstrap.diagnose(["pip", "install"], output)
    assert advice in text
    assert output.splitlines()[-1] in text


def test_network_failures_are_tried_again_and_others_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.time, "sleep", lambda seconds: None)
    outputs = ["Read timed out", "Connection reset", ""]

    def follow(command: list[str], what: str, total: int) -> tuple[int, str]:
        output = outputs.pop(0)
        return (1 if output else 0), output

    monkeypatch.setattr(bootstrap, "follow", follow)
    bootstrap.install(["pip"], "packages")
    assert not outputs
    for final in ("THESE PACKAGES DO NOT MATCH THE HASHES", "Connection: CERTIFICATE_VERIFY_FAILED"):
        outputs[:] = [final, "never asked"]
        with pytest.raises(bootstrap.SetupError):
            bootstrap.install(["pip"], "packages")
        assert outputs == ["never asked"]


def test_packages_of_an_older_lock_file_go(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], folder: Path = clone) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        names = ["one", "Two", "pip", "dra-sharing-affinity", "old_thing"]
        listed = "[" + ",".join(f'{{"name": "{name}"}}' for name in names) + "]\n"
        return subprocess.CompletedProcess(command, 0, listed)

    monkeypatch.setattr(bootstrap, "run", run)
    bootstrap.leave_only_locked(["pip"])
    assert commands[-1] == ["pip", "uninstall", "--yes", "old-thing"]


def test_install_line_fits_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for release, line in {
        "ID=debian\n": "sudo apt-get update && sudo apt-get install -y python3-venv",
        'ID=linuxmint\nID_LIKE="ubuntu debian"\n': (
            "sudo apt-get update && sudo apt-get install -y python3-venv"
        ),
        "ID=fedora\n": "sudo dnf install -y python3-pip",
        "ID=alpine\n": "sudo apk add py3-pip",
        "ID=unheard-of\n": f"sudo {sys.executable} -m ensurepip",
    }.items():
        monkeypatch.setattr(Path, "read_text", lambda self, text=release: text)
        assert bootstrap.install_line() == line
