"""What a cluster is asked for, the same for every backend."""

from dataclasses import dataclass

from e2e import versions


@dataclass(frozen=True, slots=True)
class Options:
    """What `up` is asked for.

    `nodes` are real nodes, 0 for a control plane alone. `feature_gates` ("A=true,B=false") goes to
    every component, `runtime_config` to the API server. `controllers` (local only): None takes a few
    for `nodes=0` and all otherwise, ("*",) means all. `scheduler_qps` (local only): requests per second that
    kube-scheduler may make.
    """

    name: str = "default"
    kubernetes: str = versions.DEFAULT_MINOR
    nodes: int = 2
    feature_gates: str = ""
    runtime_config: str = ""
    controllers: tuple[str, ...] | None = None
    scheduler_qps: int = 1000
