"""A driver on the official Go library on a real node, the metadata sidecar beside it, and the operator: pods
share its devices by affinity, also after the kubelet wiped the slices and the library began anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness.nic import METADATA, SLICES, complete, pool_objects
from harness.operator import SUBNET, Site
from harness.publisher import RULES, Publisher, configure, sidecar

from e2e import images
from e2e.cluster import Cluster, wait_for
from e2e.product import Product

pytestmark = pytest.mark.e2e
NODE = "node-a"


@pytest.fixture
def site(two_nodes: Cluster, namespace: str) -> Iterator[Site]:
    made = Site(two_nodes, namespace, "test")  # short: sockets are named after the driver
    configure(two_nodes, made.driver)
    yield made
    made.close()
    wait_for("its pods are gone", lambda: not two_nodes.request("GET", made.path("pod"))["items"], 60)


def test_pods_share_devices_of_a_driver_that_nobody_changed(site: Site, tmp_path: Path) -> None:
    cluster, driver = site.cluster, site.driver
    extractors = tmp_path / "extractors.yaml"
    extractors.write_text(yaml.safe_dump({"sharingAffinity": [SUBNET]}))
    devices = [site.device(name, fenced=False) for name in ("eth1", "eth2")]
    joined = complete(cluster, NODE, driver)

    def runs(name: str, subnet: str) -> tuple[str, str]:
        """The device of a pod that runs with a claim for ``subnet``."""
        site.claim(name, subnet)
        containers = [{"name": "main", "image": images.TEST, "resources": {"claims": [{"name": "c0"}]}}]
        site.pod(name, containers=containers)
        wait_for(f"{name} runs", lambda: site.get_pod(name)["status"]["phase"] == "Running", 60)
        found = site.allocation(name)
        assert found is not None
        return found

    publisher = Publisher(cluster, driver, NODE, cluster.node(NODE).kubelet_root)
    try:
        publisher.publish(devices[:1], devices[1:])
        with Product(cluster) as product, sidecar(cluster, driver, extractors, NODE):
            product.install("overlays/local")
            product.operator("beside-a-sidecar", "--rule-fences", "--fence-settle=1")
            wait_for("a complete pool", joined, 30)
            first = runs("a-1", "a")
            assert runs("b-1", "b") != first
            publisher.publish([*devices[:1], site.device("eth3", fenced=False)], devices[1:2])
            publisher.publish(devices[:1], [*devices[1:], site.device("eth3", fenced=False)])
            wait_for("a raised generation", lambda: (joined() or 0) > 1, 30)
            cluster.restart(f"kubelet-{NODE}")
            wait_for("the library's next start", lambda: joined() == 1, 60)
            assert runs("a-2", "a") == first
            site.delete_pods()
    finally:
        publisher.stop()
        for path, items in zip((SLICES, METADATA), pool_objects(cluster, NODE, driver), strict=True):
            for item in items:
                cluster.request("DELETE", f"{path}/{item['metadata']['name']}")
        cluster.request("DELETE", f"{RULES}/sharing-affinity-{driver}")
