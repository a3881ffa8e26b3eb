"""A driver on the official Go library on a real node, the metadata sidecar as it ships, and the operator.

Pods share its devices by affinity, also after the kubelet wiped the slices and the library began anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from harness.nic import METADATA, SLICES, complete, pool_objects
from harness.operator import SUBNET, Site
from harness.publisher import RULES, Publisher, manifests

from e2e import images
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError
from e2e.images import archives
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.e2e
NODE = "node-a"


@pytest.fixture
def site(two_nodes: Cluster, namespace: str) -> Iterator[Site]:
    made = Site(two_nodes, namespace, "test")  # short: sockets are named after the driver
    yield made
    made.close()
    wait_for("its pods are gone", lambda: not two_nodes.request("GET", made.path("pod"))["items"])


@pytest.fixture
def sidecar(site: Site) -> Iterator[dict[str, Any]]:
    """The DaemonSet as it ships, for this test's driver, kept to one node; and its ConfigMap."""
    site.cluster.load(archives.application_archive(archives.DRIVER))
    objects = manifests(site.cluster, site.driver)
    (workload,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    pod = workload["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    pod["containers"][0]["args"].append("--fence-settle=2")
    (configuration,) = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    configuration["data"]["extractors.yaml"] = yaml.safe_dump({"sharingAffinity": [SUBNET]})
    site.cluster.apply(*objects)
    yield workload
    site.cluster.request("DELETE", site.cluster.api.resource_path(workload))
    pods = f"/api/v1/namespaces/{DRIVER_NAMESPACE}/pods?labelSelector=app.kubernetes.io/name=metadata-sidecar"
    wait_for("no sidecar runs", lambda: not site.cluster.request("GET", pods)["items"])


def test_pods_share_devices_of_a_driver_that_nobody_changed(site: Site, sidecar: dict[str, Any]) -> None:
    cluster, driver = site.cluster, site.driver
    eth1, eth2, eth3, eth4 = (site.device(f"eth{number}", fenced=False) for number in range(1, 5))
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
        publisher.publish([eth1], [eth2])
        with Product(cluster) as product:
            product.install("overlays/local")
            product.operator("beside-a-sidecar", "--rule-fences", "--fence-settle=1")
            wait_for("a complete pool", joined)
            first = runs("a-1", "a")
            assert runs("b-1", "b") != first
            # One change of two slices: of two changes in a row the library may write the last one only.
            publisher.publish([eth1, eth3], [eth2, eth4])
            wait_for("a raised generation", lambda: (joined() or 0) > 1)
            cluster.restart(f"kubelet-{NODE}")
            wait_for("the library's next start", lambda: joined() == 1)  # it waits half a minute by itself
            assert runs("a-2", "a") == first
            site.delete_pods()
    finally:
        publisher.stop()
        paths = [f"{RULES}/sharing-affinity-{driver}"]
        for collection, items in zip((SLICES, METADATA), pool_objects(cluster, NODE, driver), strict=True):
            paths += [f"{collection}/{item['metadata']['name']}" for item in items]
        for path in paths:
            with suppress(ApiError):
                cluster.request("DELETE", path)
