"""Claims for shared NICs, allocated by hand, and a NIC driver run in the test's process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from affinity_driver.driver import Driver, DriverOptions
from affinity_driver.kube import KubeClient, from_kubeconfig
from affinity_driver.publish.controller import PublisherOptions
from e2e.cluster import Cluster
from harness.kubelet import KubeletClient

DRIVER = "nic.sharingaffinity.dev"
CLASS = "shared-nic.sharingaffinity.dev"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
METADATA = "/apis/sharingaffinity.dev/v1alpha1/sharingaffinityslices"


def nic_config(subnet: str | None, **fields: Any) -> dict[str, Any]:
    """The opaque config of a claim; ``subnet`` None leaves the field out."""
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "NICConfig", **fields}
    if subnet is not None:
        parameters["subnet"] = subnet
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def create_claim(
    cluster: Cluster,
    namespace: str,
    name: str,
    config: list[dict[str, Any]],
    requests: tuple[str, ...] = ("nic",),
) -> dict[str, Any]:
    """An unallocated claim with one request of the class for each name."""
    wanted = [{"name": request, "exactly": {"deviceClassName": CLASS}} for request in requests]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": wanted, "config": config}},
    }
    created: dict[str, Any] = cluster.request("POST", _claims(namespace), claim)
    return created


def allocate(
    cluster: Cluster,
    claim: dict[str, Any],
    node: str,
    device: str | dict[str, str] = "eth1",
    extra: list[dict[str, Any]] | None = None,
    **result: Any,
) -> dict[str, Any]:
    """Write the allocation an allocator would write; ``device`` may differ by request. The stored claim."""
    requests = [request["name"] for request in claim["spec"]["devices"]["requests"]]
    results = [
        {
            "request": request,
            "driver": DRIVER,
            "pool": node,
            "device": device if isinstance(device, str) else device[request],
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"slots": "1"},
            **result,
        }
        for request in requests
    ]
    config = [{"source": "FromClaim", **entry} for entry in claim["spec"]["devices"].get("config", [])]
    devices = {"results": [*results, *(extra or [])], "config": config}
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    }
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = {
        **claim,
        "status": {
            "allocation": {"devices": devices, "nodeSelector": selector, "allocationTimestamp": stamp}
        },
    }
    metadata = claim["metadata"]
    stored: dict[str, Any] = cluster.request(
        "PUT", f"{_claims(metadata['namespace'])}/{metadata['name']}/status", body
    )
    return stored


def nic_claim(
    cluster: Cluster, namespace: str, node: str, subnet: str | None, device: str = "eth1", **fields: Any
) -> dict[str, Any]:
    """A claim for one NIC of ``subnet``, allocated on ``device``."""
    name = f"claim-{uuid.uuid4().hex[:8]}"
    config = [nic_config(subnet, **fields)] if subnet is not None or fields else []
    return allocate(cluster, create_claim(cluster, namespace, name, config), node, device)


def _claims(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


class RunningDriver:
    """A driver in this process and the kubelet's client to it."""

    def __init__(self, options: DriverOptions, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._become(options)

    def start(self, register: bool = True) -> RunningDriver:
        self.driver.start()
        if register:
            self.kubelet.register()
        return self

    def stop(self) -> None:
        self.kubelet.close()
        self.driver.stop()

    def restart(self, **changes: Any) -> None:
        """Stop, and start the next process on the same folders, with some options changed."""
        self.stop()
        self.start_again(**changes)

    def start_again(self, **changes: Any) -> None:
        """Start the next process after ``stop``."""
        self._become(replace(self.options, instance=uuid.uuid4().hex, **changes))
        self.start()

    def _become(self, options: DriverOptions) -> None:
        self.options = options
        self.driver = Driver(options, KubeClient(from_kubeconfig(self.kubeconfig)))
        self.kubelet = KubeletClient(options.kubelet_root / "plugins_registry")

    def cdi_files(self) -> list[Path]:
        return sorted(self.options.cdi.iterdir())


def driver_options(root: Path, node: str, **changes: Any) -> DriverOptions:
    """Options for a driver on folders below ``root``; nothing is waited for longer than a test likes."""
    publisher = PublisherOptions(resync=5.0, settle=1.0)
    base = DriverOptions(
        profile="nic", node=node, kubelet_root=root / "kubelet", cdi=root / "cdi",
        instance=uuid.uuid4().hex, publisher=publisher, grace=2.0,
    )  # fmt: skip
    return replace(base, **changes)


@contextmanager
def running(options: DriverOptions, kubeconfig: Path, register: bool = True) -> Iterator[RunningDriver]:
    """A driver for the time of a block."""
    made = RunningDriver(options, kubeconfig).start(register)
    try:
        yield made
    finally:
        made.stop()


def pool_objects(
    cluster: Cluster, node: str, driver: str = DRIVER
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ResourceSlices and SharingAffinitySlices of the driver's pool on a node, by name."""
    found = []
    for path in (SLICES, METADATA):
        items = cluster.request("GET", path)["items"]
        ours = [
            item for item in items if (item["spec"]["driver"], item["spec"].get("nodeName")) == (driver, node)
        ]
        found.append(sorted(ours, key=lambda item: str(item["metadata"]["name"])))
    return found[0], found[1]


def complete(cluster: Cluster, node: str, driver: str = DRIVER) -> Callable[[], int | None]:
    """A probe for ``wait_for``: the pool's generation, once it is complete."""

    def probe() -> int | None:
        slices, metadata = pool_objects(cluster, node, driver)
        members = [*slices, *metadata]
        generations = {item["spec"]["pool"]["generation"] for item in members}
        if not slices or not metadata or len(generations) != 1:
            return None
        counted = {item["spec"]["pool"]["resourceSliceCount"] for item in metadata}
        return int(generations.pop()) if counted == {len(members)} else None

    return probe
