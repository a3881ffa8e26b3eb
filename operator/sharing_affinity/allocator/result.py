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
    entries: list[tuple[str, list[str], DeviceConfig]] = []
    by_class: dict[str, list[tuple[str, list[str], DeviceConfig]]] = {}
    for leaf in selected:
        name = leaf.device_class.meta.name
        if name in by_class:
            for entry in by_class[name]:
                entry[1].append(leaf.name)
            continue
        by_class[name] = [(FROM_CLASS, [leaf.name], config) for config in leaf.device_class.configs]
        entries += by_class[name]
    for config in claim.configs:
        if not config.requests or any(_names(config.requests, leaf.name) for leaf in selected):
            entries.append((FROM_CLAIM, list(config.requests), config))
    return tuple(
        DeviceConfig(
            source,
            () if all(_names(requests, leaf.name) for leaf in selected) else tuple(requests),
            config.driver,
            config.text,
        )
        for source, requests, config in entries
    )


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
