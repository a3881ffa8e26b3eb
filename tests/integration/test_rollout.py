"""The KEP's playbook for changing extractors under running workloads, by commands.

Driver, operator, scheduler and API server are real; the operator allocates, so every claim has its record.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from harness import operator
from harness.nic import METADATA, RunningDriver, allocate, complete, driver_options, pool_objects, running
from harness.operator import Process, Site, eventually

from affinity_driver import cli
from affinity_driver.profiles import ProfileOptions
from e2e.cluster import Cluster, wait_for

pytestmark = pytest.mark.integration

OLD = 'has(object.subnetID) ? object.subnetID : ""'
SUBNET = 'has(object.subnet) ? object.subnet : ""'
BOTH = 'has(object.subnet) ? object.subnet : has(object.subnetID) ? object.subnetID : ""'
PKEY = 'has(object.pkey) ? object.pkey : ""'
SCHEMA = json.loads((operator.ROOT / "docs/schemas/extractors.schema.json").read_text())
ROLE = "sharing-affinity-admin"
V1 = "nic.sharingaffinity.dev/v1"
V1BETA1 = "nic.sharingaffinity.dev/v1beta1"


@pytest.fixture(scope="module")
def process(control_plane: Cluster) -> Iterator[Process]:
    with operator.running(operator.install(control_plane), "--fence-settle", "1") as made:
        yield made


@pytest.fixture
def site(control_plane: Cluster, process: Process, namespace: str) -> Iterator[Site]:
    made = Site(control_plane, namespace)
    yield made
    made.close()


class Rollout:
    """The command under test, and what it works on."""

    def __init__(self, site: Site, process: Process, folder: Path, kubeconfig: Path) -> None:
        self.site, self.process, self.folder, self.kubeconfig = site, process, folder, kubeconfig

    def run(self, *arguments: str, code: int = 0) -> str:
        """``affinity-driver extractors ARGUMENTS``; its output."""
        place = [f"--driver={self.site.driver}", f"--kubeconfig={self.kubeconfig}"]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            got = cli.main(["extractors", *arguments, *place])
        assert got == code, out.getvalue() + err.getvalue()
        return out.getvalue()

    def file(self, **extractors: str) -> str:
        path = self.folder / "extractors.yaml"
        entries = [{"name": name, "expression": expression} for name, expression in extractors.items()]
        path.write_text(yaml.safe_dump({"sharingAffinity": entries}))
        return str(path)

    def place(self, name: str, **config: Any) -> tuple[str, str]:
        """A pod with a claim for these settings, and where it was put."""
        version = V1BETA1 if "subnetID" in config else V1
        self.site.claim(name, config={"apiVersion": version, "kind": "NICConfig", **config})
        self.site.pod(name)
        found = eventually(f"{name} placed", lambda: self.site.allocation(name), 30, self.process)
        eventually(f"{name} bound", lambda: self.site.node_of(name), 30, self.process)
        place: tuple[str, str] = found
        return place

    def drain(self, *names: str) -> None:
        for name in names:
            self.site.delete_pod(name)
            self.site.delete_claim(name)

    def published(self, node: str) -> dict[str, str]:
        items = pool_objects(self.site.cluster, node, self.site.driver)[1]
        return {e["name"]: e["expression"] for item in items for e in item["spec"]["sharingAffinity"]}

    def becomes(self, node: str, device: str, state: str) -> None:
        """Wait for a device's state in the operator's view, which follows a little later."""
        row = f"{node}/{device}"

        def probe() -> bool:
            return bool(self.site.table().get(row, {}).get("state") == state)

        eventually(f"{row} {state}", probe, 30, self.process)


@pytest.fixture
def rollout(site: Site, process: Process, tmp_path: Path) -> Rollout:
    """As somebody with the ClusterRole that ships for administrators."""
    cluster, namespace = site.cluster, site.namespace
    cluster.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "somebody"}}
    )
    binding = {
        "metadata": {"name": f"rollout-{site.tag}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": "somebody", "namespace": namespace}],
    }
    site.create_cluster("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    kubeconfig = cluster.service_account_kubeconfig(namespace, "somebody")
    return Rollout(site, process, tmp_path, kubeconfig)


@pytest.fixture
def nodes(site: Site) -> tuple[str, str]:
    return site.node("n1"), site.node("n2")


@pytest.fixture
def drivers(site: Site, nodes: tuple[str, str]) -> Iterator[tuple[RunningDriver, RunningDriver]]:
    """The NIC driver on both nodes, one device each, under this test's name."""
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        options = [
            driver_options(
                Path(folder) / node[:2], node, driver=site.driver, profile_options=ProfileOptions(devices=1)
            )
            for node in nodes
        ]
        kubeconfig = site.cluster.kubeconfig
        with running(options[0], kubeconfig) as one, running(options[1], kubeconfig) as two:
            for node in nodes:
                wait_for(f"pool {node}", complete(site.cluster, node, site.driver))
            yield one, two
        for node in nodes:
            for item in pool_objects(site.cluster, node, site.driver)[1]:
                site.cluster.request("DELETE", f"{METADATA}/{item['metadata']['name']}")


def test_adding_changing_and_retiring_keys_under_running_pods(
    rollout: Rollout, nodes: tuple[str, str], drivers: tuple[RunningDriver, RunningDriver]
) -> None:
    one, two = nodes
    # A driver of the old schema: one key, one form. Nobody holds anything, so it goes everywhere at once.
    rollout.run("apply", "-f", rollout.file(subnet=OLD), "--wait=20")
    assert rollout.published(one) == rollout.published(two) == {"subnet": OLD}
    first, _ = rollout.place("old-1", subnetID="a")
    assert first == one

    # The new form alone would orphan the holder: refused. Both forms, guarded: nothing changes.
    told = rollout.run("plan", "-f", rollout.file(subnet=SUBNET), code=1)
    assert f"{rollout.site.namespace}/old-1, request nic: yields no value for subnet" in told
    assert "guarded by its apiVersion" in told
    rollout.run("apply", "-f", rollout.file(subnet=BOTH), "--wait=20")
    rollout.becomes(one, "eth1", "Locked")
    # A migrated workload shares the device with one that is not.
    assert rollout.place("new-1", subnet="a")[0] == one

    # A further key: the idle pool takes it, the one in use is held back and goes on as it was.
    added = rollout.file(subnet=BOTH, pkey=PKEY)
    told = rollout.run("apply", "-f", added, code=1)
    assert f"pool {one}: held back: adds pkey" in told
    assert "old-1" in told
    assert "new-1" in told
    wait_for("the idle pool carries it", lambda: rollout.published(two).keys() == {"subnet", "pkey"})
    assert rollout.published(one).keys() == {"subnet"}
    assert rollout.place("keyed", subnet="b", pkey="p")[0] == two
    assert rollout.place("new-2", subnet="a")[0] == one

    # Drained, it follows; the old form can be retired with its last user.
    rollout.drain("old-1", "new-1", "new-2")
    rollout.run("apply", "-f", added, "--wait=20")
    rollout.run("apply", "-f", rollout.file(subnet=SUBNET, pkey=PKEY), "--wait=20")
    assert rollout.published(one) == {"subnet": SUBNET, "pkey": PKEY}

    # Retiring a key waits for those who were allocated with it.
    told = rollout.run("apply", "--retire=pkey", code=1)
    assert "was allocated with pkey=p, subnet=b and would yield subnet=b" in told
    # The backstop judges by what is published too: another pkey on that device is refused at prepare.
    site, kubelet = rollout.site, drivers[1].kubelet
    keyed = site.get_claim("keyed")
    assert kubelet.prepare(keyed)[keyed["metadata"]["uid"]].error == ""
    config = {"apiVersion": V1, "kind": "NICConfig", "subnet": "b", "pkey": "q"}
    foreign = allocate(site.cluster, site.claim("foreign", config=config), two, driver=site.driver)
    told = kubelet.prepare(foreign)[foreign["metadata"]["uid"]].error
    assert 'in use with another pkey by 1 prepared claim; this claim needs pkey="q"' in told
    site.delete_claim("foreign")
    kubelet.unprepare(keyed)
    rollout.drain("keyed")
    rollout.run("apply", "--retire=pkey", "--wait=20")
    assert rollout.published(one) == rollout.published(two) == {"subnet": SUBNET}
    rollout.run("apply", "--retire=subnet", code=2)
    rollout.run("apply", "--retire=pkey")  # once more: nothing to do


def test_a_new_driver_version_ends_a_roll_out_and_a_hold_outlives_it(
    rollout: Rollout, nodes: tuple[str, str], drivers: tuple[RunningDriver, RunningDriver]
) -> None:
    node, other = nodes
    before = rollout.published(node)
    rollout.run("hold", f"--pool={node}")
    assert rollout.place("held", subnet="a")[0] == node
    for driver in drivers:
        driver.restart(profile_options=ProfileOptions(devices=1, pkey=True))
    # The new version has a second key. Where it is held the pool stays as it was, and prepares too.
    wait_for("the new version's keys", lambda: rollout.published(other).keys() == {"subnet", "pkey"})
    assert rollout.published(node) == before
    claim = rollout.site.get_claim("held")
    assert drivers[0].kubelet.prepare(claim)[claim["metadata"]["uid"]].error == ""
    told = rollout.run("status", "-o", "json")
    jsonschema.validate(json.loads(told), SCHEMA)
    assert {pool["pool"]: pool["rolledOut"] for pool in json.loads(told)["pools"]} == {
        node: "held",
        other: "",
    }
    # Drained: the new version's own extractors are rolled out, and the annotation goes with the roll-out.
    drivers[0].kubelet.unprepare(claim)
    rollout.drain("held")
    rollout.run("apply", "-f", rollout.file(**rollout.published(other)), "--wait=20")
    assert rollout.published(node) == rollout.published(other)
    wait_for("no roll-out is left", lambda: not _annotated(rollout.site, node))


def test_devices_of_before_become_managed_while_claims_hold_them(
    rollout: Rollout, nodes: tuple[str, str]
) -> None:
    """The legacy migration, and back: a stock pool in use gets extractors, and loses them again."""
    site, node = rollout.site, nodes[0]
    site.cluster.request("PATCH", f"/api/v1/nodes/{nodes[1]}", {"spec": {"unschedulable": True}},
                         content_type="application/merge-patch+json")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        options = driver_options(
            Path(folder), node, driver=site.driver, profile_options=ProfileOptions(devices=3)
        )
        with running(options, site.cluster.kubeconfig) as driver:
            driver.restart(affinity=False)
            wait_for("an open pool", lambda: not rollout.published(node))
            # kube-scheduler fills eth1 with whoever comes.
            for name, config in (("a-1", {"subnet": "a"}), ("a-2", {"subnet": "a"}), ("odd", {"mtu": 1500})):
                assert rollout.place(name, **config) == (node, "eth1")
            told = rollout.run("plan", "-f", rollout.file(subnet=SUBNET), code=1)
            assert "/odd, request nic: yields no value for subnet" in told
            assert "Unmanaged" in told
            plan = json.loads(rollout.run("plan", "-f", rollout.file(subnet=SUBNET), "-o", "json", code=1))
            jsonschema.validate(plan, SCHEMA)
            assert [pool["breaks"] for pool in plan["pools"]] == [True]
            rollout.drain("odd")
            rollout.run("plan", "--retire=subnet", "--pool=nowhere", code=2)
            assert "Locked subnet=a" in rollout.run("plan", "-f", rollout.file(subnet=SUBNET))
            driver.restart(affinity=True)
            wait_for("a managed pool", complete(site.cluster, node, site.driver))
            # Nobody was evicted; the same subnet joins, another one goes elsewhere.
            assert rollout.place("a-3", subnet="a") == (node, "eth1")
            assert rollout.place("b-1", subnet="b") == (node, "eth2")
            # Downgrade: fence and metadata go together, and kube-scheduler shares freely again.
            driver.restart(affinity=False)
            wait_for("an open pool again", lambda: not rollout.published(node))
            assert rollout.place("c-1", subnet="c") == (node, "eth1")
            # Managed again: eth1 has holders of two subnets and is closed until one kind is gone.
            driver.restart(affinity=True)
            rollout.becomes(node, "eth1", "Unreconstructable")
            assert rollout.place("a-4", subnet="b") == (node, "eth2")
            rollout.drain("c-1")
            rollout.becomes(node, "eth1", "Locked")
        for item in pool_objects(site.cluster, node, site.driver)[1]:
            site.cluster.request("DELETE", f"{METADATA}/{item['metadata']['name']}")


def _annotated(site: Site, node: str) -> bool:
    metadata = pool_objects(site.cluster, node, site.driver)[1]
    return any("sharingaffinity.dev/extractors" in (i["metadata"].get("annotations") or {}) for i in metadata)
