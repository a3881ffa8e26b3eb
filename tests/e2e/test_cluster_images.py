"""The operator's and the driver's images start on a real node."""

import functools

import pytest

from e2e.cluster import Cluster, wait_for
from e2e.images import archives
from e2e.images.archives import Application

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("application", [archives.OPERATOR, archives.DRIVER], ids=["operator", "driver"])
def test_image_runs_its_program(two_nodes: Cluster, namespace: str, application: Application) -> None:
    two_nodes.load(archives.application_archive(application))
    path = f"/api/v1/namespaces/{namespace}/pods"
    container = {"name": "main", "image": application.image, "args": ["--help"]}
    container["securityContext"] = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    spec = {"nodeName": "node-a", "containers": [container], "restartPolicy": "Never"}
    two_nodes.request("POST", path, {"metadata": {"name": "p"}, "spec": spec})

    def ended() -> str | None:
        phase = two_nodes.request("GET", f"{path}/p")["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else None

    phase = wait_for("program ended", functools.partial(ended), 90)
    output = two_nodes.kubectl("-n", namespace, "logs", "p")
    assert phase == "Succeeded", output
    assert application.command in output
