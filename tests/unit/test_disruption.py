"""Drains of nodes: what the disruption budgets of the manifests let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def evictable(budget: dict[str, Any], replicas: int) -> int:
    """How many of that many healthy pods the eviction API lets go at once."""
    spec = budget["spec"]
    if "maxUnavailable" in spec:
        return min(replicas, int(spec["maxUnavailable"]))
    return max(0, replicas - int(spec["minAvailable"]))


@pytest.mark.parametrize("folder", ["operator", "webhook"])
def test_one_pod_at_a_time_may_go_however_many_there_are(folder: str) -> None:
    """The number is a value of the chart; with one, `minAvailable: 1` would block drains for ever."""
    documents = yaml.safe_load_all((ROOT / "manifests" / folder / "deployment.yaml").read_text())
    by_kind = {document["kind"]: document for document in documents}
    budget, deployment = by_kind["PodDisruptionBudget"], by_kind["Deployment"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert [evictable(budget, replicas) for replicas in (1, 2, 3)] == [1, 1, 1]
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
