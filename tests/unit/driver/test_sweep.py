"""Claims that nobody will ever unprepare, and those that only look so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.driver_rig import Rig, nic_claim

from affinity_driver.claims.errors import ClaimChangedError
from affinity_driver.claims.read import read_claim
from affinity_driver.kube import ApiError
from affinity_driver.state.model import PreparedClaim
from affinity_driver.state.sweep import Sweeper

DRIVER = "nic.sharingaffinity.dev"


class Claims:
    """What the API server answers for each claim, by name."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    def allocated(self, claim: PreparedClaim, driver: str = DRIVER) -> None:
        results = [
            {"driver": driver, "request": share.request, "pool": share.pool, "device": share.device}
            | ({"shareID": share.share_id} if share.share_id else {})
            for share in claim.shares
        ]
        status = {"allocation": {"devices": {"results": results}}}
        self.answers[claim.name] = {"metadata": {"uid": claim.uid}, "status": status}

    def get(self, path: str, timeout: float = 0) -> Any:
        answer = self.answers[path.rpartition("/")[2]]
        if isinstance(answer, ApiError):
            raise answer
        return answer


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig.make(tmp_path)


@pytest.fixture
def claims() -> Claims:
    return Claims()


def sweeper(rig: Rig, claims: Claims) -> Sweeper:
    def unprepare(claim: PreparedClaim) -> bool:
        return rig.state.unprepare(claim.uid, seen=claim)

    return Sweeper(claims, DRIVER, rig.state.snapshot, unprepare, 600.0)  # type: ignore[arg-type]


def test_claims_that_went_to_another_node_or_to_nobody(rig: Rig, claims: Claims) -> None:
    """A claim of its own outlives its pods; a kubelet that lost its state never unprepares it here."""
    kept, moved, freed, others = (nic_claim(uid) for uid in ("kept", "moved", "freed", "others"))
    for claim in (kept, moved, freed, others):
        rig.prepare(claim)
    claims.allocated(kept)
    (share,) = moved.shares
    claims.allocated(replace(moved, shares=(replace(share, pool="node-b", share_id="new"),)))
    claims.answers[freed.name] = {"metadata": {"uid": "freed"}}
    claims.allocated(others, driver="another.example.com")
    made = sweeper(rig, claims)
    assert made.sweep() == []
    assert sorted(made.sweep()) == ["freed", "moved", "others"]
    assert set(rig.state.snapshot().claims) == {"kept"}


def test_a_claim_that_came_back_meanwhile_is_left_alone(rig: Rig, claims: Claims) -> None:
    old, new = nic_claim("1"), nic_claim("1", "a", "eth2")
    rig.prepare(old)
    claims.answers[old.name] = {"metadata": {"uid": "1"}}
    made = sweeper(rig, claims)
    made.sweep()

    def back(claim: PreparedClaim) -> bool:
        rig.prepare(new)  # while the sweep was on its way
        return rig.state.unprepare(claim.uid, seen=claim)

    made._unprepare = back
    made.sweep()
    assert [share.device for share in rig.state.snapshot().claims["1"].shares] == ["eth2"]
    assert rig.programmed("eth2") == {"subnet": "a"}


def test_a_404_that_is_not_about_the_claim_proves_nothing(rig: Rig, claims: Claims) -> None:
    """A balancer without its backend, or an API server without the API, knows nothing of any claim."""
    gone, unknown = nic_claim("gone"), nic_claim("unknown")
    for claim in (gone, unknown):
        rig.prepare(claim)
    claims.answers[gone.name] = ApiError(404, "NotFound", f'resourceclaims "{gone.name}" not found')
    claims.answers[unknown.name] = ApiError(404, "", "404 page not found")
    made = sweeper(rig, claims)
    made.sweep()
    made.sweep()
    assert set(rig.state.snapshot().claims) == {"unknown"}
    with pytest.raises(ClaimChangedError, match="cannot be read: 404"):
        read_claim(claims, "default", unknown.name, "unknown", 1.0)  # type: ignore[arg-type]
