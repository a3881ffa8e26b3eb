"""Every device that a lock or a missing key takes out of a decision is counted, visited or not."""

from __future__ import annotations

import pytest
from harness import objects as o
from harness.worlds import World, nics

from sharing_affinity.engine import Excluded, Placed, Unplaced


def many_nodes(count: int) -> World:
    """Nodes with two NICs each; more of them than a diagnosis looks at."""
    raws = [o.device_class()]
    for number in range(count):
        name = f"node-{number:02}"
        raws += [o.node(name), o.metadata_slice(pool=name), o.device_slice(pool=name)]
    return World(*raws)


def test_a_placed_pod_passes_over_locks_of_others() -> None:
    w = nics()
    first = w.try_place("a", "A")
    second = w.try_place("b", "B")

    assert isinstance(first, Placed)
    assert first.excluded == Excluded()
    assert isinstance(second, Placed)
    assert second.excluded == Excluded(conflicts=1)


def test_own_locks_are_no_conflict() -> None:
    w = nics()
    w.try_place("a", "A")
    again = w.try_place("a2", "A")

    assert isinstance(again, Placed)
    assert again.excluded == Excluded()


def test_devices_that_were_locked_alike_before_are_reused() -> None:
    w = nics()
    first = w.try_place("a", "A")
    second = w.try_place("a2", "A")
    both = w.try_place("wide", "A", requests=[o.request(count=2)])

    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert isinstance(both, Placed)
    assert (first.reused, second.reused, both.reused) == (0, 1, 1)


@pytest.mark.parametrize("nodes", [1, 40])
def test_devices_the_index_leaves_out_are_counted(nodes: int) -> None:
    w = many_nodes(nodes)
    for number in range(2 * nodes):
        w.place(f"p{number}", f"net-{number}")
    refused = w.try_place("late", "other")

    assert isinstance(refused, Unplaced)
    assert refused.excluded == Excluded(conflicts=2 * nodes)


@pytest.mark.parametrize("nodes", [1, 40])
def test_without_a_key_every_device_is_out(nodes: int) -> None:
    refused = many_nodes(nodes).try_place("keyless", None)

    assert isinstance(refused, Unplaced)
    assert refused.excluded == Excluded(no_keys=2 * nodes)


def test_what_is_released_is_counted_no_more() -> None:
    w = nics()
    w.place("a", "A")
    w.show(o.claim("a", "A"))
    placed = w.try_place("b", "B")

    assert isinstance(placed, Placed)
    assert placed.excluded == Excluded()


def test_an_evaluation_is_counted_when_it_is_made() -> None:
    """Two extractors over one config are two; the same config asked again is none."""
    w = World(
        o.device_class(),
        o.node(),
        o.metadata_slice([o.SUBNET, {"name": "kind", "expression": "object.kind"}]),
        o.device_slice(),
    )
    extractions = w.engine.extractions
    assert extractions.evaluations == 0
    assert isinstance(w.try_place("a", "A"), Placed)
    assert extractions.evaluations == 2
    assert isinstance(w.try_place("a2", "A"), Placed)
    assert extractions.evaluations == 2
    assert isinstance(w.try_place("b", "B"), Placed)
    assert extractions.evaluations == 4
