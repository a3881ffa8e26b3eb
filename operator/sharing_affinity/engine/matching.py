"""Which pools have devices for a request, kept up to date per *signature*.

A signature is the selectors of class and request together; requests of one kind share it. For each signature
the index knows the verdict on every device, which affinity and stock pools match at all, and where those are
that may take a request (:mod:`openings`). So a decision goes straight to nodes that may do: its cost does not
grow with those that cannot.

A decision evaluates no selector, as it evaluates no extractor (H10). It names the signatures it needs
(:meth:`MatchIndex.require`); what is not known about them is queued, and worked off by
:meth:`MatchIndex.work` one selector or one pool at a time, outside of the decision. Only the everyday rest is
brought up to date at once: a few pools whose holders have changed, or whose devices are known already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sharing_affinity.allocator import Candidate, NodePool, Selectors
from sharing_affinity.allocator.prepare import Verdict
from sharing_affinity.api import DeviceClass, RequestSpec
from sharing_affinity.engine.openings import SetId, Whereabouts, place_of
from sharing_affinity.locks import Ledger
from sharing_affinity.pools import Pool, PoolDevice

Signature = tuple[str, ...]
PoolId = tuple[str, str]

AT_ONCE: Final = 512
"""Devices looked at again within a decision; more are left to :meth:`MatchIndex.work`."""
_ENTRIES: Final = 512
_LEAST_ENTRIES: Final = 32
_POOLS: Final = 131_072
"""Pools that all signatures together may remember, as long as :data:`_LEAST_ENTRIES` are allowed."""
_TURN: Final = 1_000_000
"""CEL cost after which the next signature in the queue has its turn: an evaluation's limit, and more than a
sensible selector costs on all devices of a large cluster."""


class NotIndexed(Exception):  # noqa: N818 - an answer, not an error
    """A signature that is still being looked up, and has been queued."""


class TooManySignatures(Exception):  # noqa: N818 - as above
    """More signatures at once than are remembered."""


def signature(device_class: DeviceClass, spec: RequestSpec) -> Signature:
    return device_class.selectors + spec.selectors


@dataclass(slots=True)
class Matches:
    """Everything known about one signature. Pools not listed match no device.

    ``sets`` are the usable affinity pools by extractor set; ``elsewhere`` names those of them that do not
    belong to one node. ``candidates`` remembers, per pool, what a search on one node works on.
    """

    verdicts: dict[PoolId, Mapping[str, Verdict]] = field(default_factory=dict)
    affinity: dict[PoolId, None] = field(default_factory=dict)
    stock: dict[PoolId, None] = field(default_factory=dict)
    sets: dict[SetId, dict[PoolId, None]] = field(default_factory=dict)
    elsewhere: dict[PoolId, None] = field(default_factory=dict)
    where: Whereabouts = field(default_factory=Whereabouts)
    candidates: dict[PoolId, tuple[NodePool, tuple[Candidate, ...]]] = field(default_factory=dict)
    changed: dict[PoolId, None] = field(default_factory=dict)
    touched: dict[PoolId, None] = field(default_factory=dict)
    equal: dict[tuple[tuple[str, Verdict], ...], Mapping[str, Verdict]] = field(default_factory=dict)
    """Most pools of a cluster look alike: their verdicts are kept once."""


class MatchIndex:
    """Matches by signature over pools and a ledger that their owner changes."""

    def __init__(
        self, pools: Mapping[PoolId, Pool], ledger: Ledger, selectors: Selectors | None = None
    ) -> None:
        self._pools = pools
        self._ledger = ledger
        self._selectors = selectors or Selectors()
        self._entries: OrderedDict[Signature, Matches] = OrderedDict()
        self._queue: OrderedDict[Signature, Iterator[int] | None] = OrderedDict()
        self._spent = 0
        self.finished = 0
        """How often a signature that was waited for has become known."""

    def pool_changed(self, pool: PoolId) -> None:
        """Devices, validity or extractors may be other ones."""
        most = len(self._pools) + AT_ONCE
        outdated = []
        for key, entry in self._entries.items():
            entry.changed[pool] = None
            if len(entry.changed) > most and key not in self._queue:
                outdated.append(key)
        # Not asked for while more pools came and went than there are: what is known is worth nothing.
        for key in outdated:
            del self._entries[key]

    def pool_touched(self, pool: PoolId) -> None:
        """Holders of its devices may be other ones."""
        for entry in self._entries.values():
            entry.touched[pool] = None

    # --- what decisions ask ---

    def require(self, wanted: Iterable[Signature]) -> None:
        """Make sure that these are known, together. Raises :class:`NotIndexed` when the stage has to work
        first, :class:`TooManySignatures` when they will never be known together."""
        signatures = dict.fromkeys(wanted)
        if len(signatures) > self._limit():
            raise TooManySignatures
        missing = [key for key in signatures if not self._is_current(key)]
        for key in missing:
            self._queue.setdefault(key, None)
        if missing:
            raise NotIndexed

    def follow(self, wanted: Iterable[Signature]) -> None:
        """Bring up to date at once what can be, before the next decision asks for it."""
        for key in wanted:
            self._is_current(key)

    def matches(self, device_class: DeviceClass, spec: RequestSpec) -> Matches:
        """What is known about a request's signature. Raises :class:`NotIndexed`."""
        key = signature(device_class, spec)
        if not self._is_current(key):
            self._queue.setdefault(key, None)
            raise NotIndexed
        return self._entries[key]

    def candidates(
        self, node_pool: NodePool, device_class: DeviceClass, spec: RequestSpec
    ) -> tuple[Candidate, ...]:
        """The devices of a pool on a node that a request's selectors match, or fail on. Raises
        :class:`NotIndexed`."""
        entry = self.matches(device_class, spec)
        pool = node_pool.pool
        verdicts = entry.verdicts.get(pool.id)
        if verdicts is None:
            return ()
        known = entry.candidates.get(pool.id)
        if known is not None and known[0] is node_pool:
            return known[1]
        found = []
        for device in node_pool.devices:
            verdict = verdicts.get(device.name, False)
            if isinstance(verdict, str) or (verdict and device.name not in node_pool.elsewhere):
                error = "" if verdict is True else f"device {device.name}: {verdict}"
                found.append(Candidate((*pool.id, device.name), device, pool, error))
        entry.candidates[pool.id] = (node_pool, tuple(found))
        return entry.candidates[pool.id][1]

    def _is_current(self, key: Signature) -> bool:
        """Whether all is known about a signature, or could be brought up to date at once."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        self._entries.move_to_end(key)
        if not entry.changed and not entry.touched:
            return True
        if len(entry.changed) + len(entry.touched) > AT_ONCE:
            return False
        pools = [self._pools[i] for i in (*entry.changed, *entry.touched) if i in self._pools]
        if len(pools) > 1 and sum(len(pool.listed) for pool in pools) > AT_ONCE:
            return False
        for pool_id in tuple(entry.changed):
            pool = self._pools.get(pool_id)
            if pool is not None and any(self._unknown(key, pool.driver, d) for d in pool.listed):
                return False
            self._judge_pool(entry, key, pool_id)
        for pool_id in tuple(entry.touched):
            self._locate(entry, pool_id)
        return True

    # --- what the stage works off ---

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """How many steps of :meth:`work` remain, at the least."""
        return sum(self._remaining(key) for key in self._queue)

    def _remaining(self, key: Signature) -> int:
        entry = self._entries.get(key)
        return max(1, len(self._pools if entry is None else entry.changed))

    def work(self) -> None:
        """One step for the first signature of the queue: one evaluation, or one pool."""
        if not self._queue:
            return
        key = next(iter(self._queue))
        steps = self._queue[key] = self._queue[key] or self._steps(key)
        cost = next(steps, None)
        self._spent += cost or 0
        if cost is None:
            del self._queue[key]
            self.finished += 1
        elif self._spent > _TURN:
            # Whoever is costly waits for the others now and then.
            self._queue.move_to_end(key)
        else:
            return
        self._spent = 0

    def _steps(self, key: Signature) -> Iterator[int]:
        """Everything to do for one signature, one step at a time, with what each of them cost.

        Pools may change between two steps. A pool is judged in one step, once no selector is left to
        evaluate.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = self._entries[key] = Matches(changed=dict.fromkeys(self._pools))
        while entry.changed or entry.touched:
            if not entry.changed:
                self._locate(entry, next(iter(entry.touched)))
                yield 1
                continue
            pool_id = next(iter(entry.changed))
            pool = self._pools.get(pool_id)
            if pool is not None:
                for device in pool.listed:
                    while (expression := self._unknown(key, pool.driver, device)) is not None:
                        yield self._selectors.evaluate(expression, pool.driver, device.device)
            # A decision may have judged it between two steps, once its last selector was evaluated.
            if self._pools.get(pool_id) is pool and pool_id in entry.changed:
                self._judge_pool(entry, key, pool_id)
            yield 1

    def _limit(self) -> int:
        return min(_ENTRIES, max(_LEAST_ENTRIES, _POOLS // (len(self._pools) + 1)))

    def _make_room(self) -> None:
        """Forget what has not been asked for the longest, but nothing that is being worked on."""
        excess = len(self._entries) + 1 - self._limit()
        for key in [k for k in self._entries if k not in self._queue][: max(0, excess)]:
            del self._entries[key]

    # --- which devices match ---

    def _unknown(self, key: Signature, driver: str, device: PoolDevice) -> str | None:
        """The first selector that has to be evaluated before the device can be judged."""
        for expression in key:
            verdict = self._selectors.known(expression, driver, device.device)
            if verdict is None:
                return expression
            if verdict is not True:
                return None
        return None

    def _judge_pool(self, entry: Matches, key: Signature, pool_id: PoolId) -> None:
        del entry.changed[pool_id]
        entry.touched[pool_id] = None
        entry.verdicts.pop(pool_id, None)
        entry.candidates.pop(pool_id, None)
        for known in (entry.affinity, entry.stock, entry.elsewhere):
            known.pop(pool_id, None)
        for extractors in [e for e, pools in entry.sets.items() if pool_id in pools]:
            del entry.sets[extractors][pool_id]
            if not entry.sets[extractors]:
                del entry.sets[extractors]
        pool = self._pools.get(pool_id)
        if pool is None:
            return
        verdicts = tuple(
            (device.name, verdict)
            for device in pool.listed
            if (verdict := self._judge(key, pool.driver, device)) is not False
        )
        if not verdicts:
            return
        if len(entry.equal) > len(self._pools):
            entry.equal.clear()
        entry.verdicts[pool_id] = entry.equal.setdefault(verdicts, dict(verdicts))
        (entry.affinity if pool.affinity else entry.stock)[pool_id] = None
        if pool.affinity and not pool.node_name:
            entry.elsewhere[pool_id] = None
        if pool.affinity and pool.usable:
            entry.sets.setdefault((pool.driver, pool.extractors), {})[pool_id] = None

    def _judge(self, key: Signature, driver: str, device: PoolDevice) -> Verdict:
        for expression in key:
            verdict = self._selectors.matches(expression, driver, device.device)
            if verdict is not True:
                return verdict
        return True

    # --- where they are, and in which state ---

    def _locate(self, entry: Matches, pool_id: PoolId) -> None:
        del entry.touched[pool_id]
        verdicts = entry.verdicts.get(pool_id)
        pool = self._pools.get(pool_id)
        if verdicts is None or pool is None or not pool.affinity:
            entry.where.put(pool_id, None)
        else:
            entry.where.put(pool_id, place_of(pool, verdicts, self._ledger))
