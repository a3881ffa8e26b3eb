"""Sharing affinity for a driver that knows nothing of it: the sidecar beside a publisher on the official Go
library, with the rights and policies that ship, up to pods that the operator places.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import operator
from harness.nic import METADATA, SLICES, complete, pool_objects
from harness.operator import SUBNET, Process, Site, eventually
from harness.publisher import ACCOUNT, RULES, Publisher, configure, sidecar

from affinity_driver import cli
from affinity_driver.kube import KubeClient, from_kubeconfig
from affinity_driver.mirror.sidecar import SOON, Sidecar, SidecarOptions
from e2e.api import ApiClient
from e2e.cluster import Cluster, wait_for
from e2e.errors import ApiError
from e2e.product import DRIVER_NAMESPACE
from sharing_affinity.api import Extractor

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-m", "affinity_driver"]


@pytest.fixture(scope="module")
def process(control_plane: Cluster) -> Iterator[Process]:
    """The operator, which takes rules for fences."""
    with operator.running(operator.install(control_plane), "--rule-fences", "--fence-settle", "1") as made:
        yield made


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
    process: Process, site: Site, node: str, publisher: Publisher, tmp_path: Path
) -> None:
    cluster, driver = site.cluster, site.driver
    admin = [f"--driver={driver}", f"--kubeconfig={cluster.kubeconfig}"]
    publisher.publish(devices(site, "eth1"), devices(site, "eth2"))
    joined = complete(cluster, node, driver)
    with sidecar(cluster, driver, extractors(tmp_path, SUBNET), node):
        wait_for("a complete pool", joined)
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
            name: eventually(f"{name} placed", lambda name=name: site.allocation(name), process=process)
            for name in ("a-1", "a-2", "b-1")
        }
        assert places["a-1"] == places["a-2"] != places["b-1"]
        eventually("a-1 bound", lambda: site.node_of("a-1") == node, process=process)

        # The library raises the generation by itself: two slices change at once.
        publisher.publish(devices(site, "eth1", speed={"int": 10}), devices(site, "eth2", speed={"int": 10}))
        wait_for("the next generation", lambda: (joined() or 0) > 1)

        # A wipe: the library begins anew, in most cases with generation 1.
        wiped = pool_objects(cluster, node, driver)[0]
        for item in wiped:
            cluster.request("DELETE", f"{SLICES}/{item['metadata']['name']}")
        publisher.publish(devices(site, "eth1"), devices(site, "eth2"))
        old = {item["metadata"]["uid"] for item in wiped}

        def renewed() -> bool:
            slices = pool_objects(cluster, node, driver)[0]
            return not old & {item["metadata"]["uid"] for item in slices} and joined() is not None

        wait_for("a complete pool of new slices", renewed)

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
        )
        site.claim("a-3", "a")
        site.pod("a-3")
        eventually("a-3 joins a", lambda: site.allocation("a-3") == places["a-1"], process=process)

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
        wait_for("the fence again", lambda: cluster.request("GET", f"{RULES}/sharing-affinity-{driver}"))
        wait_for("metadata withdrawn", lambda: not pool_objects(cluster, node, driver)[1])
        wait_for("a complete pool", joined)

    subprocess.run([*COMMAND, "metadata-sidecar", "--withdraw", *admin], check=True, timeout=60)
    assert pool_objects(cluster, node, driver)[1] == []
    with pytest.raises(ApiError, match="not found"):
        cluster.request("GET", f"{RULES}/sharing-affinity-{driver}")


def test_a_placeholder_driver_migrates_while_its_claims_run(
    process: Process, site: Site, node: str, publisher: Publisher, tmp_path: Path
) -> None:
    """The KEP's status quo: a device of capacity 1 that grows, with the value in an attribute, once its first
    claim came. The claims carry their configuration all the same, so nothing has to be drained.
    """
    cluster = site.cluster

    def placed(name: str, subnet: str) -> str:
        site.claim(name, subnet)
        site.pod(name)
        found = eventually(f"{name} placed", lambda: site.allocation(name), process=process)
        eventually(f"{name} bound", lambda: site.node_of(name), process=process)
        return str(found[1])

    def placeholder(name: str) -> dict[str, Any]:
        return site.device(name, slots=1, fenced=False)

    publisher.publish([placeholder("eth1"), placeholder("eth2")])
    assert placed("a-1", "a") == "eth1"
    publisher.publish([*devices(site, "eth1", subnet={"string": "a"}), placeholder("eth2")])
    wait_for("eth1 grown", lambda: "subnet" in _first(cluster, node, site.driver).get("attributes", {}))
    assert placed("a-2", "a") == "eth1"
    with sidecar(cluster, site.driver, extractors(tmp_path, SUBNET), node):
        wait_for("a complete pool", complete(cluster, node, site.driver))
        # The driver stops playing: all slots from the start, no value in attributes.
        publisher.publish(devices(site, "eth1", "eth2"))
        wait_for("eth1 plain", lambda: not _first(cluster, node, site.driver).get("attributes"))
        assert placed("a-3", "a") == "eth1"
        assert placed("b-1", "b") == "eth2"
        row = f"{node}/eth1"
        eventually("three holders", lambda: site.table().get(row, {}).get("holderCount") == 3)


def test_what_a_sidecar_leaves_alone_and_what_it_forgets(site: Site, node: str) -> None:
    """Pass by pass: metadata of others, pools without a node, pools that are gone for good."""
    cluster, told = site.cluster, []
    api = KubeClient(from_kubeconfig(cluster.kubeconfig))
    now = time.time()
    clock = [now]
    options = SidecarOptions(site.driver, None, settle=5.0, forget=60.0)
    nine = [Extractor(f"k{number}", SUBNET["expression"]) for number in range(9)]  # one slice takes eight
    made = Sidecar(
        api,
        options,
        lambda: nine,
        lambda *words: told.append(words),
        lambda: clock[0],
        lambda: clock[0],
    )
    site.publish(node, ["eth1"], fenced=False)
    where = {"allNodes": True}
    pool = {"name": "fabric", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": site.driver, "pool": pool, "devices": [site.device("port", fenced=False)], **where}
    fabric = site.create_cluster(SLICES, {"metadata": {"generateName": "fabric-"}, "spec": spec})

    def metadata(name: str) -> list[dict[str, Any]]:
        items = cluster.request("GET", METADATA)["items"]
        pools = [(item["spec"]["driver"], item["spec"]["pool"]["name"]) for item in items]
        return [item for item, owner in zip(items, pools, strict=True) if owner == (site.driver, name)]

    assert made.sync() == 5.0
    assert metadata("fabric") == []
    clock[0] += 10
    while made.sync() == SOON:
        pass
    written = metadata("fabric")
    assert [item["spec"]["pool"]["resourceSliceCount"] for item in written] == [3, 3]
    assert all(item["spec"]["allNodes"] for item in written)
    assert len(metadata(node)) == 1
    ((reason, message),) = told
    assert reason == "MetadataContested"
    assert f"pool {node}" in message
    cluster.request("DELETE", f"{SLICES}/{fabric['metadata']['name']}")
    for seconds, left in ((30, 2), (31, 0)):
        clock[0] += seconds
        while made.sync() == SOON:
            pass
        assert len(metadata("fabric")) == left
    assert len(told) == 1


def _first(cluster: Cluster, node: str, driver: str) -> dict[str, Any]:
    """The pool's first device."""
    slices = pool_objects(cluster, node, driver)[0]
    found: dict[str, Any] = slices[0]["spec"]["devices"][0]
    return found


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
    wait_for("its own", lambda: client.request("POST", METADATA + dry, metadata(site.driver, node)))
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


def test_without_rules_there_is_no_sidecar(
    control_plane_1_36: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes 1.36 serves no DeviceTaintRules by default: metadata without a fence would only be in the
    way."""
    arguments = [f"--extractors={extractors(tmp_path, SUBNET)}", "--driver=x.example.com", "--all-nodes"]
    kubeconfig = f"--kubeconfig={control_plane_1_36.kubeconfig}"
    assert cli.main(["metadata-sidecar", *arguments, kubeconfig]) == 3
    assert "DeviceTaintRules need Kubernetes 1.37" in capsys.readouterr().err
