"""Prepare and unprepare over the driver's sockets, with claims in a real API server, allocated by hand."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
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

from affinity_driver import cli, status
from affinity_driver.profiles import ProfileOptions
from e2e.cluster import Cluster
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    Product(control_plane).install("driver-nic")
    return control_plane


@pytest.fixture(scope="module")
def node(installed: Cluster) -> Iterator[str]:
    name = f"n-{uuid.uuid4().hex[:8]}"
    installed.add_node(name)
    yield name
    installed.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def nic(installed: Cluster, node: str) -> Iterator[RunningDriver]:
    """A registered NIC driver with the manifests' rights; it publishes nothing, which is tested elsewhere."""
    kubeconfig = installed.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic", node)
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        options = driver_options(Path(folder), node, publish=False, profile_options=ProfileOptions(slots=32))
        with running(options, kubeconfig) as made:
            yield made


def environment(nic: RunningDriver, claim: dict[str, Any]) -> dict[str, str]:
    """The variables of all CDI devices of a claim."""
    uid = claim["metadata"]["uid"]
    spec = json.loads((nic.options.cdi / f"{DRIVER}-nic_{uid}.json").read_text())
    return dict(
        entry.split("=", 1) for device in spec["devices"] for entry in device["containerEdits"]["env"]
    )


def prepare(nic: RunningDriver, claim: dict[str, Any]) -> str:
    """Prepare one claim; the error, "" for none."""
    error: str = nic.kubelet.prepare(claim)[claim["metadata"]["uid"]].error
    return error


def test_prepared_device_and_its_environment(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = nic_claim(control_plane, namespace, node, "subnet-a", mtu=9000)
    uid = claim["metadata"]["uid"]
    result = claim["status"]["allocation"]["devices"]["results"][0]
    entry = nic.kubelet.prepare(claim)[uid]
    assert entry.error == ""
    (device,) = entry.devices
    assert (device.pool_name, device.device_name, device.share_id) == (node, "eth1", result["shareID"])
    assert list(device.cdi_device_ids) == [f"{DRIVER}/nic={uid}-eth1-{result['shareID']}"]
    seen = environment(nic, claim)
    assert seen["NIC_DEVICE"] == "eth1"
    assert seen["NIC_SUBNET"] == "subnet-a"
    assert seen["NIC_SHARE_ID"] == result["shareID"]
    assert seen["NIC_MTU"] == "9000"
    assert nic.kubelet.unprepare(claim) == {uid: ""}
    assert nic.cdi_files() == []


def test_backstop_rejects_another_subnet_and_names_no_holder(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    """KEP integration item "Driver Backstop", and case D-01."""
    first, other = (nic_claim(control_plane, namespace, node, subnet) for subnet in ("subnet-a", "subnet-b"))
    third = nic_claim(control_plane, namespace, node, "subnet-a")
    assert prepare(nic, first) == ""
    assert prepare(nic, third) == ""
    error = prepare(nic, other)
    assert error.startswith("device eth1 is in use with another subnet by 2 prepared claims; ")
    assert error.endswith('; this claim needs subnet="subnet-b"')
    assert first["metadata"]["name"] not in error
    shares = status.describe(nic.driver.state.snapshot())["devices"]["eth1"]
    assert {share["claim"] for share in shares} == {c["metadata"]["name"] for c in (first, third)}
    nic.restart()
    assert "another subnet" in prepare(nic, other)
    nic.kubelet.unprepare(first, third)
    assert prepare(nic, other) == ""


def test_another_device_takes_the_other_subnet(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    assert prepare(nic, nic_claim(control_plane, namespace, node, "subnet-a")) == ""
    assert prepare(nic, nic_claim(control_plane, namespace, node, "subnet-b", "eth2")) == ""


def test_one_bad_claim_of_a_batch_fails_alone(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    good = nic_claim(control_plane, namespace, node, "subnet-a")
    bad = nic_claim(control_plane, namespace, node, "subnet-a", mut=9000)
    answer = nic.kubelet.prepare(good, bad)
    assert answer[good["metadata"]["uid"]].error == ""
    assert (
        "parameters.mut: unknown field; NICConfig has mtu, pkey, subnet, vlan"
        in answer[bad["metadata"]["uid"]].error
    )


class TestIdentity:
    def test_unknown_claim(self, namespace: str, nic: RunningDriver) -> None:
        ghost = {"metadata": {"namespace": namespace, "name": "ghost", "uid": "ghost-uid"}}
        assert "does not exist any more" in prepare(nic, ghost)
        assert nic.kubelet.unprepare(ghost) == {"ghost-uid": ""}

    def test_unallocated_claim(self, control_plane: Cluster, namespace: str, nic: RunningDriver) -> None:
        assert "is not allocated" in prepare(nic, create_claim(control_plane, namespace, "c", []))

    def test_case_d05_same_name_new_uid(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/nic"
        old = allocate(control_plane, create_claim(control_plane, namespace, "nic", [nic_config("A")]), node)
        assert prepare(nic, old) == ""
        control_plane.request("DELETE", path)
        new = allocate(
            control_plane, create_claim(control_plane, namespace, "nic", [nic_config("B")]), node, "eth2"
        )
        assert "was replaced" in prepare(nic, old) or prepare(nic, old) == ""
        assert prepare(nic, new) == ""
        assert nic.kubelet.unprepare(old) == {old["metadata"]["uid"]: ""}
        assert environment(nic, new)["NIC_SUBNET"] == "B"
        assert len(nic.cdi_files()) == 1

    def test_foreign_pool_and_missing_device(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        elsewhere = create_claim(control_plane, namespace, "c1", [nic_config("A")])
        assert "is not on this node" in prepare(nic, allocate(control_plane, elsewhere, node, pool="other"))
        absent = create_claim(control_plane, namespace, "c2", [nic_config("A")])
        assert "does not exist" in prepare(nic, allocate(control_plane, absent, node, "eth9"))

    def test_a_claim_of_other_drivers_only(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        claim = create_claim(control_plane, namespace, "c", [])
        foreign = allocate(control_plane, claim, node, driver="gpu.example.com")
        assert f"has no device of driver {DRIVER}" in prepare(nic, foreign)

    def test_results_of_other_drivers_are_left_to_them(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        claim = create_claim(control_plane, namespace, "c", [nic_config("A")])
        gpu = {"request": "nic", "driver": "gpu.example.com", "pool": node, "device": "gpu-0"}
        both = allocate(control_plane, claim, node, extra=[gpu])
        (device,) = nic.kubelet.prepare(both)[both["metadata"]["uid"]].devices
        assert device.device_name == "eth1"


class TestConfig:
    def test_no_config_is_refused(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        error = prepare(nic, nic_claim(control_plane, namespace, node, None))
        assert error == "device eth1: no config for request nic gives subnet"

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"subnet": 42}, "parameters.subnet: a string is needed, not a number"),
            ({"subnet": ""}, "parameters.subnet: 1 to 253 characters are allowed, not 0"),
            ({"subnet": "a", "mtu": "9000"}, "parameters.mtu: a whole number is needed, not a string"),
            ({"subnet": "a", "mtu": 10}, "parameters.mtu: 576 to 9216 are allowed, not 10"),
            ({"subnet": "a", "vlan": True}, "parameters.vlan: a whole number is needed, not a boolean"),
            ({"subnet": "a\n"}, "parameters.subnet: only printable characters are allowed"),
            ({"apiVersion": "v9", "subnet": "a"}, "apiVersion 'v9' with kind 'NICConfig' is unknown"),
        ],
    )
    def test_wrong_configs_are_explained(
        self,
        control_plane: Cluster,
        namespace: str,
        node: str,
        nic: RunningDriver,
        fields: dict[str, Any],
        expected: str,
    ) -> None:
        parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "NICConfig", **fields}
        config = {"opaque": {"driver": DRIVER, "parameters": parameters}}
        claim = create_claim(control_plane, namespace, "c", [config])
        error = prepare(nic, allocate(control_plane, claim, node))
        assert error.startswith("config of the claim for request nic: ")
        assert expected in error

    def test_both_schema_versions_meet_on_one_device(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        parameters = {"apiVersion": f"{DRIVER}/v1beta1", "kind": "NICConfig", "subnetID": "A"}
        config = {"opaque": {"driver": DRIVER, "parameters": parameters}}
        old = allocate(control_plane, create_claim(control_plane, namespace, "old", [config]), node)
        assert prepare(nic, old) == ""
        assert prepare(nic, nic_claim(control_plane, namespace, node, "A")) == ""
        assert "another subnet" in prepare(nic, nic_claim(control_plane, namespace, node, "B"))
        assert environment(nic, old)["NIC_SUBNET"] == "A"

    def test_configs_of_requests_reach_their_own_devices(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        configs = [{"requests": [name], **nic_config(name)} for name in ("left", "right")]
        claim = create_claim(control_plane, namespace, "two", configs, ("left", "right"))
        claim = allocate(control_plane, claim, node, {"left": "eth1", "right": "eth2"})
        entry = nic.kubelet.prepare(claim)[claim["metadata"]["uid"]]
        names = {tuple(device.request_names): device.device_name for device in entry.devices}
        assert names == {("left",): "eth1", ("right",): "eth2"}
        seen = environment(nic, claim)
        assert (seen["NIC_ETH1_SUBNET"], seen["NIC_ETH2_SUBNET"]) == ("left", "right")

    def test_two_values_for_one_request_are_the_claims_mistake(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        claim = create_claim(control_plane, namespace, "c", [nic_config("A"), nic_config("B")])
        assert "two values" in prepare(nic, allocate(control_plane, claim, node))

    def test_configs_of_other_drivers_are_none_of_ours(
        self, control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
    ) -> None:
        other = {"opaque": {"driver": "gpu.example.com", "parameters": {"subnet": "B", "odd": True}}}
        claim = create_claim(control_plane, namespace, "c", [other, nic_config("A")])
        assert prepare(nic, allocate(control_plane, claim, node)) == ""


def test_thirty_claims_share_a_device_of_32_slots(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claims = [nic_claim(control_plane, namespace, node, "A") for _ in range(33)]
    answer = nic.kubelet.prepare(*claims)
    errors = [entry.error for entry in answer.values() if entry.error]
    assert len(errors) == 1
    assert errors[0] == "device eth1 has not enough slots left beside 32 prepared claims"
    assert len(nic.cdi_files()) == 32
    nic.kubelet.unprepare(*claims)
    assert nic.cdi_files() == []


def test_unprepare_needs_no_api_server(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    claim = nic_claim(control_plane, namespace, node, "A")
    assert prepare(nic, claim) == ""
    control_plane.kill("apiserver")
    try:
        assert nic.kubelet.unprepare(claim) == {claim["metadata"]["uid"]: ""}
        assert "cannot be read" in prepare(nic, claim)
    finally:
        control_plane.start("apiserver")
    assert prepare(nic, claim) == ""


def test_probe_and_status(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = nic_claim(control_plane, namespace, node, "A")
    prepare(nic, claim)
    directory = nic.driver.directory
    assert status.probe(directory, 5) == 0
    assert cli.main(["status", f"--kubelet-root-dir={nic.options.kubelet_root}"]) == 0
    out = capsys.readouterr().out
    assert f"{namespace}/{claim['metadata']['name']}" in out
    assert "eth1     subnet=A   1         subnet=A     -" in out
    nic.stop()
    assert status.probe(directory, 5) == 1
    nic.start_again()


def test_metrics_count_outcomes(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    prepare(nic, nic_claim(control_plane, namespace, node, "A"))
    prepare(nic, nic_claim(control_plane, namespace, node, "B"))
    value = nic.driver.metrics.registry.get_sample_value
    labels = {"driver": DRIVER, "operation": "prepare"}
    assert value("affinity_driver_claims_total", {**labels, "outcome": "ok"}) == 1
    assert value("affinity_driver_claims_total", {**labels, "outcome": "incompatible"}) == 1
    assert value("affinity_driver_claims_total", {**labels, "outcome": "internal"}) == 0
    assert value("affinity_driver_affinity_rejections_total", {"driver": DRIVER, "key": "subnet"}) == 1
    assert value("affinity_driver_prepared_claims", {"driver": DRIVER, "phase": "Completed"}) == 1


def test_claims_cannot_be_read_without_rights(
    control_plane: Cluster, namespace: str, node: str, nic: RunningDriver
) -> None:
    """A silent RBAC mistake becomes a sentence in the pod's event."""
    claim = nic_claim(control_plane, namespace, node, "A")
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/affinity-driver-nic"
    stored = control_plane.request("GET", binding)
    control_plane.request("DELETE", binding)
    try:
        for _ in range(100):
            error = prepare(nic, claim)
            nic.kubelet.unprepare(claim)
            if error:
                break
        assert "403 Forbidden" in error
    finally:
        stored["metadata"] = {"name": stored["metadata"]["name"]}
        control_plane.request("POST", binding.rpartition("/")[0], stored)
        for _ in range(100):
            if prepare(nic, claim) == "":
                break
