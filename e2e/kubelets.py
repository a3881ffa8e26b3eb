"""How the demo sees a pod on its node: through a real kubelet, or by playing the kubelet.

A host that cannot run nodes still has a real control plane: scheduling, allocation and binding are real
there. `PlayedKubelet` then does what a kubelet would do for a bound pod as far as the driver is concerned:
it calls NodePrepareResources over the driver's socket and reads the CDI file that a container runtime would
apply. What only a real node can show is named in `not_shown`.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import grpc

from affinity_driver.proto import dra_v1_pb2 as dra
from e2e import images
from e2e.cluster import Cluster, NodePaths, wait_for
from e2e.errors import ApiError, ClusterError

PODS = "/api/v1/namespaces/default/pods"
NODE = "node-a"
PREPARE_SECONDS = 45.0
"""The kubelet's own deadline for a call to a driver."""


class Kubelet(Protocol):
    """What the story asks of the node that has the devices."""

    @property
    def node(self) -> NodePaths: ...
    @property
    def image(self) -> str:
        """The image of the story's pods; `sleep SECONDS` is a command of it."""
        ...

    @property
    def driver_flags(self) -> tuple[str, ...]:
        """What the driver has to be told on such a node."""
        ...

    @property
    def not_shown(self) -> tuple[str, ...]: ...
    def shows(self, pod: str) -> str:
        """How a person would see what `environment` returns."""
        ...

    def environment(self, pod: str) -> Mapping[str, str]:
        """Wait until the pod runs; the environment its container sees."""
        ...

    def rejection(self, pod: str) -> str:
        """Wait until the driver has refused the pod's claim; the text that the pod's owner reads."""
        ...

    def delete(self, pod: str) -> None:
        """Delete the pod and wait until it is gone."""
        ...


def kubelet_of(cluster: Cluster) -> Kubelet:
    """The real kubelet where the cluster has nodes, else one that is played."""
    if cluster.nodes():
        return RealKubelet(cluster)
    return PlayedKubelet(cluster)


class RealKubelet:
    driver_flags = ()
    not_shown = ()

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.node = cluster.nodes()[0]
        self.image = images.TEST

    def shows(self, pod: str) -> str:
        return f"kubectl exec {pod} -- env"

    def environment(self, pod: str) -> Mapping[str, str]:
        def running() -> bool:
            return bool(_pod(self._cluster, pod)["status"].get("phase") == "Running")

        wait_for(f"pod {pod} runs", running)
        lines = self._cluster.kubectl("exec", pod, "--", "/test", "env").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def rejection(self, pod: str) -> str:
        return wait_for(f"the kubelet reports the rejection of {pod}", lambda: self._failed(pod))

    def _failed(self, pod: str) -> str | None:
        query = f"involvedObject.name={pod},reason=FailedPrepareDynamicResources"
        events = self._cluster.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={query}")
        return f"{events['items'][0]['reason']}: {events['items'][0]['message']}" if events["items"] else None

    def delete(self, pod: str) -> None:
        self._cluster.kubectl("delete", "pod", pod, "--wait=true", timeout=90)


class PlayedKubelet:
    driver_flags = ("--publish-unregistered",)
    image = "example.com/no-kubelet-runs-it:1"
    not_shown = (
        "containers. This host cannot run nodes, so pods were bound by the real scheduler and the driver was"
        " called over its socket as a kubelet does; the environment comes from the CDI files it wrote.",
    )

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        folder = cluster.folder / "n"
        self.node = NodePaths(
            NODE, "127.0.0.1", folder, folder / "plugins", folder / "plugins_registry", folder / "cdi"
        )
        for path in (self.node.plugins, self.node.registry, self.node.cdi):
            path.mkdir(parents=True, exist_ok=True)
        cluster.add_node(NODE)

    def shows(self, pod: str) -> str:
        return f"environment in the CDI file of {pod}"

    def environment(self, pod: str) -> Mapping[str, str]:
        answer = self._prepare(pod)
        if answer.error:
            raise ClusterError(f"the driver refused {pod}: {answer.error}")
        wanted = {name for device in answer.devices for name in device.cdi_device_ids}
        return dict(edit for name, edits in self._cdi() if name in wanted for edit in edits)

    def rejection(self, pod: str) -> str:
        return f"NodePrepareResources: {self._prepare(pod).error}"

    def delete(self, pod: str) -> None:
        claims = self._claims(pod)
        self._cluster.request("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
        if claims:
            request = dra.NodeUnprepareResourcesRequest(claims=claims)
            answer = self._call("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
            if errors := [claim.error for claim in answer.claims.values() if claim.error]:
                raise ClusterError(f"unprepare of {pod}: {errors}")
        wait_for(f"pod {pod} is gone", functools.partial(_missing, self._cluster, pod))

    def _prepare(self, pod: str) -> dra.NodePrepareResourceResponse:
        wait_for(f"pod {pod} is bound", lambda: _pod(self._cluster, pod)["spec"].get("nodeName"))
        request = dra.NodePrepareResourcesRequest(claims=self._claims(pod))
        answer = self._call("NodePrepareResources", request, dra.NodePrepareResourcesResponse)
        result: dra.NodePrepareResourceResponse
        (result,) = answer.claims.values()
        return result

    def _claims(self, pod: str) -> list[dra.Claim]:
        statuses = _pod(self._cluster, pod)["status"].get("resourceClaimStatuses") or []
        found = []
        for status in statuses:
            path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{status['resourceClaimName']}"
            meta = self._cluster.request("GET", path)["metadata"]
            found.append(dra.Claim(namespace="default", name=meta["name"], uid=meta["uid"]))
        return found

    def _call(self, method: str, request: Any, response: Any) -> Any:
        service = dra.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        with grpc.insecure_channel(f"unix://{self._socket()}") as channel:
            call: Callable[..., Any] = channel.unary_unary(
                f"/{service}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString,
            )
            return call(request, timeout=PREPARE_SECONDS)

    def _socket(self) -> Path:
        return max(self.node.plugins.glob("*/dra-*.sock"), key=lambda path: path.stat().st_mtime)

    def _cdi(self) -> list[tuple[str, list[tuple[str, str]]]]:
        found = []
        for path in self.node.cdi.glob("*.json"):
            spec = json.loads(path.read_text())
            for device in spec["devices"]:
                env = [
                    *spec.get("containerEdits", {}).get("env", []),
                    *device["containerEdits"].get("env", []),
                ]
                found.append((f"{spec['kind']}={device['name']}", [_pair(edit) for edit in env]))
        return found


def _pair(edit: str) -> tuple[str, str]:
    name, value = edit.split("=", 1)
    return name, value


def _pod(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request("GET", f"{PODS}/{name}")
    return found


def _missing(cluster: Cluster, name: str) -> bool:
    try:
        _pod(cluster, name)
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return False
