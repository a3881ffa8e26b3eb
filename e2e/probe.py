"""What this host lacks for real nodes, found by trying each thing for a moment.

Being root says little: a container's root may have no mounts, and some sandboxes allow half. So every
step a cluster takes on the host is taken here once, in namespaces that end with the step. Without
findings nodes can run; with any, a control plane alone still can.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e import cgroups, hostprograms, paths
from e2e.errors import ClusterError

DISK = 3 << 30
MEMORY = 3 << 29
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True, slots=True)
class Missing:
    """A thing that real nodes need and this host does not give: what it is, what trying it answered."""

    what: str
    answer: str

    def __str__(self) -> str:
        return f"{self.what}: {self.answer}"


def missing() -> list[Missing]:
    """Everything that keeps real nodes from running here; empty when they can. Takes well under a second."""
    try:
        search = hostprograms.search_path()
    except ClusterError as error:
        return [Missing("host programs", str(error))]
    found = _try([("network and mount namespaces", lambda: _unshared(search, "true"))])
    if not found:  # nothing that is done inside can work otherwise
        found += _try(_inside(search))
    return found + _try(_outside())


def _try(attempts: Iterable[tuple[str, Callable[[], None]]]) -> list[Missing]:
    found = []
    for what, attempt in attempts:
        try:
            attempt()
        except (ClusterError, OSError) as error:
            found.append(Missing(what, str(error)))
    return found


def _inside(search: Sequence[Path]) -> Iterator[tuple[str, Callable[[], None]]]:
    def inside(script: str) -> Callable[[], None]:
        return lambda: _unshared(search, script)

    yield "mounting a tmpfs", inside("mount -t tmpfs probe /run")
    yield "a veth link", inside("ip link add name probe0 type veth peer name probe1 && ip link set probe0 up")
    yield "IP forwarding", inside("echo 1 > /proc/sys/net/ipv4/ip_forward")
    rule = "iptables -t nat -A OUTPUT -m comment --comment probe"
    yield (
        "address translation in iptables",
        inside(f"{rule} -p tcp -d 10.96.0.1 -j DNAT --to-destination 10.96.0.2"),
    )
    yield "connection tracking in iptables", inside("iptables -A INPUT -m conntrack --ctstate NEW -j ACCEPT")
    boot_id = "/proc/sys/kernel/random/boot_id"
    yield (
        "a bind mount over the boot id",
        inside(f"mount --make-private / && mount --bind /etc/hostname {boot_id}"),
    )
    yield "overlayfs in the clusters' folder", lambda: _overlay(search)


def _outside() -> Iterator[tuple[str, Callable[[], None]]]:
    yield "control groups", _control_groups
    yield "the kernel log (/dev/kmsg)", lambda: Path("/dev/kmsg").open("rb").close()
    yield "disk space", _disk
    yield "memory", _memory


def _unshared(search: Sequence[Path], script: str) -> None:
    command = [hostprograms.find("unshare", search), "--net", "--mount", "--propagation", "private"]
    environment = {"PATH": ":".join(map(str, search)), "LC_ALL": "C"}
    run = subprocess.run(
        [*command, "sh", "-euc", script], env=environment, capture_output=True, text=True, timeout=20
    )
    if run.returncode:
        lines = (run.stderr.strip() or f"exit {run.returncode}").splitlines()
        raise ClusterError(lines[-1])


def _overlay(search: Sequence[Path]) -> None:
    # A program is run from the mount: the folder may be mounted noexec.
    with tempfile.TemporaryDirectory(dir=paths.clusters_dir(), prefix=".probe-") as name:
        folder = Path(name)
        for part in ("lower", "upper", "work", "merged"):
            (folder / part).mkdir()
        shutil.copy(shutil.which("true", path=os.defpath) or "/bin/true", folder / "lower" / "program")
        layers = f"lowerdir={name}/lower,upperdir={name}/upper,workdir={name}/work"
        _unshared(search, f"mount -t overlay -o {layers} probe {name}/merged\n{name}/merged/program")
    paths.forget_clusters_dir()


def _control_groups() -> None:
    available = {part for path in cgroups.hierarchies() for part in path.name.split(",")}
    if cgroups.is_v2():
        available = set((cgroups.ROOT / "cgroup.controllers").read_text().split())
    absent = sorted(set(CONTROLLERS) - available)
    if absent:
        raise ClusterError(f"no controller {', '.join(absent)} below {cgroups.ROOT}")
    name = f"dra-e2e-probe-{os.getpid()}"
    try:
        cgroups.create(name)
    finally:
        cgroups.destroy(name)


def _disk() -> None:
    folder = paths.clusters_dir()
    free = shutil.disk_usage(folder).free
    if free < DISK:
        raise ClusterError(f"{free >> 20} MiB free at {folder}, {DISK >> 20} MiB needed")


def _memory() -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    if available < MEMORY:
        raise ClusterError(f"{available >> 20} MiB available, {MEMORY >> 20} MiB needed")
