"""Whether a pod fits a node, with the scheduler's own words for why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sharing_affinity.api import Node, Pod, Volume, VolumeClaim
from sharing_affinity.api.core_objects import Amounts, NodeTaint
from sharing_affinity.nodes.usage import Load

UNSCHEDULABLE_TAINT = NodeTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def static_reason(pod: Pod, node: Node) -> str:
    """What in the node's own description excludes the pod; empty when nothing does."""
    if node.unschedulable and not any(t.tolerates(UNSCHEDULABLE_TAINT) for t in pod.tolerations):
        return "node(s) were unschedulable"
    if not selects(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return "node(s) had untolerated taint(s)" if is_repelled(pod, node) else ""


def selects(pod: Pod, node: Node) -> bool:
    """Whether a node has what the pod's node selector and required node affinity ask for."""
    labels: Mapping[str, str] = node.labels
    if any(labels.get(name) != value for name, value in pod.node_selector.items()):
        return False
    return pod.node_affinity is None or pod.node_affinity.matches(node.name, labels)


def is_repelled(pod: Pod, node: Node, effects: Collection[str] = ("NoSchedule", "NoExecute")) -> bool:
    """Whether a node has a taint of one of these effects that the pod does not tolerate."""
    return any(
        taint.effect in effects and not any(t.tolerates(taint) for t in pod.tolerations)
        for taint in node.taints
    )


def volume_reason(
    pod: Pod, node: Node, claims: Mapping[tuple[str, str], VolumeClaim], volumes: Mapping[str, Volume]
) -> str:
    """Node affinity of the volumes the pod's claims are bound to."""
    for name in pod.volumes:
        claim = claims.get((pod.meta.namespace, name))
        volume = volumes.get(claim.volume) if claim is not None and claim.volume else None
        if volume is None or volume.node_affinity is None:
            continue
        if not volume.node_affinity.matches(node.name, node.labels):
            return "node(s) had volume node affinity conflict"
    return ""


class Demand(NamedTuple):
    """What a pod needs of a node. Resources in ``ignored`` are devices in disguise and not counted here."""

    pod: Pod
    ignored: Collection[str] = ()

    @property
    def amounts(self) -> Amounts:
        return {name: amount for name, amount in self.pod.requests.items() if name not in self.ignored}


class Fit(NamedTuple):
    """``reason`` is empty when the pod fits. ``preempting``: only once lower-priority pods have gone."""

    reason: str = ""
    preempting: bool = False


def resource_fit(demand: Demand, node: Node, load: Load) -> Fit:
    """Whether resources and host ports suffice, now or without pods of lower priority (H11)."""
    reason = _shortage(demand, node, load)
    if not reason or not demand.pod.preempts:
        return Fit(reason)
    lower = [key for key, other in load.pods.items() if other.priority < demand.pod.priority]
    if lower and not _shortage(demand, node, load.without(lower)):
        return Fit(preempting=True)
    return Fit(reason)


def _shortage(demand: Demand, node: Node, load: Load) -> str:
    pod = demand.pod
    others = load if pod.key not in load.pods else load.without([pod.key])
    # A node without any allocatable is one from a hand-written file: nothing is known against it.
    if "pods" in node.allocatable and len(others.pods) + 1 > node.allocatable["pods"]:
        return "Too many pods"
    for name, amount in sorted(demand.amounts.items()) if node.allocatable else ():
        if amount + others.amounts.get(name, 0) > node.allocatable.get(name, 0):
            return f"Insufficient {name}"
    if pod.host_ports and _ports_clash(pod, others.pods.values()):
        return "node(s) didn't have free ports for the requested pod ports"
    return ""


def _ports_clash(pod: Pod, others: Iterable[Pod]) -> bool:
    return any(mine.conflicts(theirs) for o in others for theirs in o.host_ports for mine in pod.host_ports)
