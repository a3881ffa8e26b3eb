"""Programs that real nodes need from the host: what is on PATH, else Debian packages unpacked into the cache.

Nothing gets installed: `apt-get download` and `dpkg-deb -x` need no privileges, and the unpacked
programs run through small wrappers with the shared libraries that came along. Where there is no apt, or
no mirror, the error has the line to type.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import paths
from e2e.errors import ClusterError
from e2e.locking import exclusive

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# Program, the Debian package it comes from, an argument with which it does nothing but show that it runs.
NEEDED: tuple[tuple[str, str, str], ...] = (
    ("runc", "runc", "--version"),
    ("iptables", "iptables", "--version"),
    ("iptables-save", "iptables", "--version"),
    ("iptables-restore", "iptables", "--version"),
    ("ip6tables", "iptables", "--version"),
    ("ip6tables-save", "iptables", "--version"),
    ("ip6tables-restore", "iptables", "--version"),
    ("ip", "iproute2", "-V"),
    ("unshare", "util-linux", "--version"),
    ("nsenter", "util-linux", "--version"),
    ("mount", "mount", "--version"),
    ("umount", "mount", "--version"),
)
# `iptables` itself is a link that only installing the package makes (update-alternatives).
FILES: Mapping[str, str] = {
    program: program.replace("tables", "tables-nft", 1)
    for program, package, _ in NEEDED
    if package == "iptables"
}


def search_path() -> list[Path]:
    """Folders for the PATH of daemons and of our own calls, making the missing programs available first."""
    missing = [entry for entry in NEEDED if _on_system(entry[0]) is None]
    system = [Path(folder) for folder in SYSTEM_PATH]
    return [_unpacked(missing), *system] if missing else system


def find(program: str, search: Sequence[Path]) -> str:
    """The full path of a program in the folders of `search_path`."""
    found = shutil.which(program, path=os.pathsep.join(map(str, search)))
    if found is None:
        raise ClusterError(f"{program} is missing; type: {_line_to_type([program])}")
    return found


def _on_system(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join(SYSTEM_PATH))


def _unpacked(missing: Sequence[tuple[str, str, str]]) -> Path:
    packages = sorted({package for _, package, _ in missing})
    release = _release()
    key = hashlib.sha256(f"1 {release} {platform.machine()} {missing}".encode()).hexdigest()[:12]
    target = paths.cache_dir() / "programs" / f"{release}-{key}"
    with exclusive(paths.cache_dir() / "programs.lock", "another process is fetching host programs"):
        if not target.is_dir():
            partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                _unpack(packages, partial)
                _write_wrappers(missing, partial, target)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    for program, _, argument in missing:
        run = subprocess.run([target / "bin" / program, argument], capture_output=True, text=True)
        if run.returncode:
            raise ClusterError(
                f"the unpacked {program} does not run here ({run.stderr.strip()}); "
                f"type: {_line_to_type(packages)}"
            )
    return target / "bin"


def _unpack(packages: Sequence[str], folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterError(
            f"this host has neither {', '.join(packages)} nor apt to fetch them with; install them with your "
            "package manager, e.g.: dnf install runc iptables-nft iproute util-linux"
        )
    options = _system_lists(packages)
    if options is None:
        options = _private_lists(packages)
    wanted = [*packages, *_libraries(packages, options)]
    downloads = folder / "debs"
    downloads.mkdir()
    print(f"fetching host programs: {' '.join(wanted)}", flush=True)
    run = _apt("apt-get", ["download", "--quiet", *wanted], options, downloads)
    archives = sorted(downloads.glob("*.deb"))
    if run.returncode or len(archives) < len(wanted):
        raise ClusterError(f"apt-get download failed: {run.stderr.strip()}\ntype: {_line_to_type(packages)}")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "root")], check=True)
    shutil.rmtree(downloads)


def _system_lists(packages: Sequence[str]) -> list[str] | None:
    """apt options for using the system's package lists; None when these don't know the packages."""
    options = _unprivileged()
    return options if _known(packages, options) else None


def _private_lists(packages: Sequence[str]) -> list[str]:
    """apt options with package lists of our own, fetched from the host's configured mirrors."""
    folder = paths.cache_dir() / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    options = [
        *_unprivileged(),
        f"-oDir::State::lists={folder / 'lists'}",
        f"-oDir::Cache={folder / 'cache'}",
        "-oDebug::NoLocking=1",
    ]
    run = _apt("apt-get", ["update", "--quiet"], options, folder)
    if run.returncode or not _known(packages, options):
        raise ClusterError(f"no package lists: {run.stderr.strip()}\ntype: {_line_to_type(packages)}")
    return options


def _unprivileged() -> list[str]:
    # As root apt would change to a user that cannot write into our cache.
    return ["-oAPT::Sandbox::User=root"] if os.geteuid() == 0 else []


def _known(packages: Sequence[str], options: Sequence[str]) -> bool:
    run = _apt("apt-cache", ["show", "--no-all-versions", *packages], options, Path("/"))
    return run.returncode == 0 and run.stdout.count("\nFilename:") >= len(packages)


def _libraries(packages: Sequence[str], options: Sequence[str]) -> list[str]:
    """Library packages that `packages` need, without the C library: a second one must not meet the
    host's loader.
    """
    flags = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    arguments = ["depends", "--recurse", *(f"--no-{flag}" for flag in flags), *packages]
    run = _apt("apt-cache", arguments, options, Path("/"))
    names = re.findall(r"^(lib[a-z0-9.+-]+)(?::\w+)?$", run.stdout, re.MULTILINE)
    return sorted(set(names) - {"libc6", "libc-bin", "libgcc-s1", "libcrypt1"})


def _apt(
    program: str, arguments: Sequence[str], options: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        [program, *options, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def _write_wrappers(missing: Sequence[tuple[str, str, str]], partial: Path, final: Path) -> None:
    (partial / "bin").mkdir()
    folders = [path for path in partial.glob("root/**/lib/*-linux-gnu*") if path.is_dir()]
    libraries = shlex.quote(":".join(str(final / path.relative_to(partial)) for path in folders))
    extensions = next((path for path in partial.glob("root/**/xtables") if path.is_dir()), None)
    exports = f"LD_LIBRARY_PATH={libraries}"
    if extensions is not None:
        exports += f" XTABLES_LIBDIR={shlex.quote(str(final / extensions.relative_to(partial)))}"
    for program, package, _ in missing:
        name = FILES.get(program, program)
        inside = next((path for path in partial.glob(f"root/**/*bin/{name}")), None)
        if inside is None:
            raise ClusterError(f"package {package} has no program {name}; type: {_line_to_type([package])}")
        wrapper = partial / "bin" / program
        real = shlex.quote(str(final / inside.relative_to(partial)))
        wrapper.write_text(f'#!/bin/sh\n{exports} exec {real} "$@"\n')
        wrapper.chmod(0o755)


def _release() -> str:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return "unknown"
    values = dict(re.findall(r'^(ID|VERSION_ID)="?([\w.-]+)"?$', text, re.MULTILINE))
    return f"{values.get('ID', 'unknown')}-{values.get('VERSION_ID', '')}".rstrip("-")


def _line_to_type(packages: Sequence[str]) -> str:
    return f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
