"""The backends by name, and which one a host gets when nobody chose."""

from e2e import current, kind, local, probe
from e2e.cluster import Cluster
from e2e.errors import ClusterError
from e2e.options import Options

NAMES = ("local", "kind", "current")


def up(backend: str, options: Options) -> Cluster:
    """Start a cluster (for `current`: use the one that is there)."""
    if backend == "local":
        return local.up(options)
    if backend == "kind":
        return kind.up(options)
    if backend == "current":
        return current.attach()
    raise _unknown(backend)


def attach(backend: str, name: str) -> Cluster:
    """A cluster that is running already."""
    if backend == "local":
        return local.attach(name)
    if backend == "kind":
        return kind.attach(name)
    if backend == "current":
        return current.attach()
    raise _unknown(backend)


def down(backend: str, name: str) -> None:
    """Take a cluster down. The user's own (`current`) is left alone."""
    if backend == "local":
        local.down(name)
    elif backend == "kind":
        kind.down(name)
    elif backend != "current":
        raise _unknown(backend)


def choose() -> tuple[str, int, list[str]]:
    """What this host can run best, as (backend, nodes, reasons): `local` with two nodes, else `kind`,
    else a control plane alone. The reasons say what kept the better ones away.
    """
    lacking = [str(reason) for reason in probe.missing()]
    if not lacking:
        return "local", 2, []
    without_kind = kind.missing()
    if without_kind is None:
        return "kind", 2, lacking
    return "local", 0, [*lacking, without_kind]


def _unknown(backend: str) -> ClusterError:
    return ClusterError(f"no backend {backend}: there are {', '.join(NAMES)}")
