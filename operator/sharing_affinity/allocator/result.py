"""A solution as the JSON that goes into ``status.allocation``.

Configs and node selectors are built as 1.37 builds them: class configs first, one entry per class config with
the names of its requests; then the claim's configs that apply to a chosen request, copied; request lists that
cover every request are left out, since none means all. Device-local results get the exact single-node
selector, without which a node's driver may not write its device status (reference: granular authorization).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sharing_affinity.allocator.model import Chosen, Leaf
from sharing_affinity.api import Claim, DeviceConfig, quantity
from sharing_affinity.api.objects import FROM_CLAIM, FROM_CLASS
from sharing_affinity.api.selectors import NodeSelector, Requirement


def allocation(
    claim: Claim,
    chosen: Sequence[Chosen],
    selected: Sequence[Leaf],
    node: str,
    timestamp: str,
    new_uuid: Callable[[], str],
) -> dict[str, Any]:
    """The allocation of one claim. ``selected`` has the alternative chosen for each request, in order."""
    devices: dict[str, Any] = {"results": [_result(c, new_uuid) for c in chosen]}
    configs = _configs(claim, selected)
    if configs:
        devices["config"] = configs
    result: dict[str, Any] = {"devices": devices}
    selector = node_selector(chosen, node)
    if selector is not None:
        result["nodeSelector"] = selector
    result["allocationTimestamp"] = timestamp
    return result


def _result(chosen: Chosen, new_uuid: Callable[[], str]) -> dict[str, Any]:
    driver, pool, device = chosen.candidate.id
    result: dict[str, Any] = {
        "request": chosen.leaf.name,
        "driver": driver,
        "pool": pool,
        "device": device,
    }
    if chosen.leaf.spec.admin:
        result["adminAccess"] = True
    if chosen.leaf.spec.tolerations:
        result["tolerations"] = [t.as_json() for t in chosen.leaf.spec.tolerations]
    published = chosen.candidate.entry.device
    if published.binding_conditions:
        result["bindingConditions"] = list(published.binding_conditions)
    if published.binding_failure_conditions:
        result["bindingFailureConditions"] = list(published.binding_failure_conditions)
    if chosen.share:
        result["shareID"] = new_uuid()
        if chosen.consumed:
            result["consumedCapacity"] = {
                name: quantity.canonical(amount) for name, amount in chosen.consumed.items()
            }
    return result


def scoped_configs(claim: Claim, selected: Sequence[Leaf]) -> tuple[DeviceConfig, ...]:
    """The configs an allocation carries, in its order: what extraction after a restart will see."""
    by_class: dict[str, list[Leaf]] = {}
    for leaf in selected:
        by_class.setdefault(leaf.device_class.meta.name, []).append(leaf)
    scoped: list[DeviceConfig] = []
    for leaves in by_class.values():
        requests = () if len(by_class) == 1 else tuple(leaf.name for leaf in leaves)
        scoped += (_scoped(config, FROM_CLASS, requests) for config in leaves[0].device_class.configs)
    for config in claim.configs:
        named = [_names(config.requests, leaf.name) for leaf in selected] if config.requests else [True]
        if any(named):
            scoped.append(_scoped(config, FROM_CLAIM, () if all(named) else config.requests))
    return tuple(scoped)


def _scoped(config: DeviceConfig, source: str, requests: tuple[str, ...]) -> DeviceConfig:
    if (config.source, config.requests) == (source, requests):
        return config
    return DeviceConfig(source, requests, config.driver, config.text)


def _names(requests: Iterable[str], name: str) -> bool:
    return name in requests or name.partition("/")[0] in requests


def _configs(claim: Claim, selected: Sequence[Leaf]) -> list[dict[str, Any]]:
    configs = []
    for config in scoped_configs(claim, selected):
        entry: dict[str, Any] = {"source": config.source}
        if config.requests:
            entry["requests"] = list(config.requests)
        entry["opaque"] = {"driver": config.driver, "parameters": config.parameters}
        configs.append(entry)
    return configs


def node_selector(chosen: Sequence[Chosen], node: str) -> dict[str, Any] | None:
    """Where the allocation can be used: one node, the merged selectors of the slices, or anywhere
    (``None``)."""
    fields: list[Requirement] = []
    expressions: list[Requirement] = []
    for choice in chosen:
        entry = choice.candidate.entry
        device, member = entry.device, entry.slice
        name = device.node_name if member.per_device else member.node_name
        selector = device.node_selector if member.per_device else member.node_selector
        if name or device.binds_to_node:
            return {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                ]
            }
        if selector is not None and selector.terms:
            _merge(selector, fields, expressions)
    term: dict[str, Any] = {}
    if expressions:
        term["matchExpressions"] = [_requirement(r) for r in expressions]
    if fields:
        term["matchFields"] = [_requirement(r) for r in fields]
    return {"nodeSelectorTerms": [term]} if term else None


def _merge(selector: NodeSelector, fields: list[Requirement], expressions: list[Requirement]) -> None:
    """Validation allows slices exactly one term; all of it must hold."""
    for source, target in ((selector.terms[0].fields, fields), (selector.terms[0].expressions, expressions)):
        for requirement in source:
            if not any(_same(requirement, other) for other in target):
                target.append(requirement)


def _same(first: Requirement, second: Requirement) -> bool:
    return (first.key, first.operator, set(first.values)) == (second.key, second.operator, set(second.values))


def _requirement(requirement: Requirement) -> Mapping[str, Any]:
    result: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
    if requirement.values:
        result["values"] = list(requirement.values)
    return result
