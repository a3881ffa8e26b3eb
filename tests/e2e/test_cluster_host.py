"""The host is the same before and after a cluster, however the cluster ends, and two clusters don't meet."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import cgroups, hostprograms, local, namespaces, paths, processes
from e2e.cluster import Cluster, wait_for

pytestmark = pytest.mark.e2e

NAMES = (f"host-a-{os.getpid()}", f"host-b-{os.getpid()}")


@dataclass(frozen=True)
class Host:
    """What a cluster could have changed: network, firewall, mounts, control groups, files, processes of
    ours.
    """

    links: frozenset[str]
    addresses: frozenset[str]
    routes: frozenset[str]
    rules: str
    firewall: str
    mounts: frozenset[str]
    groups: frozenset[str]
    folders: frozenset[str]
    kubeconfig: tuple[bool, bytes]
    forwarding: str


def look(ours: tuple[str, ...] = NAMES) -> Host:
    """The host now. Only other sessions' clusters are left out: their links and groups may come and go
    meanwhile.
    """
    tools = namespaces.Tools(tuple(hostprograms.search_path()))
    foreign = {namespaces.link_name(path) for path in paths.clusters_dir().iterdir() if path.name not in ours}
    links = json.loads(tools.run("ip", "-json", "address", "show"))
    links = [link for link in links if link["ifname"] not in foreign]
    addresses = {f"{link['ifname']} {part.get('local')}" for link in links for part in link["addr_info"]}
    routes = tools.run("ip", "-4", "route", "show", "table", "all").splitlines()
    routes = [route for route in routes if not any(name in route for name in foreign)]
    firewall = "".join(tools.run(program, check_counters) for program, check_counters in FIREWALLS)
    watched = (
        str(Path.home() / ".kube"),
        "/var/lib/kubelet",
        "/var/lib/cni",
        "/var/log/containers",
        "/var/log/pods",
        "/run/node-a",
        "/etc/cni",
    )
    home = Path.home() / ".kube" / "config"
    prefixes = tuple(f"dra-e2e-{name}" for name in ours)
    return Host(
        links=frozenset(link["ifname"] for link in links),
        addresses=frozenset(addresses),
        routes=frozenset(routes),
        rules=tools.run("ip", "rule", "show"),
        firewall=re.sub(r"^#.*$", "", firewall, flags=re.MULTILINE),
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        groups=frozenset(group for group in cgroups.named("dra-e2e-") if group.startswith(prefixes)),
        folders=frozenset(str(path) for path in map(Path, watched) if path.exists())
        | frozenset(str(path) for path in paths.clusters_dir().iterdir() if path.name in ours),
        kubeconfig=(home.exists(), home.read_bytes() if home.exists() else b""),
        forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    )


FIREWALLS = (
    ("iptables-save", "--table=nat"),
    ("iptables-save", "--table=filter"),
    ("iptables-save", "--table=mangle"),
)


@pytest.fixture
def host() -> Iterator[Host]:
    """The host before the test; afterwards both clusters are down and it is the same."""
    before = look()
    yield before
    for name in NAMES:
        local.down(name)
    assert look() == before
    for name in NAMES:
        assert processes.find(paths.cluster_dir(name)) == []


def command(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "e2e", *args], cwd=Path(__file__).parents[2], start_new_session=True
    )


def run_pod(cluster: Cluster, node: str) -> None:
    path = "/api/v1/namespaces/default/pods"
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "localhost/sharing-affinity/test:1"}]}
    cluster.request("POST", path, {"metadata": {"name": "p"}, "spec": spec})
    wait_for("pod running", lambda: cluster.request("GET", f"{path}/p")["status"]["phase"] == "Running")


def test_two_clusters_at_once_leave_the_host_as_it_was(host: Host) -> None:
    starts = [command("up", "--name", name, "--nodes", "1") for name in NAMES]
    assert [start.wait(timeout=120) for start in starts] == [0, 0]
    clusters = [local.attach(name) for name in NAMES]
    assert clusters[0].url != clusters[1].url
    for cluster in clusters:
        run_pod(cluster, "node-a")
    clusters[0].down()
    assert clusters[1].request("GET", "/api/v1/namespaces/default/pods/p")["status"]["phase"] == "Running"
    assert "sharing-affinity" in clusters[1].kubectl("get", "pod", "p", "-o", "yaml")


@pytest.mark.parametrize("component", ["", "etcd", "apiserver", "kubelet-node-b"])
def test_interrupted_up_leaves_nothing(host: Host, component: str) -> None:
    """Half a second after it has begun, and as soon as a component runs."""
    start = command("up", "--name", NAMES[0])
    if component:
        folder = paths.cluster_dir(NAMES[0])
        wait_for(component, lambda: component in {p.component for p in processes.find(folder)}, pause=0.01)
    else:
        time.sleep(0.5)
    start.send_signal(signal.SIGINT)
    # The earliest one may come before Python has set its handlers; nothing is started by then.
    assert start.wait(timeout=30) in (130, -signal.SIGINT)
    assert look() == host
    assert processes.find(paths.cluster_dir(NAMES[0])) == []


def test_up_after_a_killed_up(host: Host) -> None:
    start = command("up", "--name", NAMES[0])
    time.sleep(4)
    start.kill()
    start.wait()
    assert processes.find(paths.cluster_dir(NAMES[0]))
    cluster = local.up(local.Options(name=NAMES[0], nodes=1))
    run_pod(cluster, "node-a")


def test_down_after_everything_was_killed(host: Host) -> None:
    cluster = local.up(local.Options(name=NAMES[0], nodes=1))
    run_pod(cluster, "node-a")
    processes.stop(cluster.folder, lambda process: process.program != processes.SHIM, signal.SIGKILL, 0)
    assert processes.find(cluster.folder), "shims live on"
    down = command("down", "--name", NAMES[0])
    assert down.wait(timeout=30) == 0
    assert look() == host


def test_interrupted_down_finishes(host: Host) -> None:
    local.up(local.Options(name=NAMES[0], nodes=1))
    down = command("down", "--name", NAMES[0])
    time.sleep(0.35)
    down.send_signal(signal.SIGINT)
    down.wait(timeout=30)
    if paths.cluster_dir(NAMES[0]).exists():  # interrupted before it had begun: all is there, not half of it
        assert local.attach(NAMES[0]).request("GET", "/readyz") == "ok"
    else:
        assert look() == host
