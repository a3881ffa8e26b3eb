"""The checkpoint reads back what was written, and no bytes whatever make it fail otherwise than it says."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinity_driver.state.checkpoint import CheckpointError, decode, encode
from affinity_driver.state.model import NodeState, Phase, PreparedClaim, Share

texts = st.text(max_size=12)
shares = st.builds(
    Share,
    request=texts,
    pool=texts,
    device=texts,
    share_id=st.none() | texts,
    keys=st.dictionaries(texts, texts, max_size=3),
    settings=st.dictionaries(texts, st.integers() | texts, max_size=3),
    consumed=st.dictionaries(texts, texts, max_size=2),
    admin=st.booleans(),
)
claims = st.builds(
    PreparedClaim,
    uid=texts,
    namespace=texts,
    name=texts,
    phase=st.sampled_from(Phase),
    shares=st.lists(shares, max_size=3).map(tuple),
)
states = st.builds(
    lambda boot, items: NodeState(boot, {claim.uid: claim for claim in items}),
    texts,
    st.lists(claims, max_size=4),
)


@given(states)
def test_round_trip(state: NodeState) -> None:
    assert decode(encode(state)) == state


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode(data)


@given(states, st.data())
def test_any_changed_byte_is_noticed(state: NodeState, data: st.DataObject) -> None:
    good = encode(state)
    place = data.draw(st.integers(0, len(good) - 1))
    changed = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    with suppress(CheckpointError):
        # A change of the head that means the same, such as another white space, is none.
        assert decode(changed) == state


@given(states, st.data())
def test_any_cut_is_noticed(state: NodeState, data: st.DataObject) -> None:
    good = encode(state)
    with pytest.raises(CheckpointError):
        decode(good[: data.draw(st.integers(0, len(good) - 1))])
