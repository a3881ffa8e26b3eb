"""pytest fixtures: one control plane and one two-node cluster per test session, a namespace per test.

Clusters of a session are called `pytest-<pid>` so that sessions run side by side; those of sessions
that were killed are taken down by the next one. `E2E_ATTACH=NAME` (and `E2E_BACKEND=kind`) uses a running
cluster instead (`python -m e2e up --name NAME`), which saves seconds per run while developing; it is left
running, with the tests' namespaces deleted.
"""

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import backends, interrupts, local, paths
from e2e.cluster import Cluster
from e2e.errors import ApiError

CRDS = Path(__file__).parent.parent / "crds"


def _sweep() -> None:
    """Take down the clusters of sessions that are no more."""
    for folder in paths.clusters_dir().iterdir():
        owner = re.fullmatch(r"pytest-[a-z]+-(\d+)", folder.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            local.down(folder.name)


def _session_cluster(options: local.Options) -> Iterator[Cluster]:
    attached = os.environ.get("E2E_ATTACH")
    if attached:
        cluster = backends.attach(os.environ.get("E2E_BACKEND", "local"), attached)
        cluster.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))
        yield cluster
        return
    yield from _started(options)


def _started(options: local.Options) -> Iterator[Cluster]:
    interrupts.end_in_order()
    _sweep()
    cluster = local.up(options)
    try:
        cluster.apply(*sorted(CRDS.glob("sharingaffinity.dev_*.yaml")))
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd, API server, scheduler and the controllers that claims need, on loopback; our CRDs are applied.

    No nodes: make them with `Cluster.add_node`. Shared by the session: use a namespace per test, and
    own names for cluster-scoped objects.
    """
    yield from _session_cluster(local.Options(name=f"pytest-cp-{os.getpid()}", nodes=0))


@pytest.fixture
def own_control_plane() -> Iterator[Cluster]:
    """Like `control_plane`, for one test that installs or removes what others rely on; never an attached
    cluster."""
    yield from _started(local.Options(name=f"pytest-own-{os.getpid()}", nodes=0))


@pytest.fixture(scope="session")
def control_plane_1_36() -> Iterator[Cluster]:
    """Like `control_plane`, of the oldest Kubernetes we support; never an attached cluster."""
    yield from _started(local.Options(name=f"pytest-old-{os.getpid()}", kubernetes="1.36", nodes=0))


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Cluster]:
    """A cluster with the real nodes node-a and node-b in namespaces of its own; our CRDs and the test
    image are there.

    Where the host cannot run nodes the start fails with every missing thing named; tests/skips.toml has the
    probe that leaves such tests out.
    """
    yield from _session_cluster(local.Options(name=f"pytest-two-{os.getpid()}", nodes=2))


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace on the session's cluster (the two-node or the older one where the test uses
    it); deleted afterwards.
    """
    chosen = next(
        (name for name in ("two_nodes", "control_plane_1_36") if name in request.fixturenames), None
    )
    cluster: Cluster = request.getfixturevalue(chosen or "control_plane")
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        local.wait_usable(cluster, name)
        yield name
    finally:
        try:
            cluster.request("DELETE", f"/api/v1/namespaces/{name}", {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise
