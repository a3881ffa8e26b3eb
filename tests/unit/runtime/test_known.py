"""`Known`: lists and watch events become changes, and nothing is ever a ghost.

The property compares with the simplest thing that could be right: a server whose history is a list of writes.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.runtime.kinds import CLAIMS
from sharing_affinity.runtime.reflector import Known, ListBegun, ListEnded, Removal, Upsert


def obj(name: str, uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}}


def listed(known: Known, items: list[dict[str, Any]], version: int, page: int = 2) -> list[Any]:
    known.begin()
    changes: list[Any] = []
    for start in range(0, len(items), page):
        changes += known.page(items[start : start + page])
    return changes + known.end(str(version))


def test_a_relist_yields_the_deletions_it_implies() -> None:
    known = Known(CLAIMS)
    listed(known, [obj("a", "1", 1), obj("b", "2", 2), obj("c", "3", 3)], 3)

    changes = listed(known, [obj("b", "2", 2)], 9)

    assert sorted(changes, key=lambda change: change.name) == [
        Removal("ResourceClaim", "ns", "a", "1"),
        Removal("ResourceClaim", "ns", "c", "3"),
    ]
    assert known.resource_version == 9


def test_an_empty_relist_deletes_everything() -> None:
    known = Known(CLAIMS)
    listed(known, [obj("a", "1", 1)], 1)

    assert listed(known, [], 5) == [Removal("ResourceClaim", "ns", "a", "1")]


def test_an_object_replaced_while_we_were_away_is_deleted_and_added() -> None:
    known = Known(CLAIMS)
    listed(known, [obj("a", "1", 1)], 1)

    changes = listed(known, [obj("a", "2", 7)], 7)

    assert changes == [Removal("ResourceClaim", "ns", "a", "1"), Upsert(changes[1].raw)]
    assert changes[1].raw["metadata"]["uid"] == "2"


def test_what_has_not_changed_is_not_told_again() -> None:
    known = Known(CLAIMS)
    items = [obj("a", "1", 1), obj("b", "2", 2)]
    listed(known, items, 2)

    assert listed(known, items, 8) == []


def test_kind_and_version_are_filled_in_since_lists_leave_them_out() -> None:
    known = Known(CLAIMS)

    (change,) = listed(known, [obj("a", "1", 1)], 1)

    assert change.raw["kind"] == "ResourceClaim"
    assert change.raw["apiVersion"] == "resource.k8s.io/v1"


def test_duplicated_and_late_events_are_nothing() -> None:
    known = Known(CLAIMS)
    listed(known, [obj("a", "1", 5)], 5)

    assert known.event({"type": "MODIFIED", "object": obj("a", "1", 5)}) == []
    assert known.event({"type": "MODIFIED", "object": obj("a", "1", 3)}) == []
    assert known.event({"type": "ADDED", "object": obj("a", "0", 2)}) == []
    assert known.event({"type": "DELETED", "object": obj("a", "0", 9)}) == []
    assert len(known) == 1


def test_a_bookmark_moves_the_point_to_resume_from() -> None:
    known = Known(CLAIMS)
    listed(known, [], 5)

    assert known.event({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "44"}}}) == []
    assert known.resource_version == 44


def test_a_kind_that_is_no_longer_served_has_no_objects() -> None:
    known = Known(CLAIMS)
    listed(known, [obj("a", "1", 5)], 5)

    assert known.forget() == [Removal("ResourceClaim", "ns", "a", "1")]


def test_list_marks_are_values() -> None:
    assert ListBegun() == ListBegun()
    assert ListEnded() != ListBegun()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["write", "delete"])), max_size=30),
    st.randoms(use_true_random=False),
)
def test_any_mix_of_lists_and_events_ends_in_the_servers_state(
    writes: list[tuple[str, str]], chance: random.Random
) -> None:
    server: dict[str, dict[str, Any]] = {}
    history: list[dict[str, Any]] = []
    version = uids = 0
    known, mirror = Known(CLAIMS), {}

    def take(changes: list[Any]) -> None:
        for change in changes:
            if isinstance(change, Upsert):
                meta = change.raw["metadata"]
                assert mirror.get(meta["name"], meta)["uid"] == meta["uid"], "replaced without a removal"
                mirror[meta["name"]] = meta
            else:
                assert mirror.pop(change.name)["uid"] == change.uid

    take(listed(known, [], 0))
    sent = 0
    for version, (name, what) in enumerate(writes, 1):
        if what == "write":
            if name not in server:
                uids += 1
                server[name] = obj(name, str(uids), version)
                history.append({"type": "ADDED", "object": obj(name, str(uids), version)})
            else:
                uid = server[name]["metadata"]["uid"]
                server[name] = obj(name, uid, version)
                history.append({"type": "MODIFIED", "object": obj(name, uid, version)})
        elif name in server:
            gone = server.pop(name)["metadata"]
            history.append({"type": "DELETED", "object": obj(name, gone["uid"], version)})
        match chance.choice(["wait", "event", "duplicate", "relist"]):
            case "event":
                for event in history[sent:]:
                    take(known.event(event))
                sent = len(history)
            case "duplicate":
                for event in history[max(0, sent - 2) :]:
                    take(known.event(event))
                sent = len(history)
            case "relist":
                take(listed(known, [dict(item) for item in server.values()], version, chance.randint(1, 3)))
                sent = len(history)
            case _:
                pass
    for event in history[sent:]:
        take(known.event(event))

    assert {name: meta["uid"] for name, meta in mirror.items()} == {
        name: item["metadata"]["uid"] for name, item in server.items()
    }
