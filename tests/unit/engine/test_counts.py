"""What the one line about a pod that is not placed says of the nodes: each of them once, and nothing odd."""

from __future__ import annotations

import re
from functools import partial

import pytest
from harness import objects as o
from harness.worlds import World

from sharing_affinity.engine import deciding


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


def test_nodes_that_no_search_is_left_for_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MAX_STEPS", 20)
    monkeypatch.setattr(deciding, "_Log", partial(deciding._Log, steps=50))
    requests = [*(o.request(f"r{i}") for i in range(8)), o.request("never", slots="65")]
    endless = [{"distinctAttribute": f"{o.DRIVER}/index"}]
    w = cluster(6)
    w.show(o.claim("pod", "A", requests=requests, constraints=endless), o.pod("pod"))

    message = w.decide("pod").message
    assert re.findall(r"(\d+) node\(s\) were not searched any more", message) == ["3"]
    assert [int(steps) for steps in re.findall(r"given up after (-?\d+) steps", message)] == [20, 8]
