"""Sharing affinity for a driver that knows nothing of it: the sidecar beside a publisher on the official Go
library, with the rights and policies that ship, up to pods that the operator places.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import operator
from harness.nic import METADATA, SLICES, complete, pool_objects
from harness.operator import SUBNET, Site, eventually
from harness.publisher import ACCOUNT, RULES, Publisher, configure, sidecar

from e2e.api import ApiClient
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError
from e2e.product import DRIVER_NAMESPACE

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-m", "affinity_driver"]


@pytest.fixture
def site(control_plane: Cluster, namespace: str) -> Iterator[Site]:
    made = Site(control_plane, namespace)
    configure(control_plane, made.driver)
    yield made
    made.close()
    for rule in control_plane.request("GET", RULES)["items"]:
        control_plane.request("DELETE", f"{RULES}/{rule['metadata']['name']}")


@pytest.fixture
def node(site: Site) -> str:
    return site.node("n")


@pytest.fixture
def publisher(site: Site, node: str) -> Iterator[Publisher]:
    # pytest's own folders are too long for Unix sockets below them.
    with tempfile.TemporaryDirectory(prefix="pub-", dir="/tmp") as root:
        made = Publisher(site.cluster, site.driver, node, Path(root))
        yield made
        made.stop()
    for path, items in zip((SLICES, METADATA), pool_objects(site.cluster, node, site.driver), strict=True):
        for item in items:
            site.cluster.request("DELETE", f"{path}/{item['metadata']['name']}")


def extractors(folder: Path, *entries: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "extractors.yaml"
    path.write_text(yaml.safe_dump({"sharingAffinity": list(entries)}))
    return path


def devices(site: Site, *names: str, **attributes: Any) -> list[dict[str, Any]]:
    """Shareable devices without any fence."""
    return [{**site.device(name, fenced=False), "attributes": attributes} for name in names]


def test_devices_of_a_driver_that_nobody_changed_are_shared_by_affinity(
    site: Site, node: str, publisher: Publisher, tmp_path: Path
) -> None:
    cluster, driver = site.cluster, site.driver
    admin = [f"--driver={driver}", f"--kubeconfig={cluster.kubeconfig}"]
    publisher.publish(devices(site, "eth1"), devices(site, "eth2"))
    joined = complete(cluster, node, driver)
    with (
        sidecar(cluster, driver, extractors(tmp_path, SUBNET), node),
        operator.running(operator.install(cluster), "--rule-fences", "--fence-settle", "1") as process,
    ):
        wait_for("a complete pool", joined, 20)
        slices, (metadata,) = pool_objects(cluster, node, driver)
        rule = cluster.request("GET", f"{RULES}/sharing-affinity-{driver}")
        fenced = datetime.fromisoformat(rule["spec"]["taint"]["timeAdded"])
        described = datetime.fromisoformat(metadata["metadata"]["creationTimestamp"])
        assert (described - fenced).total_seconds() >= 2
        assert {item["metadata"]["ownerReferences"][0]["uid"] for item in slices} == {
            metadata["metadata"]["ownerReferences"][0]["uid"]
        }

        for name, subnet in (("a-1", "a"), ("a-2", "a"), ("b-1", "b")):
            site.claim(name, subnet)
            site.pod(name)
        places = {
            name: eventually(f"{name} placed", lambda name=name: site.allocation(name), 30, process)
            for name in ("a-1", "a-2", "b-1")
        }
        assert places["a-1"] == places["a-2"] != places["b-1"]
        eventually("a-1 bound", lambda: site.node_of("a-1") == node, 20, process)

        # The library raises the generation by itself: two slices change at once.
        publisher.publish(devices(site, "eth1", speed={"int": 10}), devices(site, "eth2", speed={"int": 10}))
        wait_for("the next generation", lambda: joined() == 2, 20)

        # A wipe: the library starts at 1 again, the metadata says 2.
        for item in pool_objects(cluster, node, driver)[0]:
            cluster.request("DELETE", f"{SLICES}/{item['metadata']['name']}")
        publisher.publish(devices(site, "eth1"), devices(site, "eth2"))
        wait_for("generation 1 again", lambda: joined() == 1, 40)

        # Other extractors, same generation; the holders of "a" and "b" yield the same keys as before.
        before = pool_objects(cluster, node, driver)[1][0]
        extractors(tmp_path, {**SUBNET, "expression": SUBNET["expression"].replace("==", " == ")})
        publisher.publish(devices(site, "eth1", "eth3"), devices(site, "eth2"))
        wait_for(
            "the new expression",
            lambda: (
                pool_objects(cluster, node, driver)[1][0]["spec"]["sharingAffinity"]
                != before["spec"]["sharingAffinity"]
            ),
            20,
        )
        site.claim("a-3", "a")
        site.pod("a-3")
        eventually("a-3 joins a", lambda: site.allocation("a-3") == places["a-1"], 30, process)

        # A roll-out on one pool, which the file knows nothing of.
        changed = SUBNET["expression"].replace("==", "  ==")
        path = extractors(tmp_path / "rolled", {**SUBNET, "expression": changed})
        subprocess.run(
            [*COMMAND, "extractors", "apply", "-f", path, "--wait=20", *admin], check=True, timeout=60
        )
        (metadata,) = pool_objects(cluster, node, driver)[1]
        assert metadata["spec"]["sharingAffinity"][0]["expression"] == changed

        # Somebody deletes the fence: it is back at once, metadata only when it has settled.
        cluster.request("DELETE", f"{RULES}/sharing-affinity-{driver}")
        wait_for("the fence again", lambda: cluster.request("GET", f"{RULES}/sharing-affinity-{driver}"), 20)
        wait_for("metadata withdrawn", lambda: not pool_objects(cluster, node, driver)[1], 20)
        wait_for("a complete pool", joined, 20)

    subprocess.run([*COMMAND, "metadata-sidecar", "--withdraw", *admin], check=True, timeout=60)
    assert pool_objects(cluster, node, driver)[1] == []
    with pytest.raises(ApiError, match="not found"):
        cluster.request("GET", f"{RULES}/sharing-affinity-{driver}")


def test_a_sidecar_reaches_its_own_driver_and_node_only(site: Site, node: str) -> None:
    kubeconfig = site.cluster.service_account_kubeconfig(DRIVER_NAMESPACE, ACCOUNT, node)
    client = ApiClient(kubeconfig)

    def metadata(driver: str, where: str) -> dict[str, Any]:
        return {
            "apiVersion": "sharingaffinity.dev/v1alpha1",
            "kind": "SharingAffinitySlice",
            "metadata": {"generateName": "x-"},
            "spec": {
                "driver": driver,
                "nodeName": where,
                "pool": {"name": where, "generation": 1, "resourceSliceCount": 2},
                "sharingAffinity": [SUBNET],
            },
        }

    def rule(name: str, **change: Any) -> dict[str, Any]:
        taint = {"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}
        spec = {"deviceSelector": {"driver": site.driver}, "taint": taint, **change}
        return {"metadata": {"name": name}, "spec": spec}

    own = f"sharing-affinity-{site.driver}"
    dry = "?dryRun=All"
    wait_for("its own", lambda: client.request("POST", METADATA + dry, metadata(site.driver, node)), 20)
    client.request("POST", RULES + dry, rule(own))
    for path, body, why in [
        (METADATA, metadata(site.driver, "other"), "of that node only"),
        (METADATA, metadata("other.example.com", node), f"of driver {site.driver} only"),
        (RULES, rule("other"), "the fence of all devices"),
        (RULES, rule(own, deviceSelector={"driver": site.driver, "pool": "x"}), "the fence of all devices"),
        (RULES, rule(own, deviceSelector={}), "the fence of all devices"),
        (RULES, rule(own, taint={"key": "mine", "effect": "NoExecute"}), "the fence of all devices"),
    ]:
        with pytest.raises(ApiError, match=why):
            client.request("POST", path + dry, body)
    with pytest.raises(ApiError, match="cannot delete"):
        client.request("DELETE", f"{RULES}/{own}")
