"""The ledger: everything about a device follows from its holders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.api import quantity
from sharing_affinity.locks import NOBODY, Hold, Ledger, LockState, derive

A = (("subnet", "A"),)
B = (("subnet", "B"),)
ETH1 = ("d", "p", "eth1")
ETH2 = ("d", "p", "eth2")


def hold(uid: str, keys: tuple[tuple[str, str], ...] | None = A, share: str = "s", slots: int = 1) -> Hold:
    return Hold(uid, "ns", uid, "r", share, {"slots": quantity.from_int(slots)}, keys)


def test_nobody_is_clean() -> None:
    assert derive([]) is NOBODY
    assert Ledger().occupancy(ETH1).state is LockState.CLEAN


def test_equal_holders_lock_and_add_up() -> None:
    found = derive([hold("1"), hold("2", slots=3)])
    assert (found.state, found.keys) == (LockState.LOCKED, A)
    assert found.consumed == {"slots": quantity.from_int(4)}


def test_one_unknown_holder_is_enough() -> None:
    assert derive([hold("1"), hold("2", None)]).state is LockState.UNRECONSTRUCTABLE


def test_holders_that_disagree_lock_nothing() -> None:
    found = derive([hold("1"), hold("2", B)])
    assert (found.state, found.keys) == (LockState.UNRECONSTRUCTABLE, ())
    assert "different keys" in found.doubt


def test_dedicated_and_shared() -> None:
    assert derive([hold("1", share="")]).dedicated
    assert not derive([hold("1", share="")]).shared
    assert derive([hold("1")]).shared


def test_dropping_twice_is_dropping_once() -> None:
    ledger = Ledger()
    ledger.place("1", [(ETH1, hold("1")), (ETH1, hold("1")), (ETH2, hold("1"))])
    ledger.place("2", [(ETH1, hold("2"))])
    assert ledger.drop("1") == {ETH1, ETH2}
    assert ledger.drop("1") == frozenset()
    assert ledger.occupancy(ETH1).holds == (hold("2"),)
    assert ledger.claims_in(("d", "p")) == ("2",)
    assert (ledger.claim_of("1"), ledger.claim_of("2")) == (None, ("ns", "2"))
    ledger.drop("2")
    assert list(ledger.devices()) == list(ledger.pools()) == list(ledger.claims()) == []


def test_placing_replaces() -> None:
    ledger = Ledger()
    ledger.place("1", [(ETH1, hold("1"))])
    assert ledger.place("1", [(ETH2, hold("1"))]) == {ETH1, ETH2}
    assert ledger.occupancy(ETH1) is NOBODY


def test_placing_the_same_again_changes_nothing() -> None:
    ledger = Ledger()
    ledger.place("1", [(ETH1, hold("1")), (ETH2, hold("1"))])
    before = ledger.occupancy(ETH1)
    assert ledger.place("1", [(ETH1, hold("1")), (ETH2, hold("1"))]) == frozenset()
    assert ledger.occupancy(ETH1) is before
    for entries in ([(ETH1, hold("1"))], [(ETH2, hold("1")), (ETH1, hold("1"))], [(ETH1, hold("1", B))] * 2):
        assert ledger.place("1", entries)
        assert ledger.devices_of("1") == tuple(device for device, _ in entries)


STEPS = st.lists(
    st.tuples(
        st.sampled_from("123"),
        st.lists(st.tuples(st.sampled_from([ETH1, ETH2]), st.sampled_from([A, B, None])), max_size=3),
    ),
    max_size=20,
)


@given(STEPS)
def test_a_ledger_is_the_last_word_of_every_claim(
    steps: list[tuple[str, list[tuple[tuple[str, str, str], object]]]],
) -> None:
    ledger = Ledger()
    last: dict[str, list[tuple[tuple[str, str, str], Hold]]] = {}
    for uid, wanted in steps:
        holds = [(device, hold(uid, keys)) for device, keys in wanted]  # type: ignore[arg-type]
        last[uid] = holds
        if holds:
            ledger.place(uid, holds)
        else:
            ledger.drop(uid)
    for device in (ETH1, ETH2):
        expected = derive(h for holds in last.values() for d, h in holds if d == device)
        found = ledger.occupancy(device)
        assert (found.state, found.keys, found.consumed) == (expected.state, expected.keys, expected.consumed)
