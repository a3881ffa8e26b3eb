"""Every knob of the running operator, with its default. The flags of ``sharing-affinity run`` mirror them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sharing_affinity.engine import Options
from sharing_affinity.runtime.lease import Timing

#: Feature gates by name, with their defaults.
GATES = {"DRASharingAffinity": True, "DRASharingAffinityScoring": True}


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are seconds."""

    engine: Options = field(default_factory=Options)
    kubeconfig: str | None = None
    context: str | None = None
    #: Where the Lease is, and where the Events of the operator itself go.
    namespace: str = "sharing-affinity-system"
    lease_name: str = "sharing-affinity-operator"
    #: Unique per process.
    identity: str = ""
    leader_elect: bool = True
    lease: Timing = field(default_factory=Timing)
    #: Requests per second to claims, and the burst; views and Events have a tenth of it on top.
    qps: float = 50.0
    burst: int = 100
    concurrency: int = 16
    write_timeout: float = 8.0
    #: A watch without a byte for this long is dead; the server sends a bookmark about every minute.
    watch_silence: float = 75.0
    #: A feed that was not heard of for this long stops all allocation.
    stale_after: float = 100.0
    audit_interval: float = 600.0
    #: Pods that wait get the condition sharingaffinity.dev/ClaimsAllocated.
    pod_conditions: bool = True
    #: ``host:port`` of /healthz, /readyz and /metrics; empty for none.
    http: str = "0.0.0.0:8080"
    #: Seconds the loop may go without a turn before /healthz fails.
    hung_after: float = 30.0
    drain: float = 5.0
    #: Faults may be injected in tests: an audit difference then ends the process.
    strict_audit: bool = False


def parse_gates(text: str) -> dict[str, bool]:
    """``A=true,B=false`` as a mapping over all gates. Raises ValueError naming what is wrong."""
    gates = dict(GATES)
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in GATES:
            raise ValueError(f"unknown feature gate {name!r}; known are {', '.join(GATES)}")
        if not equals or value.lower() not in ("true", "false"):
            raise ValueError(f"feature gate {name} needs =true or =false, not {part!r}")
        gates[name] = value.lower() == "true"
    return gates
