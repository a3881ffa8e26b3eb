"""What the one line about a pod that is not placed says of the nodes: each of them once, and nothing odd."""

from __future__ import annotations

from harness import objects as o
from harness.worlds import World


def cluster(nodes: int) -> World:
    raws = [o.device_class()]
    for index in range(nodes):
        name = f"node-{index}"
        raws += [o.node(name), o.metadata_slice(pool=name)]
        devices = [o.device(f"eth{i}", attributes={"index": {"int": i}}) for i in range(8)]
        raws.append(o.device_slice(devices, pool=name))
    return World(*raws)


def test_a_nominated_node_that_the_pod_does_not_select_counts_once() -> None:
    w = cluster(2)
    status = {"nominatedNodeName": "node-0"}
    w.show(o.claim("pod", "A"), o.pod("pod", nodeSelector={"kubernetes.io/hostname": "gone"}, status=status))

    assert w.decide("pod").message.startswith("0/2 nodes are available: 2 node(s) didn't match")
