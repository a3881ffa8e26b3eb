"""The dashboard by a real Prometheus: after a little life of the product as pods, every panel has data, and
every label that a legend names.

Prometheus finds its targets as with the ServiceMonitor that ships: through the Services with its label.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import monitoring
from harness.pods import Pods

from e2e import build, versions
from e2e.cluster import Cluster, wait_for
from e2e.errors import ClusterError
from e2e.installation import AsPods
from e2e.product import MANIFESTS

pytestmark = pytest.mark.e2e

PORT = 9090
PROCESSES = 5
"""Two operators, two webhooks, a driver."""


class Prometheus:
    """A server inside the cluster's network, asked from outside."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._url = f"http://{urllib.parse.urlsplit(cluster.url).hostname}:{PORT}"
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(cluster)))
        program = build.output_dir(versions.PROMETHEUS) / "prometheus"
        self.process = cluster.enter(
            [
                *(str(program), f"--config.file={folder / 'prometheus.yaml'}"),
                *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=0.0.0.0:{PORT}"),
            ],
            log=folder / "prometheus.log",
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        address = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def targets(cluster: Cluster, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The addresses behind all Services with these labels, with their pods as a ServiceMonitor has them."""
    found = []
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    for service in cluster.request("GET", f"/api/v1/services?labelSelector={selector}")["items"]:
        meta = service["metadata"]
        path = f"/apis/discovery.k8s.io/v1/namespaces/{meta['namespace']}/endpointslices"
        query = f"?labelSelector=kubernetes.io/service-name={meta['name']}"
        for part in cluster.request("GET", path + query)["items"]:
            found += [
                {
                    "targets": [f"{e['addresses'][0]}:{part['ports'][0]['port']}"],
                    "labels": {"pod": e["targetRef"]["name"]},
                }
                for e in part["endpoints"] or ()
            ]
    return found


def configuration(cluster: Cluster) -> dict[str, Any]:
    """Scrape what the ServiceMonitor selects, under the job it gives."""
    (monitor,) = yaml.safe_load_all((MANIFESTS / "monitoring/servicemonitor.yaml").read_text())
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    labels = monitor["spec"]["selector"]["matchLabels"]

    def all_there() -> list[dict[str, Any]] | None:
        found = targets(cluster, labels)
        return found if len(found) == PROCESSES else None

    scraped = wait_for(f"{PROCESSES} processes behind the metrics Services", all_there)
    job = labels[monitor["spec"]["jobLabel"]]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": job, "static_configs": scraped}],
    }


@pytest.fixture
def product(two_nodes: Cluster) -> Iterator[AsPods]:
    made = AsPods(two_nodes, two_nodes.node("node-a"))
    try:
        made.driver("--fence-settle=1")
        made.operators("--fence-settle=1")
        two_nodes.kubectl("apply", "-f", str(MANIFESTS / "monitoring/service.yaml"))
        yield made
    finally:
        made.stop()


def test_every_panel_has_data(two_nodes: Cluster, product: AsPods, namespace: str, tmp_path: Path) -> None:
    prometheus = Prometheus(two_nodes, tmp_path)
    try:
        wait_for("all are scraped", lambda: prometheus.query(f"sum(up) == {PROCESSES}"))
        pods = Pods(two_nodes, namespace)
        for name, subnet in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            pods.start(name, subnet)
        pods.running("a1", "a2", "b1")
        pods.end("a2")

        def complete(target: dict[str, Any]) -> bool:
            series = prometheus.query(target["expr"].replace("$__rate_interval", "5m"))
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            return bool(series) and all(labels <= one["metric"].keys() for one in series)

        def lacking() -> list[str]:
            return [
                f"{panel['title']}: {target['expr']}"
                for panel in monitoring.panels()
                for target in panel["targets"]
                if not complete(target)
            ]

        try:
            wait_for("data on all panels", lambda: not lacking(), pause=2)
        except ClusterError:
            assert lacking() == []
        pods.end("a1", "b1")
    finally:
        prometheus.stop()
