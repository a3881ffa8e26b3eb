"""Which node a pod goes to: its own constraints, resources, other claims, back-off, priorities, order of
pods."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, devices, nics

from sharing_affinity.engine import Decision, NotServed, Placed, Reason, Unplaced
from sharing_affinity.nodes import Usage

JSON = dict[str, Any]


def two(*more: JSON, a: JSON | None = None, b: JSON | None = None, **options: Any) -> World:
    """Nodes ``node-a`` and ``node-b`` with one NIC each."""
    raws = [o.device_class()]
    for name, spec in (("node-a", a), ("node-b", b)):
        raws += [
            o.node(name, **(spec or {})),
            o.metadata_slice(pool=name),
            o.device_slice([o.device(f"nic-{name[-1]}")], pool=name),
        ]
    return World(*raws, *more, **options)


def decide(
    w: World, name: str = "pod", subnet: str = "A", status: JSON | None = None, **spec: Any
) -> Decision:
    w.show(o.claim(name, subnet), o.pod(name, status=status, **spec))
    return w.decide(name)


def node_of(decision: Decision) -> str | None:
    return decision.node if isinstance(decision, Placed) else None


def in_zone(zone: str) -> JSON:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def spread_by(key: str = "kubernetes.io/hostname", **more: Any) -> JSON:
    """A constraint that pods of one namespace are spread evenly, whatever their labels."""
    even = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {**even, **more}


TAINT = {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("a", "spec", "expected", "reason"),
    [
        (None, {}, "node-a", ""),
        ({"labels": {"zone": "z1"}}, {"nodeSelector": {"zone": "z2"}}, None, "node affinity/selector"),
        ({"labels": {"zone": "z1"}}, {"affinity": in_zone("z1")}, "node-a", ""),
        ({"labels": {"zone": "z1"}}, {"affinity": in_zone("z2")}, None, "node affinity/selector"),
        (TAINT, {}, "node-b", ""),
        (TAINT, {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}, "node-a", ""),
        ({"unschedulable": True}, {}, "node-b", ""),
        ({"allocatable": {"cpu": "1"}}, {"cpu": "2"}, "node-b", ""),
        ({"allocatable": {"pods": "0"}}, {}, "node-b", ""),
        ({"allocatable": {"memory": "1Gi"}}, {"memory": "1025Mi"}, "node-b", ""),
        ({"allocatable": {"example.com/x": "1"}}, {"example.com/x": "1"}, "node-a", ""),
        (None, {"example.com/x": "1"}, None, "Insufficient example.com/x"),
    ],
)  # fmt: skip
def test_constraints_of_the_node(a: JSON | None, spec: JSON, expected: str | None, reason: str) -> None:
    requests = {k: v for k, v in spec.items() if k in ("cpu", "memory", "example.com/x")}
    spec = {k: v for k, v in spec.items() if k not in requests}
    containers = [{"name": "c", "resources": {"requests": requests}}]
    decision = decide(two(a=a), containers=containers, **spec)
    assert node_of(decision) == expected
    if expected is None:
        assert isinstance(decision, Unplaced)
        assert reason in decision.message


def test_bound_nominated_and_pinned_pods_use_a_node_up() -> None:
    big = [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]
    w = two()
    w.show(o.pod("bound", ["none"], containers=big, nodeName="node-a", status={"phase": "Running"}))
    assert node_of(decide(w, containers=big)) == "node-b"
    # Only assumed so far, and yet node-b is used up.
    w.assume_for("pod")
    refused = decide(w, "second", containers=big)
    assert isinstance(refused, Unplaced)
    assert "2 Insufficient cpu" in refused.message
    w.gone("Pod", "bound", "default")
    assert node_of(w.decide("second")) == "node-a"


def test_init_containers_sidecars_and_overhead() -> None:
    def cpu(amount: str, **more: Any) -> JSON:
        return {"name": "c", "resources": {"requests": {"cpu": amount}}, **more}

    spec: JSON = {
        "containers": [cpu("1")],
        "initContainers": [cpu("500m", restartPolicy="Always"), cpu("2")],
        "overhead": {"cpu": "250m"},
    }
    # max(1 + 0.5, 0.5 + 2) + 0.25
    assert node_of(decide(two(a={"allocatable": {"cpu": "2750m"}}), **spec)) == "node-a"
    assert node_of(decide(two(a={"allocatable": {"cpu": "2749m"}}), **spec)) == "node-b"


def test_finished_pods_use_nothing() -> None:
    big = [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]
    w = two()
    w.show(o.pod("done", ["none"], containers=big, nodeName="node-a", status={"phase": "Succeeded"}))
    assert node_of(decide(w, containers=big)) == "node-a"


def test_host_ports() -> None:
    ports = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}]
    w = two()
    w.show(o.pod("bound", ["none"], containers=ports, nodeName="node-a"))
    assert node_of(decide(w, containers=ports)) == "node-b"


def test_volumes_bind_to_their_nodes() -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-b"]}]}
    pv = {
        "kind": "PersistentVolume",
        "metadata": o.meta("pv"),
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
    }
    pvc = {
        "kind": "PersistentVolumeClaim",
        "metadata": o.meta("pvc", "default"),
        "spec": {"volumeName": "pv"},
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "pvc"}}]
    assert node_of(decide(two(pv, pvc), volumes=volumes)) == "node-b"


def test_claim_allocated_elsewhere_pins_the_pod() -> None:
    w = two(o.allocated(o.claim("other", "B"), "nic-b", pool="node-b"))
    w.show(o.claim("mine", "B"), o.pod("pod", ["mine", "other"]))
    assert node_of(w.decide("pod")) == "node-b"


def test_claim_of_ordinary_pools_has_to_be_allocatable_there() -> None:
    gpu_class = o.device_class("gpu", selectors=[o.cel('device.driver == "gpu.example.com"')])
    gpu = o.device_slice(
        [o.device("gpu0", None, fence=False, allowMultipleAllocations=False)],
        pool="gpus-b",
        driver="gpu.example.com",
        nodeName="node-b",
    )
    w = two(gpu_class, gpu, o.claim("nic", "A"), o.claim("gpu", requests=[o.request("gpu", "gpu")]))
    w.show(o.pod("pod", ["nic", "gpu"]))
    decision = w.decide("pod")
    assert isinstance(decision, Placed)
    assert (decision.node, [x.name for x in decision.writes]) == ("node-b", ["nic"])
    w.show(
        o.allocated(
            o.claim("taken", requests=[o.request("gpu", "gpu")]),
            "gpu0",
            pool="gpus-b",
            share=None,
            driver="gpu.example.com",
        )
    )
    refused = w.decide("pod")
    assert isinstance(refused, Unplaced)
    assert "ordinary pools" in refused.message


def test_all_claims_of_a_pod_together_or_none() -> None:
    w = nics(o.allocated(o.claim("b", "B"), "eth2"), o.claim("one", "A"), o.claim("two", "C"))
    w.show(o.pod("pod", ["one", "two"]))
    refused = w.decide("pod")
    assert isinstance(refused, Unplaced)
    w.gone("ResourceClaim", "b", "default")
    decision = w.decide("pod")
    assert isinstance(decision, Placed)
    assert devices(decision) == ["eth1", "eth2"]


def test_packing_prefers_the_node_with_the_lock() -> None:
    holder = o.allocated(o.claim("held", "A"), "nic-b", pool="node-b")
    assert node_of(decide(two(holder, scoring=True))) == "node-b"
    assert node_of(decide(two(holder, scoring=False))) == "node-a"
    assert node_of(decide(two(holder, scoring=True), subnet="B")) == "node-a"


def test_preemption_candidates_come_last() -> None:
    big = [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]
    w = two()
    for name in ("node-a", "node-b"):
        w.show(o.pod(f"low-{name}", ["none"], containers=big, nodeName=name, priority=0))
    assert node_of(decide(w, "same", containers=big, priority=0)) is None
    assert node_of(decide(w, "high", containers=big, priority=10)) == "node-a"
    assert node_of(decide(w, "meek", containers=big, priority=10, preemptionPolicy="Never")) is None
    w.gone("Pod", "low-node-b", "default")
    assert node_of(decide(w, "high2", containers=big, priority=10)) == "node-b"


def test_nominated_node_is_tried_first() -> None:
    assert node_of(decide(two(), status={"nominatedNodeName": "node-b"})) == "node-b"


def test_foreign_deallocation_excludes_the_node_after_the_cool_down() -> None:
    w = two(cool_down=30.0, exclusion=60.0)
    assert w.place("pod", "A") == ["nic-a"]
    raw = w.objects[("ResourceClaim", "default", "pod")]
    w.show({k: v for k, v in raw.items() if k != "status"})
    refused = w.decide("pod")
    # Only node-a is allowed for 30 seconds, and node-a is what just failed.
    assert isinstance(refused, Unplaced)
    assert refused.retry_at == w.now + 30.0
    w.now += 30.0
    assert node_of(w.decide("pod")) == "node-b"
    w.now += 31.0
    # Allowed again, but behind a node that has not failed the pod.
    assert node_of(w.decide("pod")) == "node-b"
    w.show(o.node("node-b", unschedulable=True))
    assert node_of(w.decide("pod")) == "node-a"


def test_nominated_node_is_never_excluded() -> None:
    w = two()
    w.place("pod", "A")
    raw = w.objects[("ResourceClaim", "default", "pod")]
    w.show({k: v for k, v in raw.items() if k != "status"})
    w.show(o.pod("pod", status={"nominatedNodeName": "node-a"}))
    assert node_of(w.decide("pod")) == "node-a"


def test_back_off_visits_another_zone_first() -> None:
    labels = {"topology.kubernetes.io/zone": "z1"}
    w = two(a={"labels": labels}, b={"labels": labels}, cool_down=0.0)
    w.show(
        o.node("node-c", {"topology.kubernetes.io/zone": "z2"}),
        o.metadata_slice(pool="node-c"),
        o.device_slice([o.device("nic-c")], pool="node-c"),
    )
    w.place("pod", "A")
    raw = w.objects[("ResourceClaim", "default", "pod")]
    w.show({k: v for k, v in raw.items() if k != "status"})
    assert node_of(w.decide("pod")) == "node-c"


def test_pod_anti_affinity_and_spread() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    w = two()
    w.show(o.pod("first", ["none"], nodeName="node-a"))
    assert node_of(decide(w, "apart", affinity=anti)) == "node-b"
    assert node_of(decide(w, "together", affinity=near)) == "node-a"
    spread = [spread_by(labelSelector={"matchLabels": {"app": "first"}})]
    w.show(o.pod("first2", ["none"], nodeName="node-a"))
    # The pod does not match its own selector, so joining node-a would not add to the skew of two.
    assert isinstance(decide(w, "even", topologySpreadConstraints=spread), Placed)
    w.show(
        o.claim("x", "A"),
        {
            **o.pod("x", topologySpreadConstraints=spread),
            "metadata": o.meta("x", "default", labels={"app": "first"}),
        },
    )
    assert node_of(w.decide("x")) == "node-b"


@pytest.mark.parametrize(
    ("policies", "fits"),
    [
        ({}, False),
        ({"nodeTaintsPolicy": "Ignore"}, False),
        ({"nodeTaintsPolicy": "Honor"}, True),
        ({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}, True),
    ],
)
def test_spread_may_leave_tainted_nodes_out_of_account(policies: JSON, fits: bool) -> None:
    """Nobody can even out what a node has less of that takes no such pods."""
    w = two(o.node("node-b", taints=[{"key": "maintenance", "effect": "NoSchedule"}]))
    w.show(o.pod("x1", ["none"], nodeName="node-a"))
    spread = [spread_by(**policies)]
    assert isinstance(decide(w, "x", topologySpreadConstraints=spread), Placed) is fits


@pytest.mark.parametrize(("policy", "fits"), [("Honor", True), ("Ignore", False)])
def test_spread_may_count_nodes_that_the_pod_does_not_select(policy: str, fits: bool) -> None:
    w = two()
    w.show(o.pod("x1", ["none"], nodeName="node-a"))
    spread = spread_by(nodeAffinityPolicy=policy)
    selector = {"kubernetes.io/hostname": "node-a"}
    placed = decide(w, "x", topologySpreadConstraints=[spread], nodeSelector=selector)
    assert isinstance(placed, Placed) is fits


@pytest.mark.parametrize(
    ("edits", "wakes"),
    [
        ({"spec": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}}, True),
        ({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}, True),
        ({"metadata": {"labels": {"app": "other"}}}, True),
        ({"metadata": {"annotations": {"note": "x"}}}, False),
        ({"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}, False),
    ],
)
def test_a_pod_is_decided_on_again_when_something_of_it_changes_that_matters(
    edits: JSON, wakes: bool
) -> None:
    w = nics(o.claim("pod", "A"), o.pod("pod"))
    raw = w.objects[("Pod", "default", "pod")]
    changed = {**raw, **{part: {**raw.get(part, {}), **edit} for part, edit in edits.items()}}
    assert (("default", "pod") in w.show(changed).pods) is wakes


def test_a_pod_that_came_to_a_node_wakes_those_that_it_may_help() -> None:
    term = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    even = spread_by()
    w = two(o.pod("other", ["none"]))
    for name, spec in (
        ("near", {"affinity": near}),
        ("even", {"topologySpreadConstraints": [even]}),
        ("plain", {}),
    ):
        w.show(o.claim(name, "A"), o.pod(name, **spec))
    bound = o.pod("other", ["none"], nodeName="node-b")
    assert w.show(bound).pods == {("default", "near"), ("default", "even")}
    assert w.show(bound).pods == frozenset()
    w.gone("Pod", "near", "default")
    assert w.show(o.pod("late", ["none"], nodeName="node-a")).pods == {("default", "even")}


def test_a_pod_that_came_to_a_node_wakes_nobody_who_looks_at_other_namespaces() -> None:
    """Pods come to nodes all the time, and most concern nobody."""
    term = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    w = two()
    for name, where in (
        ("own", {}),
        ("named", {"namespaces": ["there", "elsewhere"]}),
        ("all", {"namespaceSelector": {}}),
    ):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [{**term, **where}]}
        w.show(o.claim(name, "A"), o.pod(name, affinity={"podAffinity": required}))
    come = itertools.count()

    def woken(namespace: str) -> set[str]:
        pod = o.pod(f"other{next(come)}", ["none"], namespace=namespace, nodeName="node-b")
        return {name for _, name in w.show(pod).pods}

    assert woken("default") == {"own", "all"}
    assert woken("there") == woken("elsewhere") == {"named", "all"}
    assert woken("nowhere") == {"all"}
    w.gone("Pod", "all", "default")
    w.show(o.pod("named", uid="another"))
    assert woken("there") == set()
    assert woken("default") == {"own"}


def test_a_node_that_goes_wakes_those_that_had_to_spread_to_it() -> None:
    even = spread_by()
    w = nics()
    w.show(o.node("empty"), o.pod("there", ["none"], nodeName="node-a"))
    assert node_of(decide(w, topologySpreadConstraints=[even])) is None

    assert w.gone("Node", "empty").pods == {("default", "pod")}
    assert node_of(w.decide("pod")) == "node-a"


def test_other_labels_of_a_pod_on_a_node_wake_those_that_want_or_do_not_want_to_be_with_it() -> None:
    term = {"labelSelector": {"matchLabels": {"role": "primary"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    there = o.pod("there", ["none"], nodeName="node-a")
    leads = {**there, "metadata": {**there["metadata"], "labels": {"role": "primary"}}}
    w = nics()
    for first, second, wish in ((there, leads, "podAffinity"), (leads, there, "podAntiAffinity")):
        w.show(first)
        assert node_of(decide(w, affinity={wish: rule})) is None
        w.show(o.claim("plain", "A"), o.pod("plain"), o.pod("far", affinity={wish: rule}, namespace="far"))
        assert w.show(second).pods == {("default", "pod")}
        assert node_of(w.decide("pod")) == "node-a"


def near(*terms: tuple[JSON, str]) -> JSON:
    required = [{"labelSelector": {"matchLabels": labels}, "topologyKey": key} for labels, key in terms]
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def labelled(name: str, node: str, **labels: str) -> JSON:
    raw = o.pod(name, ["none"], nodeName=node)
    return {**raw, "metadata": {**raw["metadata"], "labels": labels}}


HOST = "kubernetes.io/hostname"


def test_affinity_in_several_terms_is_for_one_pod_that_all_of_them_select() -> None:
    both = near(({"app": "db"}, HOST), ({"role": "primary"}, HOST))
    w = two(labelled("one", "node-a", app="db"), labelled("other", "node-a", role="primary"))
    assert node_of(decide(w, affinity=both)) is None
    w.show(labelled("both", "node-b", app="db", role="primary"))
    assert node_of(w.decide("pod")) == "node-b"


def test_the_first_of_a_group_goes_anywhere_though_one_of_its_terms_selects_others() -> None:
    w = two(labelled("there", "node-b", tier="web"))
    group = near(({"tier": "web"}, HOST), ({"app": "group"}, HOST))
    w.show(o.claim("pod", "A"))
    raw = o.pod("pod", affinity=group)
    w.show({**raw, "metadata": {**raw["metadata"], "labels": {"tier": "web", "app": "group"}}})
    assert node_of(w.decide("pod")) == "node-a"


def test_spread_by_two_keys_counts_only_nodes_that_have_both() -> None:
    """A node of no zone, for the control plane say, has none of the pods."""
    by = [spread_by("zone"), spread_by()]
    w = two(a={"labels": {"zone": "z1"}})
    w.show(o.pod("there", ["none"], nodeName="node-a"))
    assert node_of(decide(w, topologySpreadConstraints=by)) == "node-a"


def test_spread_counts_no_pods_on_nodes_that_do_not_count() -> None:
    w = two(a={"labels": {"zone": "z1", "nics": "yes"}}, b={"labels": {"zone": "z2", "nics": "yes"}})
    w.show(o.node("node-c", {"zone": "z1"}))
    w.show(*(o.pod(f"x{number}", ["none"], nodeName="node-c") for number in range(3)))
    spread = spread_by("zone")
    choosy: JSON = {"topologySpreadConstraints": [spread], "nodeSelector": {"nics": "yes"}}
    assert node_of(decide(w, "first", **choosy)) == "node-a"
    # Without a choice of nodes all three count.
    assert node_of(decide(w, "second", topologySpreadConstraints=[spread])) == "node-b"


def test_a_pod_that_asks_for_nothing_meets_only_those_that_repel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision must not look at every pod of the cluster."""
    term = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    w = two(o.pod("running", ["none"], nodeName="node-a", affinity=anti))

    def never(*_: object) -> None:
        raise AssertionError("all pods were asked for")

    monkeypatch.setattr(Usage, "placed", never)
    assert node_of(decide(w, "plain")) == "node-b"
    with pytest.raises(AssertionError, match="all pods"):
        decide(w, "picky", affinity=anti)


def test_anti_affinity_of_running_pods_counts_too() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "pod"}}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    w = two(o.pod("running", ["none"], nodeName="node-a", affinity=anti))
    assert node_of(decide(w)) == "node-b"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"schedulingGates": [{"name": "g"}]}, ""),
        ({"schedulerName": "other"}, ""),
        ({"nodeName": "node-a"}, "spec.nodeName is set"),
        ({"schedulingGroup": {"podGroupName": "gang"}}, "pod group gang"),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "pod", "future": {"x": 1}}]}, "future"),
    ],
)
def test_pods_that_are_not_served(spec: JSON, says: str) -> None:
    decision = decide(two(), **spec)
    assert isinstance(decision, NotServed)
    assert says in decision.message
    assert bool(says) == bool(decision.message)


def test_extended_resource_of_fenced_devices_is_explained() -> None:
    w = nics(o.device_class("nics", extendedResourceName="example.com/nic"))
    wants = [{"name": "c", "resources": {"requests": {"example.com/nic": "1"}}}]
    raw = o.pod("pod", containers=wants)
    del raw["spec"]["resourceClaims"]
    w.show(raw)
    assert w.engine.pods() == (("default", "pod"),)
    decision = w.decide("pod")
    assert isinstance(decision, NotServed)
    assert "use a ResourceClaim of DeviceClass nics" in decision.message


def test_extended_resources_that_stand_for_devices_are_not_counted() -> None:
    wants = [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]
    w = two(o.device_class("gpus", extendedResourceName="example.com/gpu"))
    assert node_of(decide(w, containers=wants)) == "node-a"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_and_deleted_pods_are_not_considered(phase: str) -> None:
    assert isinstance(decide(two(), status={"phase": phase}), NotServed)
    w = two()
    gone = o.pod("pod")
    gone["metadata"]["deletionTimestamp"] = o.EPOCH
    w.show(o.claim("pod", "A"), gone)
    assert isinstance(w.decide("pod"), NotServed)
    assert w.engine.pods() == ()


def test_pod_waits_until_all_its_claims_are_there() -> None:
    w = two(o.claim("one", "A"), o.pod("pod", ["one", "two"]))
    decision = w.decide("pod")
    assert isinstance(decision, NotServed)
    assert decision.reason is Reason.WAITING
    changes = w.show(o.claim("two", "A"))
    assert ("default", "pod") in changes.pods
    assert isinstance(w.decide("pod"), Placed)


def test_generated_claim_of_another_pod_is_not_taken() -> None:
    owner = [{"kind": "Pod", "name": "pod", "uid": "somebody-else", "controller": True}]
    w = two(o.claim("pod-c0-x", "A", ownerReferences=owner))
    entry = [{"name": "c0", "resourceClaimTemplateName": "t"}]
    status = {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "pod-c0-x"}]}
    w.show(o.pod("pod", resourceClaims=entry, status=status))
    assert isinstance(w.decide("pod"), NotServed)


def test_order_of_pods() -> None:
    w = two()
    w.show(
        o.pod("late", created="2026-01-02T00:00:00Z"),
        o.pod("b"),
        o.pod("a"),
        o.pod("first", created="2026-01-03T00:00:00Z", priority=5),
    )
    assert [name for _, name in w.engine.pods()] == ["first", "a", "b", "late"]


def test_unknown_fields_of_a_claim_fail_closed() -> None:
    raw = o.claim("pod", "A", requests=[o.request(future={"a": 1})])
    w = two(raw, o.pod("pod"))
    refused = w.decide("pod")
    assert isinstance(refused, Unplaced)
    assert refused.reason is Reason.UNSUPPORTED
    assert "spec.devices.requests[0].exactly.future" in refused.message


def test_missing_device_class_is_named() -> None:
    w = nics()
    refused = w.refuse("pod", "A", requests=[o.request("gpu", "gone"), o.request("nic")])
    assert refused.message.startswith("claim pod: DeviceClass gone does not exist; create it")
    changes = w.show(o.device_class("gone"))
    assert ("default", "pod") in changes.pods
    assert isinstance(w.decide("pod"), Placed)


def test_messages_name_no_claim_of_others() -> None:
    w = nics(
        o.allocated(o.claim("secret-claim", "secret-subnet", namespace="secret-namespace"), "eth1"),
        o.allocated(o.claim("odd-claim", namespace="secret-namespace"), "eth2"),
    )
    refused = w.refuse("pod", "A")
    text = f"{refused.message} {refused.diagnosis}"
    assert "secret" not in text
    assert "odd-claim" not in text
    assert "subnet=A" in text


def test_writes_wait_for_assumed_claims_of_the_same_pod() -> None:
    w = two(o.claim("shared", "A"), o.claim("own", "A"))
    w.show(o.pod("first", ["shared"]), o.pod("second", ["shared", "own"]))
    first = w.assume_for("first")
    second = w.decide("second")
    assert isinstance(second, Placed)
    assert second.node == first.node
    assert second.after == {first.writes[0].uid}
