"""The Helm chart is up to date with the manifests it is made from. What helm makes of it: test_chart.py."""

from __future__ import annotations

from e2e import build, versions
from tools import chart


def test_the_chart_is_made_from_the_manifests() -> None:
    (folder,) = build.ensure(versions.kubernetes(versions.DEFAULT_MINOR))
    assert chart.differences(chart.with_kubectl(str(folder / "kubectl"))) == []
