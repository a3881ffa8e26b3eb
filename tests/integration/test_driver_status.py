"""``status.devices`` of claims, with the rights that ship: written, kept beside other writers, taken away."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.nic import (
    DRIVER,
    RunningDriver,
    allocate,
    create_claim,
    driver_options,
    nic_claim,
    nic_config,
    running,
)

from affinity_driver.kube import ApiError, KubeClient, from_kubeconfig
from e2e.cluster import Cluster, wait_for
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.integration
APPLY = "application/apply-patch+yaml"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/affinity-driver-nic"


@pytest.fixture
def node(control_plane: Cluster) -> Iterator[str]:
    Product(control_plane).install("driver-nic")
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def nic(control_plane: Cluster, node: str) -> Iterator[RunningDriver]:
    kubeconfig = control_plane.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic", node)
    with (
        tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder,
        running(driver_options(Path(folder), node, publish=False), kubeconfig) as made,
    ):
        yield made


def path_of(claim: dict[str, Any]) -> str:
    metadata = claim["metadata"]
    return f"/apis/resource.k8s.io/v1/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"


def entries(cluster: Cluster, claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.request("GET", path_of(claim))["status"].get("devices") or []
    return found


def told(cluster: Cluster, claim: dict[str, Any], ready: str) -> Callable[[], dict[str, Any] | None]:
    """A probe: the driver's entry, once its condition Ready has that status."""

    def probe() -> dict[str, Any] | None:
        mine = [entry for entry in entries(cluster, claim) if entry["driver"] == DRIVER]
        return next((entry for entry in mine if conditions(entry)["Ready"]["status"] == ready), None)

    return probe


def conditions(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in entry["conditions"]}


def outcome(nic: RunningDriver, name: str) -> float:
    value = nic.driver.metrics.registry.get_sample_value(
        "affinity_driver_claim_status_writes_total", {"driver": DRIVER, "outcome": name}
    )
    assert value is not None
    return value


def event(cluster: Cluster, claim: dict[str, Any], reason: str) -> str:
    def probe() -> str | None:
        found = cluster.request("GET", f"/api/v1/namespaces/{claim['metadata']['namespace']}/events")["items"]
        for item in found:
            if item["involvedObject"].get("uid") == claim["metadata"]["uid"] and item["reason"] == reason:
                return str(item["message"])
        return None

    return wait_for(f"event {reason}", probe)


def apply(cluster: Cluster, claim: dict[str, Any], manager: str, *devices: dict[str, Any]) -> None:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim["metadata"]["name"]},
        "status": {"devices": list(devices)},
    }
    cluster.request("PATCH", f"{path_of(claim)}/status?fieldManager={manager}", body, content_type=APPLY)


def test_a_prepared_claim_tells_of_its_device_until_it_is_unprepared(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = nic_claim(control_plane, namespace, node, "a", mtu=9000)
    uid = claim["metadata"]["uid"]
    result = claim["status"]["allocation"]["devices"]["results"][0]
    assert nic.kubelet.prepare(claim)[uid].error == ""
    entry = wait_for("status", told(control_plane, claim, "True"))
    assert (entry["pool"], entry["device"], entry["shareID"]) == (node, "eth1", result["shareID"])
    assert conditions(entry)["Ready"]["reason"] == "Prepared"
    locked = conditions(entry)["AffinityLocked"]
    assert (locked["status"], locked["message"]) == ("True", 'subnet="a"')
    assert entry["data"] == {"keys": {"subnet": "a"}, "settings": {"mtu": 9000, "subnet": "a"}}
    assert entry["networkData"]["interfaceName"] == "eth1"
    assert entry["networkData"]["hardwareAddress"].startswith("02:")
    nic.kubelet.unprepare(claim)
    wait_for("status gone", lambda: entries(control_plane, claim) == [])


def test_a_restart_writes_what_is_missing_and_nothing_else(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    kept, missed = (nic_claim(control_plane, namespace, node, "a") for _ in range(2))
    nic.kubelet.prepare(kept, missed)
    for claim in (kept, missed):
        wait_for("status", told(control_plane, claim, "True"))
    nic.stop()
    apply(control_plane, missed, DRIVER)  # as if the driver had died before it wrote
    assert entries(control_plane, missed) == []
    version = control_plane.request("GET", path_of(kept))["metadata"]["resourceVersion"]
    nic.start_again()
    wait_for("status again", told(control_plane, missed, "True"))
    wait_for("both looked at", lambda: outcome(nic, "written") + outcome(nic, "unchanged") >= 2)
    assert control_plane.request("GET", path_of(kept))["metadata"]["resourceVersion"] == version


def test_entries_of_other_drivers_stay(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = create_claim(control_plane, namespace, "both", [nic_config("a")])
    gpu = {"request": "nic", "driver": "gpu.example.com", "pool": node, "device": "gpu-0"}
    claim = allocate(control_plane, claim, node, extra=[gpu])
    theirs = {"driver": "gpu.example.com", "pool": node, "device": "gpu-0", "data": {"temperature": 40}}
    apply(control_plane, claim, "gpu.example.com", theirs)
    nic.kubelet.prepare(claim)
    wait_for("status", told(control_plane, claim, "True"))
    assert len(entries(control_plane, claim)) == 2
    nic.kubelet.unprepare(claim)
    wait_for("only theirs", lambda: len(entries(control_plane, claim)) == 1)
    (left,) = entries(control_plane, claim)
    assert (left["driver"], left["data"]) == ("gpu.example.com", theirs["data"])


def test_a_refused_claim_says_why_and_recovers(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    first, second = (nic_claim(control_plane, namespace, node, subnet) for subnet in "ab")
    nic.kubelet.prepare(first)
    assert nic.kubelet.prepare(second)[second["metadata"]["uid"]].error
    entry = wait_for("refusal", told(control_plane, second, "False"))
    ready = conditions(entry)["Ready"]
    assert (ready["reason"], conditions(entry)["AffinityLocked"]["status"]) == ("Incompatible", "False")
    assert 'this claim needs subnet="b"' in ready["message"]
    assert first["metadata"]["name"] not in ready["message"]
    assert event(control_plane, second, "PrepareIncompatible") == ready["message"]
    nic.kubelet.unprepare(first)
    nic.kubelet.prepare(second)
    entry = wait_for("prepared", told(control_plane, second, "True"))
    assert conditions(entry)["AffinityLocked"]["message"] == 'subnet="b"'


def test_fields_that_others_set_are_left_to_them_and_named(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = nic_claim(control_plane, namespace, node, "a")
    uid = claim["metadata"]["uid"]
    result = claim["status"]["allocation"]["devices"]["results"][0]
    mine = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    apply(control_plane, claim, "somebody", {**mine, "data": {"owner": "somebody"}})
    assert nic.kubelet.prepare(claim)[uid].error == ""
    text = event(control_plane, claim, "StatusContested")
    assert 'conflict with "somebody"' in text
    assert ".data" in text
    (entry,) = entries(control_plane, claim)
    assert entry["data"] == {"owner": "somebody"}
    wait_for("counted", lambda: outcome(nic, "conflict") == 1)
    assert nic.kubelet.unprepare(claim) == {uid: ""}


def test_claims_that_the_server_cannot_patch_are_told(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    """Server-side apply sends the allocation through Go's JSON; other spellings then count as a change."""
    claim = nic_claim(control_plane, namespace, node, "a&b")
    assert nic.kubelet.prepare(claim)[claim["metadata"]["uid"]].error == ""
    assert "as Go writes JSON" in event(control_plane, claim, "StatusUnpatchable")
    wait_for("counted", lambda: outcome(nic, "unpatchable") == 1)


def test_a_missing_right_fails_no_prepare_and_is_made_good_later(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    role = control_plane.request("GET", ROLE)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["resourceclaims/driver"]]
    assert len(rules) == len(role["rules"]) - 1
    control_plane.request("PUT", ROLE, {**role, "rules": rules})
    try:
        claim = nic_claim(control_plane, namespace, node, "a")

        def refused() -> bool:
            nic.kubelet.unprepare(claim)
            assert nic.kubelet.prepare(claim)[claim["metadata"]["uid"]].error == ""
            return outcome(nic, "retried") > 0

        wait_for("a write refused", refused, 20, pause=0.5)
        assert entries(control_plane, claim) == []
        found = control_plane.request("GET", "/api/v1/namespaces/default/events")["items"]
        texts = [item["message"] for item in found if item["reason"] == "StatusForbidden"]
        assert any("associated-node:patch on resourceclaims/driver" in text for text in texts)
    finally:
        role["metadata"] = {"name": "affinity-driver-nic"}
        control_plane.request("PUT", ROLE, role)
    wait_for("written after all", told(control_plane, claim, "True"))


def test_an_absent_api_server_delays_status_and_nothing_else(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = nic_claim(control_plane, namespace, node, "a")
    uid = claim["metadata"]["uid"]
    nic.kubelet.prepare(claim)
    wait_for("status", told(control_plane, claim, "True"))
    control_plane.kill("apiserver")
    try:
        assert nic.kubelet.unprepare(claim) == {uid: ""}
        wait_for("tried", lambda: outcome(nic, "retried") > 0)
    finally:
        control_plane.start("apiserver")
    wait_for("status gone", lambda: entries(control_plane, claim) == [])


def test_another_nodes_claims_are_out_of_reach(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    """No policy is needed for this: the API server's own authorization binds the verb to the token's node."""
    other = f"n-{uuid.uuid4().hex[:8]}"
    claim = nic_claim(control_plane, namespace, other, "a")
    result = claim["status"]["allocation"]["devices"]["results"][0]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim["metadata"]["name"]},
        "status": {"devices": [entry]},
    }
    api = KubeClient(from_kubeconfig(nic.kubeconfig))
    with pytest.raises(ApiError, match=r"status\.devices: Forbidden"):
        api.apply_status(path_of(claim), body, DRIVER, force=False)
