"""Any JSON at any place of any object: understood, or refused for that object alone; never an exception."""

from __future__ import annotations

import copy
from typing import Any

from harness import objects as o
from harness.worlds import World
from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.engine import Applied, Placed

JSON = dict[str, Any]
GARBAGE: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        ["", "x", "1", "-5", "1e400", "9223372036854775808", "NoSchedule", "All", "\x00", "é" * 300]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "name", "key", "cel"]), inner)
    ),
    max_leaves=6,
)
POLICY = {"default": "1", "validRange": {"min": "1", "max": "8", "step": "1"}}
RICH = o.device(
    "d0",
    None,
    attributes={"a": {"string": "x"}, "b": {"version": "1.0.0"}},
    capacity={o.SLOTS: {"value": "8", "requestPolicy": POLICY}},
    consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
    bindingConditions=["ready"],
    bindingFailureConditions=["failed"],
)
OBJECTS: list[JSON] = [
    o.node("bad", {"a": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
    o.device_class("bad", [o.nic("A")]),
    o.metadata_slice([o.SUBNET, o.PKEY], pool="bad"),
    o.device_slice([RICH], pool="bad"),
    o.device_slice(None, pool="bad", sharedCounters=[{"name": "s", "counters": {"c": {"value": "1"}}}]),
    o.allocated(
        o.claim(
            "bad",
            "A",
            requests=[
                o.request(
                    "r",
                    tolerations=[{"key": "k", "operator": "Exists"}],
                    selectors=[o.cel("true")],
                    slots="1",
                ),
                {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": o.CLASS}]},
            ],
            constraints=[{"matchAttribute": "a/b"}],
        ),
        "eth2",
        pool="bad",
    ),
    o.claim("bad", "A", annotations={"sharingaffinity.dev/allocation": '{"results": [{"keys": {}}]}'}),
    o.pod(
        "bad",
        status={"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "x"}]},
        nodeSelector={"a": "b"},
        tolerations=[{"key": "k", "operator": "Exists"}],
        initContainers=[{"name": "i", "resources": {"requests": {"cpu": "1"}}}],
        topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
    ),
    {
        "kind": "DeviceTaintRule",
        "metadata": o.meta("bad"),
        "spec": {
            "deviceSelector": {"driver": "bad", "pool": "bad"},
            "taint": {"key": "k", "effect": "NoExecute"},
        },
    },
]


# A taint rule that selects everything is no garbage: it taints everything.
TOLERANT = o.request(tolerations=[{"operator": "Exists"}])


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        found += [p for k, v in value.items() for p in paths(v, (*path, k))]
    elif isinstance(value, list):
        found += [p for i, v in enumerate(value) for p in paths(v, (*path, i))]
    return found


def replaced(raw: JSON, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    raw = copy.deepcopy(raw)
    at: Any = raw
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return raw


@given(data=st.data())
def test_garbage_is_refused_alone(data: st.DataObject) -> None:
    w = World(
        o.node(),
        o.node("bad"),
        o.device_class(),
        o.metadata_slice(),
        o.device_slice(),
        o.claim("good", "A", requests=[TOLERANT]),
        o.pod("good"),
    )
    for _ in range(3):
        raw = data.draw(st.sampled_from(OBJECTS))
        path = data.draw(st.sampled_from([p for p in paths(raw) if p and p != ("kind",)]))
        bad = replaced(raw, path, data.draw(GARBAGE))
        w.engine.observe(Applied(bad), w.now)
    w.extract()
    for key in w.engine.pods():
        w.engine.decide(key, w.now, w.new_uuid)
    w.engine.releases(w.now)
    w.engine.lock_table()
    w.engine.misplaced()
    w.engine.rebuild()
    w.extract()
    decision = w.decide("good")
    assert isinstance(decision, Placed), decision
