"""The device search: which devices of one node a pod's claims get, equal to upstream's allocator of 1.37.

``prepare`` turns claims and a node's pools into a :class:`Problem`, ``search`` solves it against the ledger,
and ``result`` writes the solution down as ``status.allocation``. What is not taken over, and fails closed
with a diagnosis: derived attributes, list attributes, compatibility groups, node-allocatable mappings,
optional node operations, shared consumable capacity.
"""

from sharing_affinity.allocator.model import (
    Abort,
    Candidate,
    Chosen,
    KeysOf,
    Leaf,
    NodeError,
    Problem,
    Solution,
)
from sharing_affinity.allocator.prepare import Builder, NodePool, pools_on_node
from sharing_affinity.allocator.search import Search
from sharing_affinity.allocator.selectors import Selectors

__all__ = [
    "Abort",
    "Builder",
    "Candidate",
    "Chosen",
    "KeysOf",
    "Leaf",
    "NodeError",
    "NodePool",
    "Problem",
    "Search",
    "Selectors",
    "Solution",
    "pools_on_node",
]
