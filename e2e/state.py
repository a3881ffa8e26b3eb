"""What is written down about a running cluster: enough to attach to it, restart its parts and take it down.

Never needed to *find* processes (that's the mark's work), so a cluster whose file was not written yet, or
is lost, can still be taken down.
"""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from e2e.errors import ClusterError

FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A real node: its name, address, pod range, kubelet's health port, cgroup below each hierarchy's
    root.
    """

    name: str
    address: str
    pod_cidr: str
    health_port: int
    cgroup: str


@dataclass(frozen=True, slots=True)
class Network:
    """The veth pair of a cluster: the link on the host's side, both addresses, the prefix length of its
    subnet.
    """

    link: str
    host_address: str
    addresses: list[str]
    prefix: int


@dataclass(slots=True)
class State:
    """A local cluster. `commands` holds, by component, the argument vector that starts it (without
    entering namespaces); `search` are the folders of its PATH.
    """

    name: str
    kubernetes: str
    url: str
    nodes: list[NodeSpec] = field(default_factory=list)
    network: Network | None = None
    commands: dict[str, list[str]] = field(default_factory=dict)
    search: list[str] = field(default_factory=list)
    complete: bool = False

    def save(self, folder: Path) -> None:
        partial = folder / f"{FILE}.{os.getpid()}"
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=1))
        partial.replace(folder / FILE)


def load(folder: Path) -> State:
    """The state of the cluster in `folder`; `ClusterError` when there is none."""
    try:
        raw = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        raise ClusterError(
            f"no cluster called {folder.name}: start one with `python -m e2e up --name {folder.name}`"
        ) from None
    raw["nodes"] = [NodeSpec(**node) for node in raw["nodes"]]
    raw["network"] = Network(**raw["network"]) if raw["network"] else None
    return State(**raw)
