"""What tests of the operator on the session's control plane have in common; a module may have its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.operator import Site, install

from e2e.cluster import Cluster


@pytest.fixture(scope="module")
def kubeconfig(control_plane: Cluster) -> Path:
    """The operator's own, with its manifests applied."""
    return install(control_plane)


@pytest.fixture
def site(control_plane: Cluster, namespace: str) -> Iterator[Site]:
    """A driver, a class and a namespace of the test's own."""
    made = Site(control_plane, namespace)
    yield made
    made.close()
