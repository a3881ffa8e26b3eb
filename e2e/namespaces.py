"""Network and mount namespaces of a cluster, and the one veth pair that joins them to the host.

A process called the holder keeps both namespaces alive; daemons enter them through nsenter. All that a
cluster changes outside its folder happens in here: links, routes, iptables rules and mounts are gone
with the last process, and the paths that kubelet and containerd have compiled in (`/var/lib/kubelet`,
`/var/lib/cni`, `/var/log/containers`, `/run`) are private copies. The host sees one link, which
`remove` deletes.
"""

import hashlib
import ipaddress
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import hostprograms, processes
from e2e.controlplane import SERVICE_CIDR
from e2e.errors import ClusterError
from e2e.state import Network

HOLDER = "holder"
PREFIX = 28
# Private ranges, in the order in which they are searched for a subnet that no route of the host uses.
RANGES = ("10.192.0.0/12", "172.24.0.0/14", "192.168.192.0/18", "198.18.0.0/15", "100.96.0.0/11")
LINK_PREFIX = "dra-"


@dataclass(frozen=True, slots=True)
class Tools:
    """Where programs are found: folders for PATH, host programs first."""

    search: tuple[Path, ...]

    def run(self, *argv: str, timeout: float = 30) -> str:
        """Run a host program to its end; its standard output. `ClusterError` with what it said when it
        fails.
        """
        command = [hostprograms.find(argv[0], self.search), *argv[1:]]
        environment = {"PATH": ":".join(map(str, self.search)), "LC_ALL": "C"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        if run.returncode:
            raise ClusterError(f"{' '.join(argv)}: {run.stderr.strip() or run.stdout.strip()}")
        return run.stdout


def link_name(folder: Path) -> str:
    """The name of the cluster's link on the host; derived, so that `down` knows it without a state file."""
    return LINK_PREFIX + hashlib.sha256(str(folder).encode()).hexdigest()[:10]


def create(folder: Path, tools: Tools, addresses: int) -> Network:
    """Start the holder and wire it up with `addresses` addresses inside (the first is the API server's).

    The caller holds the lock that keeps two clusters from choosing the same subnet.
    """
    subnet = _free_subnet(folder, tools)
    hosts = list(subnet.hosts())
    link = link_name(folder)
    pid = _start_holder(folder, tools)
    tools.run("ip", "link", "add", "name", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    tools.run("ip", "address", "add", f"{hosts[0]}/{PREFIX}", "dev", link)
    tools.run("ip", "link", "set", link, "up")
    inside = ["ip link set lo up", "ip link set eth0 up", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
    inside += [f"ip address add {address}/{PREFIX} dev eth0" for address in hosts[1 : 1 + addresses]]
    # Service addresses are rewritten on their way out, but only where a route lets them start.
    inside.append(f"ip route add {SERVICE_CIDR} dev eth0")
    tools.run(*enter(folder, tools), "sh", "-euc", "\n".join([*inside, *_private_folders(folder)]))
    return Network(link, str(hosts[0]), [str(address) for address in hosts[1 : 1 + addresses]], PREFIX)


def holder(folder: Path) -> int:
    """The pid of the process that keeps the namespaces."""
    for process in processes.find(folder):
        if process.component == HOLDER:
            return process.pid
    raise ClusterError(f"cluster {folder.name} has lost its namespaces; take it down and start it again")


def enter(folder: Path, tools: Tools) -> list[str]:
    """The command prefix that runs a program in the cluster's namespaces."""
    pid = holder(folder)
    nsenter = hostprograms.find("nsenter", tools.search)
    return [nsenter, f"--net=/proc/{pid}/ns/net", f"--mount=/proc/{pid}/ns/mnt", "--"]


def mounted(folder: Path) -> list[str]:
    """The mount points inside, in the order in which they were made."""
    lines = Path(f"/proc/{holder(folder)}/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines]


def seen_from_host(folder: Path, path: str) -> Path:
    """A path of the cluster's mount namespace, as it can be opened from outside."""
    return Path(f"/proc/{holder(folder)}/root{path}")


def remove(folder: Path, tools: Tools) -> None:
    """Delete the link on the host if it is still there (it goes by itself some time after the last
    process).
    """
    link = link_name(folder)
    if Path(f"/sys/class/net/{link}").exists():
        try:
            tools.run("ip", "link", "delete", link)
        except ClusterError:
            if Path(f"/sys/class/net/{link}").exists():
                raise


def _start_holder(folder: Path, tools: Tools) -> int:
    command = [hostprograms.find("unshare", tools.search), "--net", "--mount", "--propagation", "private"]
    command += ["sh", "-c", "echo ready; exec sleep infinity"]
    log = folder / "log" / "holder.log"
    process = processes.spawn(command, processes.environment(folder, HOLDER, tools.search), log)
    deadline = time.monotonic() + 10
    while log.read_text() != "ready\n":
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"no namespaces: {log.read_text().strip()}")
        time.sleep(0.01)
    return process.pid


def _private_folders(folder: Path) -> Iterator[str]:
    """Shell lines that put private copies over folders whose paths cannot be configured.

    Overlays of the parents, so that nothing needs to exist on the host and the rest of them stays visible.
    """
    yield "mount -t tmpfs -o mode=0755 private /run"
    for path in ("/var/lib", "/var/log"):
        copy = folder / "private" / path.replace("/", "-")[1:]
        yield f"mkdir -p {copy}/upper {copy}/work"
        yield f"mount -t overlay -o lowerdir={path},upperdir={copy}/upper,workdir={copy}/work private {path}"
    yield "mkdir -p /var/lib/kubelet/device-plugins /var/lib/cni /var/log/containers /var/log/pods"


def _free_subnet(folder: Path, tools: Tools) -> ipaddress.IPv4Network:
    taken = list(_routed(tools))
    start = int(hashlib.sha256(folder.name.encode()).hexdigest(), 16)
    for text in RANGES:
        blocks = list(ipaddress.IPv4Network(text).subnets(new_prefix=PREFIX))
        for offset in range(min(len(blocks), 256)):
            block = blocks[(start + offset) % len(blocks)]
            if not any(block.overlaps(network) for network in taken):
                return block
    raise ClusterError(f"every private range ({', '.join(RANGES)}) is in use by a route of this host")


def _routed(tools: Tools) -> Iterator[ipaddress.IPv4Network]:
    for route in json.loads(tools.run("ip", "-4", "-json", "route", "show", "table", "all") or "[]"):
        destination = route.get("dst", "default")
        if destination not in ("default", "0.0.0.0/0"):
            yield ipaddress.IPv4Network(destination, strict=False)
