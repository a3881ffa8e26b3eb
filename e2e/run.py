"""One run on a cluster of its own: bring it up, play, take it down, whatever way the run ends."""

import sys
import time
from collections.abc import Callable

from e2e import backends, interrupts
from e2e.cluster import Cluster
from e2e.errors import ClusterError
from e2e.options import Options

CHOICES = ("auto", *backends.NAMES, "control-plane")


def run(choice: str, name: str, play: Callable[[Cluster], None], *, keep: bool) -> int:
    """Bring up the cluster `choice` names, run `play` on it, take it down unless `keep`.

    `auto` is the most real one this host can have, `control-plane` a local one without kubelets. Returns the
    exit code: 0 good, 1 when `play` or the cluster failed, 130 when interrupted.
    """
    interrupts.end_in_order()
    try:
        backend, nodes = _chosen(choice)
        start = time.monotonic()
        print(f"bringing up a cluster ({backend})...", flush=True)
        cluster = backends.up(backend, Options(name=name, nodes=nodes))
        print(f"up after {time.monotonic() - start:.0f} s: {_shape(cluster)}", flush=True)
        try:
            play(cluster)
        finally:
            if keep:
                print(f"\nkept: export KUBECONFIG={cluster.kubeconfig}")
                print(f"      python -m e2e down --backend {backend} --name {name}", flush=True)
            else:
                cluster.down()
    except ClusterError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _chosen(choice: str) -> tuple[str, int]:
    """Backend and number of real nodes; says what kept a better one away."""
    if choice == "control-plane":
        return "local", 0
    if choice != "auto":
        return choice, 2
    backend, nodes, reasons = backends.choose()
    for reason in reasons:
        print(f"this host cannot run nodes itself: {reason}", flush=True)
    return backend, nodes


def _shape(cluster: Cluster) -> str:
    nodes = len(cluster.nodes())
    kind = f"{nodes} nodes" if nodes else "a control plane without kubelets"
    return f"Kubernetes {cluster.kubernetes}, {kind}"
