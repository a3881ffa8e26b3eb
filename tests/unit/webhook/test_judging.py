"""What admission says about a slice, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from kubernetes_cel import Environment
from sharing_affinity.api import MetadataSlice, parse_metadata_slice
from sharing_affinity.runtime.kinds import METADATA
from sharing_affinity.runtime.reflector import Removal, Upsert
from sharing_affinity.webhook import judging
from sharing_affinity.webhook.peers import Peers

ENVIRONMENT = Environment.admission()
COSTLY = "object.a.filter(x, x != '').size() > 0 ? 'a' : ''"


def raw(name: str, keys: dict[str, str], generation: int = 1, pool: str = "p") -> dict[str, Any]:
    return {
        "apiVersion": "sharingaffinity.dev/v1alpha1",
        "kind": "SharingAffinitySlice",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {
            "driver": "d",
            "allNodes": True,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 2},
            "sharingAffinity": [{"name": key, "expression": text} for key, text in keys.items()],
        },
    }


def peer(name: str, keys: dict[str, str], generation: int = 1) -> MetadataSlice:
    return parse_metadata_slice(raw(name, keys, generation))


def said(new: dict[str, Any], *peers: MetadataSlice, old: dict[str, Any] | None = None) -> list[str]:
    return list(map(str, judging.judge(new, old, peers, ENVIRONMENT)))


def test_a_good_slice() -> None:
    assert said(raw("a", {"k": "object.k"}), peer("b", {"l": "object.l"})) == []


def test_every_bad_field_is_named() -> None:
    found = said(raw("a", {"x": "1", "y": "object.", "z": "object.z"}))
    assert [text.partition(": ")[0] for text in found] == [
        "spec.sharingAffinity[0].expression",
        "spec.sharingAffinity[1].expression",
    ]


def test_a_clash_names_both_slices_and_the_second_key() -> None:
    assert said(raw("b", {"x": "''", "k": "''"}), peer("a", {"k": "''"})) == [
        'spec.sharingAffinity[1].name: Duplicate value: "k": pool p: '
        "sharing-affinity key k is declared twice (slices a and b)"
    ]


@pytest.mark.parametrize("other", [peer("a", {"k": "''"}, generation=2), peer("b", {"k": "''"})])
def test_no_clash_with_another_generation_or_with_itself(other: MetadataSlice) -> None:
    assert said(raw("b", {"k": "''"}), other) == []


def test_a_clash_between_peers_is_not_the_fault_of_a_third() -> None:
    assert said(raw("c", {"x": "''"}), peer("a", {"k": "''"}), peer("b", {"k": "''"})) == []


def test_the_budget_is_shared_by_the_generation() -> None:
    half = {f"k{n}": COSTLY for n in range(4)}
    assert said(raw("b", {"x": COSTLY}), peer("a", half)) == []
    (found,) = said(raw("b", {f"x{n}": COSTLY for n in range(4)}), peer("a", half))
    assert found.startswith("spec.sharingAffinity: Forbidden: pool p: its extractors may cost 1146992, over")


def test_an_unbounded_estimate_is_said_once() -> None:
    text = "object.a.map(x, object.b.map(y, object.c.map(z, object.d.map(u, x)))).size() > 0 ? 'a' : ''"
    (found,) = said(raw("a", {"k": text}))
    assert "spec.sharingAffinity[0].expression: Forbidden: too complex, exceeds cost limit" in found


def test_only_a_change_of_spec_is_judged() -> None:
    bad = raw("a", {"k": "nonsense("})
    relabelled = {**bad, "metadata": {**bad["metadata"], "finalizers": []}}
    assert said(relabelled, old=bad) == []
    assert said(bad, old=raw("a", {"k": "''"})) != []


def test_the_message_is_the_api_servers() -> None:
    findings = judging.judge(raw("a", {"x": "1", "y": "2"}), None, (), ENVIRONMENT)
    text = judging.message("a", findings)
    assert text.startswith(
        'SharingAffinitySlice.sharingaffinity.dev "a" is invalid: [spec.sharingAffinity[0]'
    )
    assert text.endswith("]")
    single = judging.message("a", findings[:1])
    assert single.startswith(
        'SharingAffinitySlice.sharingaffinity.dev "a" is invalid: spec.sharingAffinity[0]'
    )


async def test_peers_follow_their_feed() -> None:
    peers = Peers()
    await peers.deliver(METADATA, [Upsert(raw("a", {"k": "''"})), Upsert(raw("b", {"l": "''"}))])
    assert {one.meta.name for one in peers.of("d", "p")} == {"a", "b"}
    # The same name in another pool: deleted and made anew between two events.
    await peers.deliver(METADATA, [Upsert(raw("a", {"k": "''"}, pool="q"))])
    await peers.deliver(METADATA, [Removal("SharingAffinitySlice", "", "b", "uid-b")])
    assert peers.of("d", "p") == ()
    assert [one.meta.name for one in peers.of("d", "q")] == ["a"]
    # One that cannot be read is left out, and takes its earlier version along.
    await peers.deliver(METADATA, [Upsert({**raw("a", {}), "spec": {"driver": 3}})])
    assert peers.of("d", "q") == ()
