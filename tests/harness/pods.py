"""Pods of the demo's kind on the two-node cluster."""

from __future__ import annotations

import functools
from typing import Any

from e2e import demo, images
from e2e.cluster import Cluster, wait_for


class Pods:
    """Pods with one slot of a shared NIC each, in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        for subnet in ("a", "b"):
            template = demo.claim_template(f"nic-{subnet}", subnet)
            template["metadata"]["namespace"] = namespace
            cluster.apply(template)

    def names(self) -> list[str]:
        found = self.cluster.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [pod["metadata"]["name"] for pod in found]

    def start(self, name: str, subnet: str) -> None:
        pod = demo.pod(name, f"nic-{subnet}", images.TEST)
        pod["metadata"]["namespace"] = self.namespace
        self.cluster.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", pod)

    def running(self, *names: str) -> None:
        for name in names:
            wait_for(f"{name} runs", lambda name=name: self._undisturbed(name))  # type: ignore[misc]

    def undisturbed(self, *names: str) -> None:
        """They run, and always have."""
        assert all(self._undisturbed(name) for name in names), [self._get(name)["status"] for name in names]

    def _undisturbed(self, name: str) -> bool:
        status = self._get(name)["status"]
        restarts = [container["restartCount"] for container in status.get("containerStatuses") or []]
        return bool(status["phase"] == "Running" and restarts == [0])

    def _get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.request(
            "GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        )
        return found

    def delete(self, name: str) -> None:
        self.cluster.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def end(self, *names: str) -> None:
        """Delete pods, and wait until they and their claims are gone."""
        for name in names:
            self.delete(name)
        for name in names:
            wait_for(f"claim of {name} is gone", functools.partial(self._no_claim, name))

    def _no_claim(self, pod: str) -> bool:
        return self.claim(pod) is None

    def claim(self, pod: str) -> dict[str, Any] | None:
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"
        for claim in self.cluster.request("GET", path)["items"]:
            if any(owner["name"] == pod for owner in claim["metadata"].get("ownerReferences") or ()):
                found: dict[str, Any] = claim
                return found
        return None

    def device(self, pod: str) -> str | None:
        allocation = ((self.claim(pod) or {}).get("status") or {}).get("allocation")
        return allocation["devices"]["results"][0]["device"] if allocation else None
