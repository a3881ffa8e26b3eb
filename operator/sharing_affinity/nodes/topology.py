"""Required pod (anti-)affinity and DoNotSchedule spread, in their plain forms.

Plain means: label selectors in the pod's own or named namespaces, or in all; every node with the topology key
is a domain. What is not modelled (namespace label selectors, minDomains, node inclusion policies,
matchLabelKeys) counts as satisfied: the scheduler has the last word, and a wrong guess costs a retry, not a
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sharing_affinity.api import Node, Pod
from sharing_affinity.api.core_objects import PodAffinityTerm

Placed = Iterable[tuple[Pod, Node]]
"""Pods that run or are about to, with their nodes."""


def needs_topology(pod: Pod) -> bool:
    """Whether the pod itself asks for any of this."""
    return bool(pod.pod_affinity or pod.pod_anti_affinity or pod.spread)


def topology_reason(pod: Pod, node: Node, placed: Placed, nodes: Iterable[Node]) -> str:
    """Why the pod may not join the pods in ``placed`` on ``node``; empty when it may."""
    others = [(other, at) for other, at in placed if other.key != pod.key]
    for term in pod.pod_affinity:
        if not _modelled(term):
            continue
        domain = node.labels.get(term.topology_key)
        matching = [(o, at) for o, at in others if _selects(term, pod, o)]
        near = any(at.labels.get(term.topology_key) == domain for _, at in matching)
        # The first of a group that asks for its own kind may go anywhere.
        first = not matching and _selects(term, pod, pod)
        if domain is None or not (near or first):
            return "node(s) didn't match pod affinity rules"
    for term in pod.pod_anti_affinity:
        domain = node.labels.get(term.topology_key)
        if domain is not None and _modelled(term) and _any_near(term, pod, others, domain):
            return "node(s) didn't match pod anti-affinity rules"
    for other, at in others:
        for term in other.pod_anti_affinity:
            domain = at.labels.get(term.topology_key)
            if domain is None or domain != node.labels.get(term.topology_key):
                continue
            if _modelled(term) and _selects(term, other, pod):
                return "node(s) didn't satisfy existing pods anti-affinity rules"
    return _spread_reason(pod, node, others, nodes)


def _modelled(term: PodAffinityTerm) -> bool:
    return not term.namespace_labels


def _selects(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    if not term.all_namespaces:
        namespaces = term.namespaces or (owner.meta.namespace,)
        if other.meta.namespace not in namespaces:
            return False
    return term.selector is not None and term.selector.matches(other.labels)


def _any_near(term: PodAffinityTerm, pod: Pod, others: list[tuple[Pod, Node]], domain: str) -> bool:
    return any(_selects(term, pod, o) and at.labels.get(term.topology_key) == domain for o, at in others)


def _spread_reason(pod: Pod, node: Node, others: list[tuple[Pod, Node]], nodes: Iterable[Node]) -> str:
    every = list(nodes) if pod.spread else []
    for spread in pod.spread:
        domain = node.labels.get(spread.topology_key)
        if domain is None:
            return "node(s) didn't match pod topology spread constraints (missing required label)"
        counts: dict[str, int] = {}
        for candidate in every:
            if _eligible(pod, candidate) and spread.topology_key in candidate.labels:
                counts.setdefault(candidate.labels[spread.topology_key], 0)
        for other, at in others:
            there = at.labels.get(spread.topology_key)
            if there in counts and other.meta.namespace == pod.meta.namespace:
                selected = spread.selector is not None and spread.selector.matches(other.labels)
                counts[there] += selected and not other.meta.deleting
        own = spread.selector is not None and spread.selector.matches(pod.labels)
        if counts.get(domain, 0) + own - min(counts.values(), default=0) > spread.max_skew:
            return "node(s) didn't match pod topology spread constraints"
    return ""


def _eligible(pod: Pod, node: Node) -> bool:
    """Nodes that count: those the pod's own selector and affinity allow (the default inclusion policy)."""
    labels: Mapping[str, str] = node.labels
    if any(labels.get(name) != value for name, value in pod.node_selector.items()):
        return False
    return pod.node_affinity is None or pod.node_affinity.matches(node.name, labels)
