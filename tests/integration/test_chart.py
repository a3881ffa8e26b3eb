"""The Helm chart is the kustomize output: rendered by the real helm and compared, then installed, upgraded,
uninstalled."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import operator, webhook
from harness.rendered import Key, by_key

from e2e import build, versions
from e2e.cluster import Cluster
from e2e.errors import ApiError
from tools import chart

ROOT = chart.ROOT
CHART = ROOT / chart.CHART
Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubectl() -> str:
    (folder,) = build.ensure(versions.kubernetes(versions.DEFAULT_MINOR))
    return str(folder / "kubectl")


@pytest.fixture(scope="module")
def helm() -> str:
    return str(build.output_dir(versions.HELM) / "helm")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Helm writes below the home folder."""
    for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if check:
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert done.returncode != 0, done.stdout
    return done.stderr


def rendered(helm: str, *flags: str, namespace: str = chart.NAMESPACE) -> dict[Key, Json]:
    command = ["template", "sharing-affinity", str(CHART), "--namespace", namespace, "--include-crds"]
    return by_key(run(helm, *command, "--kube-version", "1.37.0", *flags))


def kustomized(kubectl: str, folder: str) -> dict[Key, Json]:
    found = by_key(run(kubectl, "kustomize", str(ROOT / "manifests" / folder)))
    # Helm needs it before it installs anything: helm install --create-namespace.
    found.pop(("Namespace", "", chart.NAMESPACE), None)
    return found


def test_helm_renders_what_kustomize_renders(helm: str, kubectl: str, home: None) -> None:
    assert rendered(helm) == kustomized(kubectl, "overlays/default")
    with_monitoring = rendered(helm, "--set", "monitoring.enabled=true")
    assert with_monitoring == kustomized(kubectl, "overlays/default") | kustomized(kubectl, "monitoring")


@pytest.mark.parametrize(
    ("value", "folder"), [("webhook.enabled", "webhook"), ("policies.enabled", "policies")]
)
def test_a_part_can_be_left_out(helm: str, kubectl: str, home: None, value: str, folder: str) -> None:
    left_out = kustomized(kubectl, folder).keys()
    wanted = {k: v for k, v in kustomized(kubectl, "overlays/default").items() if k not in left_out}
    assert rendered(helm, "--set", f"{value}=false") == wanted


def test_network_policies_can_be_left_out(helm: str, home: None) -> None:
    full = rendered(helm)
    without = rendered(helm, "--set", "networkPolicy.enabled=false")
    assert without == {key: value for key, value in full.items() if key[0] != "NetworkPolicy"}
    assert len(without) < len(full)


def test_another_namespace_reaches_every_reference(helm: str, home: None) -> None:
    found = rendered(helm, "--set", "monitoring.enabled=true", namespace="elsewhere")
    definitions = {key for key in found if key[0] == "CustomResourceDefinition"}
    for key, document in found.items():
        if key not in definitions:
            assert chart.NAMESPACE not in yaml.safe_dump(document), key
    assert {key[1] for key in found} == {"", "elsewhere"}


def test_values(helm: str, home: None, tmp_path: Path) -> None:
    values = {
        "image": {"repository": "example.com/op", "tag": "9", "pullSecrets": [{"name": "pull"}]},
        "operator": {
            "replicas": 3,
            "featureGates": {"DRASharingAffinity": False, "DRASharingAffinityScoring": True},
            "extraArgs": ["--scheduler-names=a,b", "--rule-fences"],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "resources": {"requests": {"cpu": "2"}},
        },
        "webhook": {"extraArgs": ["--certificate-lifetime=86400"]},
        "policies": {"exemptNamespaces": "debug,lab"},
    }
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    found = rendered(helm, "--values", str(path))
    deployment = found["Deployment", chart.NAMESPACE, "sharing-affinity-operator"]
    assert deployment["spec"]["replicas"] == 3
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "example.com/op:9"
    assert container["args"] == [
        "run",
        "--feature-gates=DRASharingAffinity=false,DRASharingAffinityScoring=true",
        "--scheduler-names=a,b",
        "--rule-fences",
    ]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "128Mi"}
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    deployment = found["Deployment", chart.NAMESPACE, "sharing-affinity-webhook"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/op:9"
    assert container["args"] == ["webhook", "--certificate-lifetime=86400"]
    for kind in ("claims", "templates"):
        policy = found["ValidatingAdmissionPolicy", "", f"sharing-affinity-fence-{kind}"]
        variables = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
        assert variables["exemptNamespaces"] == "'debug,lab'"


def test_a_mistyped_value_is_refused(helm: str, home: None) -> None:
    command = [helm, "template", "sharing-affinity", str(CHART)]
    assert "webhok" in run(*command, "--set", "webhok.enabled=false", check=False)
    assert "featureGates" in run(*command, "--set", "operator.featureGates.DRASharing=true", check=False)
    assert "1.36" in run(*command, "--kube-version", "1.35.9", check=False)


def test_lint(helm: str, home: None) -> None:
    run(helm, "lint", "--strict", str(CHART))


def test_install_upgrade_uninstall(helm: str, home: None, own_control_plane: Cluster) -> None:
    def call(command: str, *flags: str) -> str:
        cluster = ("--kubeconfig", str(own_control_plane.kubeconfig), "--namespace", chart.NAMESPACE)
        return run(helm, command, "sharing-affinity", *flags, *cluster)

    # Some of it is there already, applied by kubectl.
    operator.install(own_control_plane)
    call("upgrade", str(CHART), "--install", "--take-ownership", "--force-conflicts")
    own_control_plane.request(
        "PATCH",
        webhook.SECRET,
        {"data": {"ca.crt": base64.b64encode(b"x").decode()}},
        content_type="application/merge-patch+json",
    )
    call(
        "upgrade",
        str(CHART),
        "--set",
        "operator.replicas=1",
        "--set",
        "operator.featureGates.DRASharingAffinity=false",
    )
    path = f"/apis/apps/v1/namespaces/{chart.NAMESPACE}/deployments/sharing-affinity-operator"
    deployment = own_control_plane.request("GET", path)
    assert deployment["spec"]["replicas"] == 1
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["run", "--feature-gates=DRASharingAffinity=false"]
    # What the webhook wrote is not the chart's to take away.
    assert own_control_plane.request("GET", webhook.SECRET)["data"] == {"ca.crt": "eA=="}
    call("uninstall")
    with pytest.raises(ApiError, match="404"):
        own_control_plane.request("GET", path)
    # Slices would go with their definition.
    own_control_plane.request("GET", webhook.SLICES)
