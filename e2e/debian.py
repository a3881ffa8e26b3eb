"""Debian packages without installing them: names resolved, archives fetched, nothing on the host changed.

`apt-get download` and `dpkg-deb` need no privileges. The host's package lists are used where there are
any; else lists of our own are fetched into the cache from the mirrors that the host is configured for.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e import paths
from e2e.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Apt:
    """apt with the options that make it work for us."""

    options: tuple[str, ...]

    def run(
        self, program: str, *arguments: str, folder: Path = Path("/")
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        command = [program, *self.options, *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    def knows(self, packages: Sequence[str]) -> bool:
        """Whether every package has a version to download."""
        run = self.run("apt-cache", "show", "--no-all-versions", *packages)
        return run.returncode == 0 and run.stdout.count("\nFilename:") >= len(packages)

    def closure(self, packages: Sequence[str], without: Collection[str] = ()) -> list[str]:
        """The packages and all they depend on, the first of each alternative, sorted; `without` is not
        followed.
        """
        flags = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
        found: set[str] = set()
        wanted = [package for package in packages if package not in without]
        while wanted:
            found.update(wanted)
            run = self.run("apt-cache", "depends", *(f"--no-{flag}" for flag in flags), *wanted)
            if run.returncode:
                raise ClusterError(f"apt-cache depends {' '.join(wanted)}: {run.stderr.strip()}")
            named = _first_alternatives(run.stdout)
            wanted = sorted(named - found - set(without))
        return sorted(found)

    def download(self, packages: Sequence[str], folder: Path) -> list[Path]:
        """Fetch the packages' archives into `folder`."""
        run = self.run("apt-get", "download", "--quiet", *packages, folder=folder)
        archives = sorted(folder.glob("*.deb"))
        if run.returncode or len(archives) < len(packages):
            raise ClusterError(f"apt-get download failed: {run.stderr.strip()}")
        return archives


def apt_for(packages: Sequence[str]) -> Apt:
    """An apt that can download `packages`; `ClusterError` when none can be had."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterError("this host has no apt-get and dpkg-deb")
    # As root apt would change to a user that cannot write into our cache.
    unprivileged = ("-oAPT::Sandbox::User=root",) if os.geteuid() == 0 else ()
    system = Apt(unprivileged)
    if system.knows(packages):
        return system
    folder = paths.cache_dir() / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    private = Apt(
        (
            *unprivileged,
            f"-oDir::State::lists={folder / 'lists'}",
            f"-oDir::Cache={folder / 'cache'}",
            "-oDebug::NoLocking=1",
        )
    )
    run = private.run("apt-get", "update", "--quiet", folder=folder)
    if run.returncode or not private.knows(packages):
        raise ClusterError(f"no package lists: {run.stderr.strip() or run.stdout.strip()}")
    return private


def release() -> str:
    """The distribution and its version, such as "debian-12"; part of cache keys, since binaries fit one
    C library.
    """
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return "unknown"
    values = dict(re.findall(r'^(ID|VERSION_ID)="?([\w.-]+)"?$', text, re.MULTILINE))
    return f"{values.get('ID', 'unknown')}-{values.get('VERSION_ID', '')}".rstrip("-")


def _first_alternatives(output: str) -> set[str]:
    """Real packages of apt-cache's answer; `|Depends:` says that the next line is an alternative to
    this one.
    """
    found = set()
    alternative = False
    for line in output.splitlines():
        match = re.fullmatch(r" ([ |])(?:Pre)?Depends: (\S+)", line)
        if match:
            if not alternative and not match[2].startswith("<"):
                found.add(match[2].removesuffix(":any"))
            alternative = match[1] == "|"
    return found
