"""The fence of a driver that nobody changes: a DeviceTaintRule over all its devices; pure.

A rule stands for the whole driver and not for a pool or a node, so it covers devices that are published
later from their first moment. A rule that some administrator wrote under another name is as good as ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from affinity_driver.json_types import JsonObject
from sharing_affinity.api import names

RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


def rule_name(driver: str) -> str:
    """The name of our rule for ``driver``."""
    return f"sharing-affinity-{driver}"


def wanted_rule(driver: str) -> JsonObject:
    """The rule to write."""
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(driver), "labels": {"app.kubernetes.io/part-of": "sharing-affinity"}},
        "spec": {
            "deviceSelector": {"driver": driver},
            "taint": {"key": names.FENCE_KEY, "effect": names.FENCE_EFFECT},
        },
    }


def fenced_since(rules: Iterable[JsonObject], driver: str) -> float | None:
    """Since when (seconds since 1970) a rule has fenced all devices of ``driver``; None when none does."""
    ages = [_added(rule) for rule in rules if _covers(rule["spec"], driver)]
    return min(ages) if ages else None


def _covers(spec: JsonObject, driver: str) -> bool:
    selector, taint = spec.get("deviceSelector") or {}, spec.get("taint") or {}
    narrow = selector.keys() - {"driver"}
    return (
        selector.get("driver") in (None, driver)
        and not any(selector[field] for field in narrow)
        and (taint.get("key"), taint.get("effect")) == (names.FENCE_KEY, names.FENCE_EFFECT)
    )


def _added(rule: JsonObject) -> float:
    stamp = rule["spec"]["taint"].get("timeAdded") or rule["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()
