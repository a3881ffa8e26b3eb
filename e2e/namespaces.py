"""Network and mount namespaces of a cluster, and the one veth pair that joins them to the host.

A process called the holder keeps the cluster's namespaces alive; daemons enter them through nsenter.
All that a cluster changes outside its folder happens in here: links, routes, iptables rules and mounts
are gone with the last process. The host sees one link, which `remove` deletes.

Each node is a mount namespace of its own on top, with a holder of its own: there the paths that
kubelet, containerd and the manifests of drivers know (`/var/lib/kubelet`, `/run/cdi`,
`/run/containerd`, ...) are the node's, as on a machine.
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
    inside.append(
        "mount -t tmpfs -o mode=0755 private /run"
    )  # kube-proxy's lock file, and what its tools leave
    tools.run(*enter(folder, tools), "sh", "-euc", "\n".join(inside))
    return Network(link, str(hosts[0]), [str(address) for address in hosts[1 : 1 + addresses]], PREFIX)


def holder(folder: Path, component: str = HOLDER) -> int:
    """The pid of the process that keeps the cluster's namespaces (or, by its component, those of a node)."""
    for process in processes.find(folder):
        if process.component == component:
            return process.pid
    raise ClusterError(f"cluster {folder.name} has lost its {component}; take it down and start it again")


def enter(folder: Path, tools: Tools, machine: str = HOLDER) -> list[str]:
    """The command prefix that runs a program in the cluster's network and the mount namespace of
    `machine`.
    """
    nsenter = hostprograms.find("nsenter", tools.search)
    mounts = holder(folder, machine)
    return [nsenter, f"--net=/proc/{mounts}/ns/net", f"--mount=/proc/{mounts}/ns/mnt", "--"]


def seen_from_host(folder: Path, path: str, machine: str) -> Path:
    """A path in the mount namespace of `machine`, as it can be opened from outside."""
    return Path(f"/proc/{holder(folder, machine)}/root{path}")


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
