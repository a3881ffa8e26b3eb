"""Dashboard and rules ask for what operator, webhook and driver really expose, after a little life."""

from __future__ import annotations

import re

from harness import monitoring, operator, webhook
from harness.operator import Site, eventually
from prometheus_client import generate_latest

from affinity_driver.metrics import Metrics as DriverMetrics
from e2e.cluster import Cluster

#: KEP-5981, "Are there any missing metrics": the names exactly.
KEP = {
    "sharing_affinity_locked_devices",
    "sharing_affinity_unreconstructable_devices",
    "sharing_affinity_extractor_evaluations_total",
    "sharing_affinity_lock_conflict_total",
    "sharing_affinity_no_keys_extracted_total",
    "sharing_affinity_compatible_reuse_total",
}
#: Every label there is, with why its values are few.
BOUNDED = {
    "kind": "kinds of objects the operator reads",
    "result": "reasons of decisions",
    "reason": "reasons of decisions",
    "outcome": "how a write, or a claim on a node, ended",
    "verdict": "allowed or refused",
    "driver": "the driver's own name, on the driver",
    "operation": "prepare or unprepare",
    "phase": "phases of a prepared claim",
    "key": "affinity keys the driver declares itself",
    "resource": "kinds of objects the driver writes",
    "le": "buckets",
}


def life(cluster: Cluster, namespace: str) -> str:
    """What an operator exposes that has placed, shared, refused for a lock and refused for want of keys."""
    kubeconfig = operator.install(cluster)
    site = Site(cluster, namespace)
    try:
        with operator.running(kubeconfig) as process:
            site.publish(site.node("n1"), devices=("eth1",), slots=4)
            site.run("first", "a")
            eventually("placement", lambda: site.node_of("first"), process=process)
            site.run("second", "a")
            eventually("placement", lambda: site.node_of("second"), process=process)
            site.run("conflict", "b")
            site.run("keyless", None)
            counted = ("lock_conflict_total", "no_keys_extracted_total", "compatible_reuse_total")
            for name in counted:
                eventually(name, lambda name=name: process.metric(name) >= 1, process=process)  # type: ignore[misc]
            eventually("gauges", lambda: process.metric("locked_devices") == 1, process=process)
            return process.get("/metrics")[1]
    finally:
        site.close()


def test_every_query_asks_for_what_is_exposed(control_plane: Cluster, namespace: str) -> None:
    exposed = monitoring.exposed(life(control_plane, namespace))
    assert exposed.keys() >= KEP
    account = webhook.install(control_plane)
    try:
        with webhook.serving(control_plane, account) as process:
            for name, labels in monitoring.exposed(process.get("/metrics")[1]).items():
                exposed.setdefault(name, set()).update(labels)
    finally:
        webhook.remove(control_plane)
    driver = generate_latest(DriverMetrics("nic.sharingaffinity.dev", ("subnet",)).registry).decode()
    for name, labels in monitoring.exposed(driver).items():
        exposed.setdefault(name, set()).update(labels)

    ours = {name: labels for name, labels in exposed.items() if not name.startswith("process_")}
    assert set().union(*ours.values()) <= BOUNDED.keys()

    recorded = {rule["record"] for rule in monitoring.rules() if "record" in rule}
    wrong = []
    for where, query in monitoring.queries().items():
        names = set(re.findall(monitoring.OURS, query))
        known = {label for name in names for label in exposed.get(name, set())} | monitoring.SCRAPED
        # What has no sample yet shows no labels.
        silent = any(not exposed.get(name, {""}) for name in names)
        wrong += [f"{where}: nothing exposes {name}" for name in names - exposed.keys()]
        wrong += [
            f"{where}: no rule records {n}"
            for n in re.findall(monitoring.RECORDED, query)
            if n not in recorded
        ]
        wrong += [
            f"{where}: no label {label}" for label in monitoring.labels_used(query) - known if not silent
        ]
        if not names and not re.findall(monitoring.RECORDED, query):
            wrong.append(f"{where}: asks for nothing of ours")
    assert not wrong, "\n".join(wrong)
    # The other way round: every metric the KEP names is on the dashboard.
    shown = " ".join(target["expr"] for panel in monitoring.panels() for target in panel["targets"])
    assert {name for name in KEP if name not in shown} == set()


def test_every_alert_says_what_and_where_to_read_on() -> None:
    guide = (operator.ROOT / "docs" / "troubleshooting.md").read_text()
    for rule in monitoring.rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
            assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule["alert"]
            anchor = rule["alert"].lower()
            assert rule["annotations"]["runbook"] == f"docs/troubleshooting.md#{anchor}"
            assert f"\n### {rule['alert']}\n" in guide, rule["alert"]


def test_panels_say_what_they_show() -> None:
    titles = [panel["title"] for panel in monitoring.panels()]
    assert len(set(titles)) == len(titles)
    for panel in monitoring.panels():
        assert panel["description"], panel["title"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), panel["title"]
        # An address says nothing to people.
        assert "instance" not in "".join(legends), panel["title"]


def test_every_series_has_the_unit_of_its_query() -> None:
    """So no axis has two, and what happens rarely is no small fraction."""
    wrong = [
        f"{panel['title']} {target['refId']}: {shown}"
        for panel in monitoring.panels()
        for target in panel["targets"]
        if (shown := monitoring.unit(panel, target["refId"])) not in units(target["expr"])
    ]
    assert not wrong, "\n".join(wrong)


def units(query: str) -> set[str]:
    """What Grafana may show a query's values as."""
    if " / " in query:
        return {"percentunit"}
    if "_bytes" in query:
        return {"bytes"}
    if "_seconds" in query:
        return {"s", "suffix:s"}
    if "_fresh" in query:
        return {"bool_yes_no"}
    if "rate(" in query:
        return {"suffix:/min"} if query.startswith("60 * ") else set()
    return {"short"}


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in monitoring.panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]
