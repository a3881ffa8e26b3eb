"""Which cluster a run gets: the one asked for, or the most real one this host can have.

`auto` is: real nodes on this host where it can run them, else kind where a Docker daemon answers, else a
control plane with a hand-made node. The cluster is made for the run and taken down after it, whatever way
the run ends.
"""

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from e2e import local
from e2e.cluster import Cluster
from e2e.errors import ClusterError


def run(choice: str, name: str, play: Callable[[Cluster], None], *, keep: bool) -> int:
    """Bring up a cluster, run `play` on it, take it down unless `keep`. Returns the exit code: 0 good, 1
    when `play` or the cluster failed, 130 when interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        start = time.monotonic()
        print(f"bringing up a cluster ({choice})...", flush=True)
        cluster = _up(choice, name)
        print(f"cluster {name!r} is up after {time.monotonic() - start:.0f} s: {_shape(cluster)}", flush=True)
        try:
            play(cluster)
        finally:
            if keep:
                print(f"\nkept: KUBECONFIG={cluster.kubeconfig}\n      python -m e2e down --name {name}")
            else:
                cluster.down()
    except ClusterError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _up(choice: str, name: str) -> Cluster:
    if choice in ("auto", "local"):
        return local.up(local.Options(name=name, nodes=2))
    if choice == "control-plane":
        return local.up(local.Options(name=name, nodes=0))
    raise ClusterError(f"CLUSTER={choice} is not available yet; use local or control-plane")


def _shape(cluster: Cluster) -> str:
    nodes = len(cluster.nodes())
    kind = f"{nodes} nodes" if nodes else "a control plane without kubelets"
    return f"Kubernetes {cluster.kubernetes}, {kind}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
