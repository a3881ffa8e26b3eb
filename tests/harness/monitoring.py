"""Queries of the dashboard and of the rules, and what a process really exposes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from harness.operator import ROOT

FOLDER = ROOT / "manifests" / "monitoring"
#: Labels that Prometheus adds when it scrapes what the ServiceMonitor selects.
SCRAPED = {"instance", "job", "pod"}
OURS = r"\b(?:sharing_affinity|affinity_driver|process)_[a-z0-9_]+"
RECORDED = r"\bsharing_affinity:[a-z0-9_:]+"


def groups() -> list[dict[str, Any]]:
    """The rule groups, as Prometheus itself reads them."""
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return found


def rules() -> Iterator[dict[str, Any]]:
    for group in groups():
        yield from group["rules"]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def unit(panel: dict[str, Any], target: str) -> str:
    """The unit that a target's series are shown with."""
    found: str = panel["fieldConfig"]["defaults"]["unit"]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byFrameRefID", "options": target}:
            found = next((p["value"] for p in override["properties"] if p["id"] == "unit"), found)
    return found


def queries() -> dict[str, str]:
    """Every query, by where it stands. Grafana's variable for an interval gets a value."""
    found = {f"rule {rule.get('alert') or rule['record']}": rule["expr"] for rule in rules()}
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            found[f"panel {panel['title']} {target['refId']}"] = expression
    return found


def exposed(text: str) -> dict[str, set[str]]:
    """Sample names and, for what has no sample yet, family names; each with the labels it was seen with."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        suffix = "_total" if family.type == "counter" else ""
        found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def labels_used(query: str) -> set[str]:
    """Labels a query groups, joins or selects by."""
    lists = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", query)
    found = {label.strip() for text in lists for label in text.split(",") if label.strip()}
    return found | set(re.findall(r"[{,]\s*([a-z_]+)\s*(?:=|!=|=~|!~)\s*\"", query))
