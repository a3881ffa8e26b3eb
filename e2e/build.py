"""Real Kubernetes, containerd and CNI binaries from pinned Go modules, built once into the per-user cache.

A component's folder in the cache is named after its version, architecture and a hash of all that goes into
it (go.mod, go.sum, linker stamps), and appears by one rename: what is there is complete. All binaries of a
module are built by one `go build`, which compiles what they share once.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import paths, toolchain, versions
from e2e.errors import ClusterError
from e2e.locking import exclusive
from e2e.versions import Component

# Changes here (and only here) when the way of building changes what comes out.
RECIPE = "1: CGO_ENABLED=0 -trimpath -ldflags '-s -w'"


def output_dir(component: Component) -> Path:
    """Where the component's binaries are, or will be."""
    digest = hashlib.sha256(RECIPE.encode())
    for name in ("go.mod", *(component.sources or ("go.sum",))):
        digest.update((component.module / name).read_bytes())
    digest.update(json.dumps([component.stamps, component.rename]).encode())
    if component.tags:
        digest.update(json.dumps(component.tags).encode())
    name = f"{component.name}-{component.version}-{versions.go_architecture()}-{digest.hexdigest()[:12]}"
    return paths.cache_dir() / "bin" / name


def ensure(*components: Component) -> list[Path]:
    """Build what is not in the cache yet; returns the folders of the components in the order given."""
    missing = [component for component in components if not output_dir(component).is_dir()]
    if missing:
        with exclusive(paths.cache_dir() / "build.lock", "another build is running"):
            for component in missing:
                if not output_dir(component).is_dir():
                    _build(component)
    return [output_dir(component) for component in components]


def _build(component: Component) -> None:
    target = output_dir(component)
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(
        f"{target.name}.partial-*"
    ):  # of a build that was killed; we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        go = toolchain.find_go()
        environment = toolchain.environment(go)
        packages = _tools(go, component, environment)
        title = f"{component.name} {component.version}"
        print(f"building {title} into {target}", flush=True)
        total = _count_packages(go, component, environment, packages)
        flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in component.stamps)])
        command = [str(go), "build", "-v", "-ldflags", flags, "-tags", ",".join(component.tags)]
        command += ["-o", f"{partial}{os.sep}", *packages]
        _run(command, component.module, environment, Progress(title, total))
        for old, new in component.rename:
            if (partial / old).exists():
                (partial / old).rename(partial / new)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _tools(go: Path, component: Component, environment: Mapping[str, str]) -> list[str]:
    if component.sources:
        return ["."]
    text = _output([str(go), "mod", "edit", "-json"], component.module, environment)
    return [tool["Path"] for tool in json.loads(text)["Tool"]]


def _count_packages(
    go: Path, component: Component, environment: Mapping[str, str], packages: Sequence[str]
) -> int:
    # Downloads the modules as well, by far the longest silence of a cold build: pass its own messages on.
    command = [
        str(go),
        "list",
        "-deps",
        "-tags",
        ",".join(component.tags),
        "-f",
        "{{.ImportPath}}",
        *packages,
    ]
    run = subprocess.run(command, cwd=component.module, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise ClusterError(
            f"modules of {component.name} cannot be had (see above); is there a Go module proxy?"
        )
    return len(run.stdout.splitlines())


def _output(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise ClusterError(f"{' '.join(command[:3])} in {folder}: {run.stderr.strip()}")
    return run.stdout


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], progress: "Progress") -> None:
    """`go build -v` names each package as it gets compiled (cached ones not at all); errors are other
    lines.
    """
    other: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if " " in line.strip() or line.startswith("#"):
                    other.append(line)
                else:
                    progress.advance(line.strip())
        except BaseException:
            process.kill()
            raise
    progress.finish(process.returncode == 0)
    if process.returncode:
        raise ClusterError(f"go build failed in {folder}:\n{''.join(other[-30:])}")


class Progress:
    """Packages done out of all: a bar on a terminal, a line now and then in a log.

    Packages that Go has compiled before are never named by it, so the count may jump to the end.
    """

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._shown = 0.0

    def advance(self, package: str) -> None:
        self._done += 1
        now = time.monotonic()
        pause = 0.2 if sys.stderr.isatty() else 15
        if now - self._shown >= pause:
            self._shown = now
            self._show(package)

    def finish(self, good: bool) -> None:
        seconds = time.monotonic() - self._start
        end = "\r\033[K" if sys.stderr.isatty() else ""
        what = f"{self._total}/{self._total} packages" if good else "failed"
        print(f"{end}{self._title}: {what} in {seconds:.0f} s", file=sys.stderr, flush=True)

    def _show(self, package: str) -> None:
        done = min(self._done, self._total)
        if sys.stderr.isatty():
            filled = 30 * done // max(1, self._total)
            bar = "#" * filled + "." * (30 - filled)
            text = f"\r\033[K{self._title} [{bar}] {done}/{self._total} {package[:50]}"
            print(text, end="", file=sys.stderr, flush=True)
        else:
            print(f"{self._title}: {done}/{self._total} packages", file=sys.stderr, flush=True)
