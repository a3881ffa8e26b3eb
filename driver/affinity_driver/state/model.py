"""The driver's memory as values: claims, their shares of devices, and the rules for adding one; pure.

A share is one result of a claim's allocation on one of our devices. The affinity lock of a device is not
stored: it is what the prepared shares on it say. Shares with admin access hold nothing and are bound by
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from affinity_driver.claims.errors import IncompatibleError
from affinity_driver.json_types import JsonObject
from sharing_affinity.api import quantity
from sharing_affinity.api.keys import shorten


class Phase(StrEnum):
    """How far a claim got. Both phases hold their devices."""

    STARTED = "Started"
    """Work on the hardware may have begun; after a crash it is undone or done again."""
    COMPLETED = "Completed"
    """Prepared, with its CDI file."""


@dataclass(frozen=True, slots=True)
class Share:
    """One allocation result: which device, under which share ID, with which affinity keys and private
    settings.
    """

    request: str
    pool: str
    device: str
    share_id: str | None
    keys: Mapping[str, str]
    settings: JsonObject
    consumed: Mapping[str, str] = field(default_factory=dict)
    admin: bool = False

    @property
    def result(self) -> tuple[str, str, str, str | None]:
        """What the allocation said; the rest was derived from the claim's config."""
        return (self.request, self.pool, self.device, self.share_id)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """One claim in the checkpoint."""

    uid: str
    namespace: str
    name: str
    phase: Phase
    shares: tuple[Share, ...]

    @property
    def holders_first(self) -> tuple[Share, ...]:
        """The shares, those with admin access last: of one dedicated device, what its holder needs counts."""
        return tuple(sorted(self.shares, key=lambda share: share.admin))

    def same_allocation(self, other: PreparedClaim) -> bool:
        """Whether both hold the same results; a claim freed and allocated again keeps its UID."""
        return {share.result for share in self.shares} == {share.result for share in other.shares}


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything prepared on this node, by claim UID, and the boot during which it was."""

    boot_id: str
    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)

    def with_claim(self, claim: PreparedClaim) -> NodeState:
        """The state with ``claim`` added or replaced."""
        return replace(self, claims={**self.claims, claim.uid: claim})

    def without(self, uid: str) -> NodeState:
        """The state without that claim."""
        return replace(self, claims={key: value for key, value in self.claims.items() if key != uid})

    def holders(self, device: str, besides: str | None = None) -> list[tuple[PreparedClaim, Share]]:
        """The shares that hold ``device``, those of claim ``besides`` left out."""
        return [
            (claim, share)
            for uid, claim in self.claims.items()
            if uid != besides
            for share in claim.shares
            if share.device == device and not share.admin
        ]

    def after_reboot(self, boot_id: str) -> NodeState:
        """The state as a new boot finds it: claims still hold, but nothing of them is set up any more."""
        if boot_id == self.boot_id:
            return self
        claims = {uid: replace(claim, phase=Phase.STARTED) for uid, claim in self.claims.items()}
        return NodeState(boot_id, claims)


def check_compatible(
    state: NodeState, claim: PreparedClaim, capacities: Mapping[str, Mapping[str, str]]
) -> None:
    """The driver's backstop: raise IncompatibleError when ``claim`` cannot join who holds its devices.

    ``capacities`` maps each device to its capacities. The rules, for every share without admin access:

    * the keys equal those of every holder of the device, and of the claim's own other shares on it;
    * no two shares of a device carry one share ID, and a share without one (a dedicated device) is alone;
    * what all shares consume fits the device.
    """
    for share in claim.shares:
        if not share.admin:
            mine = [
                (claim, other)
                for other in claim.shares
                if other is not share and other.device == share.device
            ]
            others = [*state.holders(share.device, besides=claim.uid), *mine]
            _check_share(claim.uid, share, others, capacities[share.device])


def _check_share(
    own: str, share: Share, others: list[tuple[PreparedClaim, Share]], capacity: Mapping[str, str]
) -> None:
    others = [(claim, other) for claim, other in others if not other.admin]
    for key in sorted(share.keys.keys() | {key for _, other in others for key in other.keys}):
        differing = {claim.uid for claim, other in others if other.keys.get(key) != share.keys.get(key)}
        if differing:
            mine = share.keys.get(key)
            needs = f'needs {key}="{shorten(mine)}"' if mine is not None else f"has no {key}"
            raise IncompatibleError(
                f"device {share.device} is in use with another {key} by {_count(differing, own)}; "
                f"this claim {needs}",
                key,
                tuple(sorted(differing)),
            )
    for claim, other in others:
        if share.share_id is None or other.share_id is None or share.share_id == other.share_id:
            holder = _count({claim.uid}, own)
            text = f"device {share.device} is still held by {holder} and cannot be prepared twice"
            raise IncompatibleError(text, None, (claim.uid,))
    for name, size in capacity.items():
        total = sum(
            (_amount(each.consumed.get(name)) for each in (share, *(other for _, other in others))),
            Fraction(0),
        )
        if total > _amount(size):
            holders = tuple(sorted({claim.uid for claim, _ in others}))
            text = f"device {share.device} has not enough {name} left beside {_count(holders, own)}"
            raise IncompatibleError(text, None, holders)


def _amount(text: str | None) -> Fraction:
    """A stored amount; a negative one is nobody's credit."""
    return max(quantity.parse(text).amount, Fraction(0)) if text is not None else Fraction(0)


def _count(holders: Collection[str], own: str) -> str:
    """How many claims these are, beside the one (``own``) whose requests may be in each other's way."""
    number = len(set(holders) - {own})
    if not number and own in holders:
        return "another request of this claim"
    return f"{number} prepared claim" + ("" if number == 1 else "s")
