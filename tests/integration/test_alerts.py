"""The alerts by Prometheus' own tool: they parse, they fire when they should, and stay silent otherwise."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import monitoring

from e2e import build, versions


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation (one value a ``step``), a time, and whether the alert fires then."""

    alert: str
    fires: bool
    series: dict[str, str]
    at: str
    why: str = ""
    step: str = "1m"


LEADER = {
    'sharing_affinity_leader{instance="a"}': "1x20000",
    'sharing_affinity_leader{instance="b"}': "0x20000",
}
CASES = [
    Case(
        "SharingAffinityUnreconstructableDevices",
        True,
        {**LEADER, 'sharing_affinity_unreconstructable_devices{instance="a"}': "4x600"},
        "8h",
        "they do not drain",
    ),
    Case(
        "SharingAffinityUnreconstructableDevices",
        False,
        {**LEADER, 'sharing_affinity_unreconstructable_devices{instance="a"}': "400-1x390 10x600"},
        "8h",
        "they drain",
    ),
    Case(
        "SharingAffinityUnreconstructableDevices",
        False,
        {
            **LEADER,
            'sharing_affinity_unreconstructable_devices{instance="a"}': "0x600",
            'sharing_affinity_unreconstructable_devices{instance="b"}': "4x600",
        },
        "8h",
        "only a replica that no longer leads remembers them",
    ),
    Case(
        "SharingAffinityConflictsWithoutReuse",
        True,
        {
            'sharing_affinity_lock_conflict_total{instance="a"}': "0+1x1440 1500+60x180",
            'sharing_affinity_compatible_reuse_total{instance="a"}': "0+1x1400 1400x300",
        },
        "26h",
    ),
    Case(
        "SharingAffinityConflictsWithoutReuse",
        False,
        {
            'sharing_affinity_lock_conflict_total{instance="a"}': "0+1x1440 1500+60x180",
            'sharing_affinity_compatible_reuse_total{instance="a"}': "0+1x1700",
        },
        "26h",
        "claims join locks as before",
    ),
    Case(
        "SharingAffinityNoKeysExtracted",
        True,
        {'sharing_affinity_no_keys_extracted_total{instance="a"}': "0+1x1440 1500+60x180"},
        "25h",
    ),
    Case(
        "SharingAffinityNoKeysExtracted",
        False,
        {'sharing_affinity_no_keys_extracted_total{instance="a"}': "0+5x2000"},
        "25h",
        "as many as ever",
    ),
    Case(
        "SharingAffinityPodsPending",
        True,
        {**LEADER, 'sharing_affinity_pending_pods{instance="a"}': "4x864 20x40"},
        "149h",
        step="10m",
    ),
    Case(
        "SharingAffinityPodsPending",
        False,
        {**LEADER, 'sharing_affinity_pending_pods{instance="a"}': "20x950"},
        "149h",
        "as many as ever",
        "10m",
    ),
    Case(
        "SharingAffinityDecisionsSlow",
        True,
        {
            'sharing_affinity_decision_seconds_bucket{instance="a",le="0.1"}': "0+1x120",
            'sharing_affinity_decision_seconds_bucket{instance="a",le="2"}': "0+60x120",
            'sharing_affinity_decision_seconds_bucket{instance="a",le="+Inf"}': "0+60x120",
        },
        "1h",
    ),
    Case(
        "SharingAffinityDecisionsSlow",
        False,
        {
            'sharing_affinity_decision_seconds_bucket{instance="a",le="0.1"}': "0+60x120",
            'sharing_affinity_decision_seconds_bucket{instance="a",le="+Inf"}': "0+60x120",
        },
        "1h",
    ),
    Case(
        "SharingAffinityRestarts",
        True,
        {'process_start_time_seconds{job="sharing-affinity-metrics",instance="a"}': "1x5 2x5 3x5 4x20"},
        "25m",
    ),
    Case(
        "SharingAffinityRestarts",
        False,
        {'process_start_time_seconds{job="sharing-affinity-metrics",instance="a"}': "1x10 2x60"},
        "25m",
        "an upgrade",
    ),
    Case("SharingAffinityNoLeader", True, {'sharing_affinity_leader{instance="a"}': "0x20"}, "10m"),
    Case("SharingAffinityNoLeader", True, {'other{instance="a"}': "0x20"}, "10m", "nothing is scraped"),
    Case("SharingAffinityNoLeader", False, LEADER, "10m"),
    Case(
        "SharingAffinityTwoLeaders",
        True,
        {'sharing_affinity_leader{instance="a"}': "1x20", 'sharing_affinity_leader{instance="b"}': "1x20"},
        "10m",
    ),
    Case("SharingAffinityTwoLeaders", False, LEADER, "10m"),
    Case("SharingAffinityFeedStale", True, {'sharing_affinity_feed_fresh{kind="Pod"}': "1x5 0x20"}, "15m"),
    Case(
        "SharingAffinityFeedStale", False, {'sharing_affinity_feed_fresh{kind="Pod"}': "1x5 0x3 1x20"}, "15m"
    ),
    Case(
        "SharingAffinityWritesFail",
        True,
        {'sharing_affinity_claim_writes_total{outcome="rejected"}': "0+1x60"},
        "30m",
    ),
    Case(
        "SharingAffinityWritesFail",
        False,
        {'sharing_affinity_claim_writes_total{outcome="conflict"}': "0+1x60"},
        "30m",
        "conflicts are decided again",
    ),
    Case(
        "SharingAffinityAuditDifference", True, {"sharing_affinity_audit_differences_total": "0x9 1x9"}, "12m"
    ),
    Case("SharingAffinityLateWakeups", True, {"sharing_affinity_late_wakeups_total": "0+1x60"}, "30m"),
    Case(
        "SharingAffinityObjectsRefused",
        True,
        {'sharing_affinity_refused_objects_total{kind="Pod"}': "0x9 1x9"},
        "12m",
    ),
    Case("SharingAffinityEventsDropped", True, {"sharing_affinity_events_dropped_total": "0+20x60"}, "30m"),
    Case("SharingAffinityLoopHeld", True, {"sharing_affinity_loop_lag_seconds": "3x60"}, "30m"),
    Case("SharingAffinityLoopHeld", False, {"sharing_affinity_loop_lag_seconds": "0.02x60"}, "30m"),
    Case(
        "SharingAffinityCertificateExpires",
        True,
        {"sharing_affinity_webhook_certificate_expiry_timestamp_seconds": "500000x200"},
        "2h",
    ),
    Case(
        "SharingAffinityCertificateExpires",
        False,
        {"sharing_affinity_webhook_certificate_expiry_timestamp_seconds": "5000000x200"},
        "2h",
    ),
    Case(
        "SharingAffinityPrepareRejected",
        True,
        {'affinity_driver_affinity_rejections_total{driver="d",key="subnet"}': "0x9 1x9"},
        "12m",
    ),
]


@pytest.fixture(scope="module")
def promtool() -> str:
    return str(build.output_dir(versions.PROMETHEUS) / "promtool")


def run(promtool: str, folder: Path, *command: str) -> str:
    done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def test_rules_parse(promtool: str, tmp_path: Path) -> None:
    write(tmp_path / "rules.yaml", {"groups": monitoring.groups()})
    assert "SUCCESS" in run(promtool, tmp_path, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")


def test_queries_of_the_dashboard_parse(promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"q{number}", "expr": query} for number, query in enumerate(monitoring.queries().values())
    ]
    write(tmp_path / "rules.yaml", {"groups": [{"name": "queries", "rules": rules}]})
    run(promtool, tmp_path, "check", "rules", "rules.yaml")


def test_every_alert_has_a_case() -> None:
    assert {rule["alert"] for rule in monitoring.rules() if "alert" in rule} == {
        case.alert for case in CASES if case.fires
    }


@pytest.mark.parametrize("step", ["1m", "10m"])
def test_alerts_fire_when_they_should(promtool: str, tmp_path: Path, step: str) -> None:
    write(tmp_path / "rules.yaml", {"groups": monitoring.groups()})
    tests = [
        {
            "name": f"{case.alert}: {case.why or ('fires' if case.fires else 'is silent')}",
            "interval": step,
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})',
                    "eval_time": case.at,
                    "exp_samples": [{"labels": "{}", "value": 1}] if case.fires else [],
                }
            ],
        }
        for case in CASES
        if case.step == step
    ]
    write(tmp_path / "test.yaml", {"rule_files": ["rules.yaml"], "evaluation_interval": step, "tests": tests})
    run(promtool, tmp_path, "test", "rules", "test.yaml")
