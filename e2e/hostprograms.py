"""Programs that real nodes need from the host: what is on PATH, else Debian packages unpacked into the cache.

Nothing gets installed: `apt-get download` and `dpkg-deb -x` need no privileges, and the unpacked
programs run through small wrappers with the shared libraries that came along. Where there is no apt, or
no mirror, the error has the line to type.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import debian, paths
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
# A second C library must not meet the host's loader; the others run maintainer scripts or are everywhere.
WITHOUT = frozenset({"libc6", "libgcc-s1", "libcrypt1", "debconf", "dpkg", "netbase"})
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
    release = debian.release()
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
    downloads = folder / "debs"
    downloads.mkdir()
    try:
        apt = debian.apt_for(packages)
        libraries = [name for name in apt.closure(packages, WITHOUT) if name.startswith("lib")]
        wanted = sorted({*packages, *libraries})
        print(f"fetching host programs: {' '.join(wanted)}", flush=True)
        archives = apt.download(wanted, downloads)
    except ClusterError as error:
        raise ClusterError(
            f"{error}\nto have {', '.join(packages)}, type: {_line_to_type(packages)}"
        ) from error
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "root")], check=True)
    shutil.rmtree(downloads)


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


def _line_to_type(packages: Sequence[str]) -> str:
    if shutil.which("apt-get") is None:
        return "dnf install runc iptables-nft iproute util-linux   (or what your package manager calls them)"
    return f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
