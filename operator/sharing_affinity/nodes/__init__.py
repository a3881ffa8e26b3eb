"""Node choice: which nodes a pod could run on at all, before any device is looked at.

Modelled: nodeSelector and required node affinity, taints, unschedulable, cpu, memory, other countable
resources (init containers, sidecars, overhead), pods, host ports, node affinity of bound volumes, required
pod (anti-)affinity and DoNotSchedule spread in their plain forms. Not modelled, left to the scheduler:
volumes not yet bound and volume limits, namespace selectors of pod affinity, minDomains of spread,
anti-affinity of running pods against this one where it selects by namespace labels, and scheduler plugins.
"""

from sharing_affinity.nodes.fit import Demand, Fit, is_repelled, resource_fit, static_reason, volume_reason
from sharing_affinity.nodes.topology import Neighbours
from sharing_affinity.nodes.usage import Load, Usage

__all__ = [
    "Demand",
    "Fit",
    "Load",
    "Neighbours",
    "Usage",
    "is_repelled",
    "resource_fit",
    "static_reason",
    "volume_reason",
]
