"""``affinity-driver doctor`` against set-ups that were broken on purpose, each in one way."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from harness.nic import DRIVER, RunningDriver, complete, driver_options, nic_claim, running

from affinity_driver import cli
from affinity_driver.doctor import cluster as cluster_checks
from affinity_driver.doctor.cluster import look, rights
from affinity_driver.kube import KubeClient, from_kubeconfig
from e2e import local
from e2e.cluster import Cluster, wait_for
from e2e.fixtures import CRDS
from e2e.options import Options
from e2e.product import DRIVER_NAMESPACE, MANIFESTS, Product

pytestmark = pytest.mark.integration
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/affinity-driver-nic"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def nic(control_plane: Cluster) -> Iterator[RunningDriver]:
    """A healthy driver: published, registered, one claim prepared."""
    Product(control_plane).install("driver-nic")
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(name)
    kubeconfig = control_plane.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic", name)
    with (
        tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder,
        running(driver_options(Path(folder), name), kubeconfig) as made,
    ):
        wait_for("published", complete(control_plane, name))
        made.kubelet.prepare(nic_claim(control_plane, "default", name, "a"))
        wait_for("no problem told", lambda: not examine(made, "slices"))
        yield made
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


def examine(nic: RunningDriver, *checks: str, **changes: Any) -> list[dict[str, Any]]:
    """What is wrong according to the command; only these checks, where any are named."""
    output = captured(nic, **changes)
    findings = json.loads(output[1])["findings"]
    wrong = [finding for finding in findings if finding["verdict"] == "wrong"]
    assert output[0] == (1 if wrong else 0)
    assert all(finding["remedy"] for finding in findings if finding["verdict"] != "ok")
    return [finding for finding in wrong if not checks or finding["check"] in checks]


def captured(nic: RunningDriver, output: str = "json", **changes: Any) -> tuple[int, str]:
    options = replace(nic.options, **{key: value for key, value in changes.items() if key != "kubeconfig"})
    arguments = [
        "doctor",
        f"--node-name={options.node}",
        f"--kubeconfig={changes.get('kubeconfig', nic.kubeconfig)}",
        f"--kubelet-root-dir={options.kubelet_root}",
        f"--cdi-dir={options.cdi}",
        f"--output={output}",
    ]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        code = cli.main(arguments)
    return code, text.getvalue()


def test_a_healthy_driver(nic: RunningDriver) -> None:
    assert examine(nic) == []
    code, text = captured(nic, "table")
    assert code == 0
    for line in (
        "the kubelet has accepted the driver",
        "all that the driver needs",
        "1 claims",
        "one generation",
    ):
        assert line in text
    # Hand-made nodes do not say which runtime they have.
    assert [line for line in text.splitlines() if line.startswith("unsure")] == [
        line for line in text.splitlines() if "runtime" in line
    ]


def test_rights_are_those_of_the_manifests() -> None:
    for profile in ("nic", "fpga"):
        objects = list(yaml.safe_load_all((MANIFESTS / f"driver-{profile}" / "rbac.yaml").read_text()))
        (role,) = (obj for obj in objects if obj["kind"] == "ClusterRole")
        granted = {
            (verb, group, resource, name)
            for rule in role["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
        }
        wanted = rights(f"{profile}.sharingaffinity.dev")
        assert granted == {(right.verb, right.group, right.resource, right.name) for right in wanted}


def test_a_missing_right(control_plane: Cluster, nic: RunningDriver) -> None:
    role = control_plane.request("GET", ROLE)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["resourceclaims/driver"]]
    control_plane.request("PUT", ROLE, {**role, "rules": rules})
    try:
        (finding,) = wait_for("noticed", lambda: examine(nic, "rights"))
        assert (
            f"missing associated-node:patch resourceclaims/driver.resource.k8s.io {DRIVER}"
            in finding["found"]
        )
        assert "ClusterRole" in finding["remedy"]
    finally:
        control_plane.request("PUT", ROLE, {**role, "metadata": {"name": "affinity-driver-nic"}})
    wait_for("well again", lambda: not examine(nic, "rights"))


def test_a_token_of_no_node(control_plane: Cluster, nic: RunningDriver) -> None:
    kubeconfig = control_plane.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic")
    findings = {finding["check"]: finding for finding in examine(nic, kubeconfig=kubeconfig)}
    assert "bound to no node" in findings["token"]["found"]
    assert "bound to no node" in findings["fields"]["found"]  # the policy's own words


def test_a_cdi_directory_that_cannot_be_written(nic: RunningDriver) -> None:
    (finding,) = examine(nic, "CDI directory", cdi=Path("/proc/cdi"))
    assert "cannot be written" in finding["found"]
    assert "--cdi-dir" in finding["remedy"]


def test_lost_cdi_files(nic: RunningDriver) -> None:
    (file,) = nic.cdi_files()
    kept = file.read_bytes()
    file.unlink()
    try:
        (finding,) = examine(nic)
        assert (finding["check"], finding["found"][:28]) == ("CDI files", "1 prepared claims have none,")
    finally:
        file.write_bytes(kept)


def test_a_stale_socket(nic: RunningDriver) -> None:
    path = nic.options.kubelet_root / "plugins_registry" / f"{DRIVER}-dead-reg.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    try:
        (finding,) = examine(nic)
        assert str(path) in finding["found"]
        assert "delete" in finding["remedy"]
    finally:
        path.unlink()


def test_a_damaged_checkpoint(nic: RunningDriver) -> None:
    path = nic.driver.directory / "checkpoint.json"
    kept = path.read_bytes()
    path.write_bytes(b"\0" * 10)
    try:
        (finding,) = examine(nic)
        assert finding["check"] == "checkpoint"
        assert "sets the file aside" in finding["remedy"]
    finally:
        path.write_bytes(kept)


def test_a_wrong_clock(nic: RunningDriver) -> None:
    api = KubeClient(from_kubeconfig(nic.kubeconfig))
    for shift, expected in ((-90.0, "90 s behind"), (90.0, "90 s ahead of"), (0.0, "agrees")):
        (finding,) = (
            finding
            for finding in look(api, DRIVER, nic.options.node, [], [], lambda: time.time() + shift)  # noqa: B023
            if finding.check == "clock"
        )
        assert expected in finding.found


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        yield Path(folder)


def test_no_driver_no_kubelet_and_a_refusal(nic: RunningDriver, root: Path) -> None:
    options = driver_options(root, nic.options.node, publish=False)
    for folder in ("plugins_registry", f"plugins/{DRIVER}"):
        (options.kubelet_root / folder).mkdir(parents=True)
    options.cdi.mkdir()
    assert "no instance" in examine(nic, "driver", kubelet_root=options.kubelet_root)[0]["found"]
    with running(options, nic.kubeconfig, register=False) as made:
        assert "no kubelet has asked" in examine(made, "registration")[0]["found"]
        made.kubelet.register(accept=False)
        assert "refuses the driver: refused" in examine(made, "registration")[0]["found"]


def test_no_api_server(nic: RunningDriver, tmp_path: Path) -> None:
    config = yaml.safe_load(nic.kubeconfig.read_text())
    (port,) = local.free_ports(1)
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    (finding,) = examine(nic, kubeconfig=path)
    assert "refused" in finding["found"]
    (finding,) = examine(nic, kubeconfig=tmp_path / "absent")
    assert "No such file" in finding["found"]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("containerd://2.1.4", "ok"),
        ("containerd://v1.7.20", "unsure"),
        ("containerd://1.6.1", "wrong"),
        ("cri-o://1.33.0", "ok"),
        ("cri-o://1.20.0", "wrong"),
        ("other://9.9", "unsure"),
        ("", "unsure"),
    ],
)
def test_runtimes(version: str, verdict: str) -> None:
    assert cluster_checks._runtime(version).verdict == verdict


@pytest.fixture(scope="module")
def gate_off() -> Iterator[Cluster]:
    """A control plane without the gate, and without our custom resources."""
    name = f"pytest-doctor-{os.getpid()}"
    cluster = local.up(Options(name=name, nodes=0, feature_gates="DRAConsumableCapacity=false"))
    try:
        yield cluster
    finally:
        cluster.down()


def test_a_gate_that_is_off_and_missing_custom_resources(gate_off: Cluster, nic: RunningDriver) -> None:
    gate_off.add_node(nic.options.node)
    findings = examine(nic, "fields", kubeconfig=gate_off.kubeconfig)
    assert {(finding["found"][:33], finding["remedy"]) for finding in findings} == {
        ("SharingAffinitySlice would be ref", "kubectl apply --server-side -k crds"),
        ("the API server drops spec.devices", "switch on feature gate DRAConsumableCapacity"),
    }
    gate_off.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))
    assert len(examine(nic, "fields", kubeconfig=gate_off.kubeconfig)) == 1
