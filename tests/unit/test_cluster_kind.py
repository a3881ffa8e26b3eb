"""The kind backend's configuration and command lines. Creating a kind cluster needs Docker and is not
tested here.
"""

from pathlib import Path

import pytest
import yaml

from e2e import kind
from e2e.errors import ClusterError
from e2e.options import Options


def test_two_workers_with_cdi() -> None:
    config = kind.configuration(Options(name="demo", nodes=2))
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert config["name"] == "dra-e2e-demo"
    (patch,) = config["containerdConfigPatches"]
    assert "enable_cdi = true" in patch
    assert "/var/run/cdi" in patch
    assert yaml.safe_load(yaml.safe_dump(config)) == config


def test_gates_are_only_needed_on_1_36() -> None:
    assert kind.configuration(Options(kubernetes="1.37"))["featureGates"] == {}
    older = kind.configuration(Options(kubernetes="1.36"))
    assert older["featureGates"] == {"DRADeviceTaintRules": True}
    assert older["runtimeConfig"] == {"resource.k8s.io/v1beta2": "true"}


def test_asked_for_gates_are_added() -> None:
    config = kind.configuration(Options(kubernetes="1.36", feature_gates="DRADeviceTaintRules=false,A=true"))
    assert config["featureGates"] == {"DRADeviceTaintRules": False, "A": True}


def test_create_uses_the_pinned_release_and_our_own_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2E_KIND_IMAGE", raising=False)
    command = kind.create_command(Options(kubernetes="1.36"), Path("/c.json"), Path("/k"))
    assert command[:3] == ["kind", "create", "cluster"]
    assert "--image=kindest/node:v1.36.3" in command
    assert "--kubeconfig=/k" in command
    monkeypatch.setenv("E2E_KIND_IMAGE", "node:mine")
    assert "--image=node:mine" in kind.create_command(Options(), Path("/c.json"), Path("/k"))


def test_load_and_delete_name_the_cluster() -> None:
    assert kind.load_command("demo", Path("/i.tar")) == [
        "kind",
        "load",
        "image-archive",
        "/i.tar",
        "--name=dra-e2e-demo",
    ]
    assert "--name=dra-e2e-demo" in kind.delete_command("demo", Path("/k"))


def test_nodes_are_named_as_kind_names_workers() -> None:
    assert kind.node_names("demo", 3) == [
        "dra-e2e-demo-worker",
        "dra-e2e-demo-worker2",
        "dra-e2e-demo-worker3",
    ]


def test_a_kubelet_is_killed_and_kept_down() -> None:
    node = "dra-e2e-demo-worker"
    kill, stop = kind.kill_commands("demo", f"kubelet-{node}", 0)
    assert kill == ["docker", "exec", node, "systemctl", "kill", "--signal=KILL", "kubelet"]
    assert stop[-2:] == ["stop", "kubelet"]
    assert kind.start_commands("demo", f"kubelet-{node}") == [
        ["docker", "exec", node, "systemctl", "start", "kubelet"]
    ]


def test_a_static_pod_leaves_its_folder_before_it_is_killed() -> None:
    move, kill = kind.kill_commands("demo", "apiserver", 10)
    assert move[-3:] == ["mv", "/etc/kubernetes/manifests/kube-apiserver.yaml", "/root/kube-apiserver.yaml"]
    assert "--signal=TERM" in kill
    (back,) = kind.start_commands("demo", "apiserver")
    assert back[-2:] == [move[-1], move[-2]]


def test_reboot_can_wipe_cdi_files() -> None:
    assert len(kind.reboot_commands("n", wipe_cdi=False)) == 2
    assert "rm -f /etc/cdi/* /var/run/cdi/*" in kind.reboot_commands("n", wipe_cdi=True)[-1]


def test_unknown_component_is_named() -> None:
    with pytest.raises(ClusterError, match="no component kublet"):
        kind.logs_command("demo", "kublet")
