"""Required pod (anti-)affinity and DoNotSchedule spread, in their plain forms.

Plain means: label selectors in the pod's own or named namespaces, or in all; every node with the topology key
is a domain. What is not modelled (namespace label selectors, minDomains, matchLabelKeys) counts as satisfied:
the scheduler has the last word, and a wrong guess costs a retry, not a device.

What the pods around mean for a pod is worked out once, as topology domains; a node is then judged by its
labels alone. Pods that ask for none of this meet only those that repel others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sharing_affinity.api import Node, Pod
from sharing_affinity.api.core_objects import PodAffinityTerm, Spread
from sharing_affinity.nodes.fit import is_repelled, selects
from sharing_affinity.nodes.usage import Usage

Placed = Iterable[tuple[Pod, Node]]
"""Pods that run or are about to, with their nodes."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """Pods that count, by domain, and how many more the pod itself is."""

    key: str
    counts: Mapping[str, int]
    own: int
    max_skew: int


class Neighbours:
    """The pods around, as they concern one pod."""

    def __init__(self, pod: Pod, usage: Usage, nodes: Mapping[str, Node]) -> None:
        self._wanted, self._anywhere = _wanted(pod, usage, nodes)
        self._unwanted = [
            (term.topology_key, _domains(term, _selected(term, pod, usage, nodes)))
            for term in pod.pod_anti_affinity
            if _modelled(term)
        ]
        self._repelled = {
            (term.topology_key, at.labels.get(term.topology_key))
            for other, at in _others(pod, usage.repelling(), nodes)
            for term in other.pod_anti_affinity
            if _modelled(term) and _selects(term, other, pod)
        }
        self._spread = list(_spread(pod, usage, nodes))

    def reason(self, node: Node) -> str:
        """Why the pod may not join them on a node; empty when it may."""
        for key, domains in self._wanted:
            domain = node.labels.get(key)
            if domain is None or not (self._anywhere or domain in domains):
                return "node(s) didn't match pod affinity rules"
        for key, domains in self._unwanted:
            if node.labels.get(key) in domains:
                return "node(s) didn't match pod anti-affinity rules"
        for key, repelled in self._repelled:
            if repelled is not None and node.labels.get(key) == repelled:
                return "node(s) didn't satisfy existing pods anti-affinity rules"
        for spread in self._spread:
            domain = node.labels.get(spread.key)
            if domain is None:
                return "node(s) didn't match pod topology spread constraints (missing required label)"
            least = min(spread.counts.values(), default=0)
            if spread.counts.get(domain, 0) + spread.own - least > spread.max_skew:
                return "node(s) didn't match pod topology spread constraints"
        return ""


def _wanted(
    pod: Pod, usage: Usage, nodes: Mapping[str, Node]
) -> tuple[list[tuple[str, frozenset[str]]], bool]:
    """By term of the pod's affinity, the domains with a pod that all of them select; and whether that is not
    asked for, since the first of a group that wants its own kind may go anywhere."""
    terms = [term for term in pod.pod_affinity if _modelled(term)]
    if not terms:
        return [], False
    matching = [
        (other, at)
        for other, at in _selected(terms[0], pod, usage, nodes)
        if all(_selects(term, pod, other) for term in terms[1:])
    ]
    wanted = [(term.topology_key, _domains(term, matching)) for term in terms]
    first = not any(domains for _, domains in wanted)
    return wanted, first and all(_selects(term, pod, pod) for term in terms)


def _domains(term: PodAffinityTerm, placed: Placed) -> frozenset[str]:
    return frozenset(at.labels[term.topology_key] for _, at in placed if term.topology_key in at.labels)


def _selected(
    term: PodAffinityTerm, pod: Pod, usage: Usage, nodes: Mapping[str, Node]
) -> Iterator[tuple[Pod, Node]]:
    """The pods around that a term of the pod's selects."""
    namespaces = None if term.all_namespaces else term.namespaces or (pod.meta.namespace,)
    for other, at in _others(pod, usage.placed(namespaces), nodes):
        if term.selector is not None and term.selector.matches(other.labels):
            yield other, at


def _others(
    pod: Pod, placed: Iterable[tuple[Pod, str]], nodes: Mapping[str, Node]
) -> Iterator[tuple[Pod, Node]]:
    return ((other, nodes[at]) for other, at in placed if at in nodes and other.key != pod.key)


def _modelled(term: PodAffinityTerm) -> bool:
    return not term.namespace_labels


def _selects(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    if not term.all_namespaces:
        namespaces = term.namespaces or (owner.meta.namespace,)
        if other.meta.namespace not in namespaces:
            return False
    return term.selector is not None and term.selector.matches(other.labels)


def _spread(pod: Pod, usage: Usage, nodes: Mapping[str, Node]) -> Iterator[_Spread]:
    keys = {spread.topology_key for spread in pod.spread}
    # A node that lacks the key of any of them counts for none.
    labelled = [n for n in nodes.values() if keys <= n.labels.keys()] if keys else []
    for spread in pod.spread:
        key, selector = spread.topology_key, spread.selector
        among = {n.name for n in labelled if _counts(spread, pod, n)}
        counts = {nodes[name].labels[key]: 0 for name in among}
        for other, at in _others(pod, usage.placed((pod.meta.namespace,)), nodes):
            if at.name in among and selector is not None and selector.matches(other.labels):
                counts[at.labels[key]] += not other.meta.deleting
        own = selector is not None and selector.matches(pod.labels)
        yield _Spread(key, counts, int(own), spread.max_skew)


def _counts(spread: Spread, pod: Pod, node: Node) -> bool:
    """Whether a node is one of those among which to spread, by the constraint's inclusion policies."""
    if spread.by_affinity and not selects(pod, node):
        return False
    return not (spread.by_taints and is_repelled(pod, node))
