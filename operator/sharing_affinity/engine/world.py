"""The engine's memory: what was observed, and everything that follows from it.

Objects are kept as views under their keys. Derived state (pools, holders, loads of nodes, pods by claim) is
brought up to date with every event and can be derived anew at any time; nothing in it has a life of its own.
Assumed allocations sit in the same ledger as observed ones, under the claim's UID, until the claim is seen
allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from sharing_affinity.allocator import Selectors
from sharing_affinity.api import (
    Allocation,
    AllocationResult,
    BadObject,
    Claim,
    DeviceClass,
    KeyMap,
    MetadataSlice,
    Node,
    Pod,
    Record,
    ResourceSlice,
    TaintRule,
    Volume,
    VolumeClaim,
    names,
    parse_allocation,
    parse_claim,
    parse_class,
    parse_metadata_slice,
    parse_node,
    parse_pod,
    parse_slice,
    parse_taint_rule,
    parse_volume,
    parse_volume_claim,
)
from sharing_affinity.api.objects import read_meta
from sharing_affinity.api.reader import Reader
from sharing_affinity.api.reasons import NoticeReason
from sharing_affinity.engine.extracting import Extractions
from sharing_affinity.engine.matching import MatchIndex
from sharing_affinity.engine.published import Published, Refreshed
from sharing_affinity.engine.setbacks import Setbacks
from sharing_affinity.engine.types import (
    Applied,
    Changes,
    Event,
    Gone,
    Notice,
    Options,
    PodKey,
    PoolId,
)
from sharing_affinity.engine.versions import Versions, older
from sharing_affinity.engine.waiting import Waiting
from sharing_affinity.extraction import ClaimError, Extracted, SliceError, Unsatisfied, in_scope_configs
from sharing_affinity.locks import DeviceId, Hold, Ledger
from sharing_affinity.nodes import Usage
from sharing_affinity.pools import Pool

ClaimKey = tuple[str, str]
_AT_ONCE: Final = 32
"""Pools that are judged again within one event, when it concerns many."""
_PENDING: Final = "its keys are still being extracted"


@dataclass(frozen=True, slots=True)
class Assumption:
    """A decision whose write is not settled. ``confirmed_at`` is the resourceVersion of the successful
    write."""

    key: ClaimKey
    pod: PodKey
    node: str
    allocation: Allocation
    record: Record
    confirmed: bool = False
    confirmed_at: str = ""


class World:
    """Observed objects and derived state. Only :meth:`observe` and the assumption methods change it."""

    def __init__(
        self,
        options: Options,
        extractions: Extractions | None = None,
        selectors: Selectors | None = None,
    ) -> None:
        self.options = options
        self.extractions = extractions or Extractions()
        self.nodes: dict[str, Node] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[ClaimKey, Claim] = {}
        self.pods: dict[PodKey, Pod] = {}
        self.volumes: dict[str, Volume] = {}
        self.volume_claims: dict[ClaimKey, VolumeClaim] = {}
        self.published = Published(options, lambda text: self.extractions.evaluator.estimate(text))
        self.pools = self.published.pools
        self.ledger = Ledger()
        self.matches = MatchIndex(self.pools, self.ledger, selectors)
        self.usage = Usage()
        self.waiting = Waiting()
        self.versions = Versions()
        self.setbacks = Setbacks(options)
        self.assumed: dict[str, Assumption] = {}
        self.notices: list[Notice] = []
        self.pods_of_claim: dict[ClaimKey, set[PodKey]] = {}
        self.extended: dict[str, str] = {}
        """Extended resources that stand for devices, with their DeviceClass."""
        self.labelled: dict[tuple[str, str], dict[str, None]] = {}
        self.idle: dict[ClaimKey, None] = {}
        """Claims with an allocation that is reserved for nobody: what :mod:`releasing` looks at."""
        self._unextracted: dict[str, None] = {}
        self._kinds: dict[str, tuple[Callable[[Any], Any], Callable[[Any, float], Changes]]] = {
            "Node": (parse_node, self._apply_node),
            "DeviceClass": (parse_class, self._apply_class),
            "DeviceTaintRule": (parse_taint_rule, self._apply_rule),
            "ResourceSlice": (parse_slice, self._apply_slice),
            names.SLICE_KIND: (parse_metadata_slice, self._apply_metadata),
            "ResourceClaim": (parse_claim, self._apply_claim),
            "Pod": (parse_pod, self._apply_pod),
            "PersistentVolume": (parse_volume, self._apply_volume),
            "PersistentVolumeClaim": (parse_volume_claim, self._apply_volume_claim),
        }

    # --- events ---------------------------------------------------------------------------------------------

    def observe(self, event: Event, now: float) -> Changes:
        if isinstance(event, Gone):
            return self._gone(event, now)
        kind = event.raw.get("kind")
        known = self._kinds.get(kind) if isinstance(kind, str) else None
        if known is None:
            return Changes()
        parse, apply = known
        try:
            view = parse(event.raw)
        except BadObject as problem:
            return self._refuse(problem, event, now)
        if self.versions.is_late(str(kind), view.meta):
            return Changes()
        return apply(view, now)

    def _refuse(self, problem: BadObject, event: Applied, now: float) -> Changes:
        """A bad object is out of the world, alone. What a bad claim holds stays held: its devices are not
        free.

        The last good view of anything else is dropped, so that nothing is decided on outdated content.
        """
        kind = problem.kind
        if kind == "ResourceClaim":
            stub = salvage_claim(event.raw)
            if stub is None or self.versions.is_late(kind, stub.meta):
                return Changes(problem=problem)
            return replace(self._apply_claim(stub, now), problem=problem)
        known = self.versions.known(kind, problem.namespace, problem.name)
        if not known:
            return Changes(problem=problem)
        changes = self._remove(kind, problem.namespace, problem.name, now)
        return replace(changes, problem=problem)

    def _gone(self, event: Gone, now: float) -> Changes:
        if not self.versions.bury(event):
            return Changes()
        return self._remove(event.kind, event.namespace, event.name, now)

    def _remove(self, kind: str, namespace: str, name: str, now: float) -> Changes:
        self.versions.forget(kind, namespace, name)
        match kind:
            case "Node":
                self._index_labels(self.nodes.pop(name, None), None)
                self.published.forget_node(name)
                # Its pods, and itself as a place to spread to, do not count any more.
                return Changes(pods=self.waiting.keys())
            case "DeviceClass":
                self.classes.pop(name, None)
                self._refresh_extended()
            case "DeviceTaintRule":
                return self._refresh_or_mark(self.published.drop_rule(name), now)
            case "ResourceSlice":
                return self._refresh(self.published.drop_slice(name), now)
            case names.SLICE_KIND:
                return self._refresh(self.published.drop_metadata(name), now)
            case "ResourceClaim":
                claim = self.claims.pop((namespace, name), None)
                if claim is not None:
                    return self._claim_gone(claim)
            case "Pod":
                pod = self.pods.pop((namespace, name), None)
                if pod is not None:
                    return self._pod_gone(pod)
            case "PersistentVolume":
                self.volumes.pop(name, None)
            case "PersistentVolumeClaim":
                self.volume_claims.pop((namespace, name), None)
        return Changes()

    # --- pods that wait -------------------------------------------------------------------------------------

    def _note_waiting(self, pod: Pod) -> None:
        waits = (
            (bool(pod.claims) or not self.extended.keys().isdisjoint(pod.requests))
            and not pod.node_name
            and not pod.finished
            and not pod.meta.deleting
            and not pod.gates
            and pod.scheduler in self.options.scheduler_names
        )
        if waits:
            self.waiting.put(pod)
        else:
            self.waiting.drop(pod.key)

    # --- nodes, classes, volumes ----------------------------------------------------------------------------

    def _apply_node(self, node: Node, _now: float) -> Changes:
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        self._index_labels(before, node)
        if before is None or before.labels != node.labels:
            self.published.forget_node(node.name)
        if before is not None and (
            before.labels,
            before.taints,
            before.unschedulable,
            before.allocatable,
        ) == (
            node.labels,
            node.taints,
            node.unschedulable,
            node.allocatable,
        ):
            return Changes()
        return Changes(pods=self.waiting.keys())

    def _index_labels(self, before: Node | None, after: Node | None) -> None:
        if before is not None:
            for pair in before.labels.items():
                here = self.labelled[pair]
                del here[before.name]
                if not here:
                    del self.labelled[pair]
        if after is not None:
            for pair in after.labels.items():
                self.labelled.setdefault(pair, {})[after.name] = None

    def _apply_class(self, device_class: DeviceClass, _now: float) -> Changes:
        self.classes[device_class.meta.name] = device_class
        self._refresh_extended()
        return Changes(pods=self.waiting.keys())

    def _refresh_extended(self) -> None:
        """The names of KEP-5004: a class's own, and one that every class has."""
        before = self.extended
        self.extended = {f"deviceclass.resource.kubernetes.io/{name}": name for name in self.classes}
        self.extended |= {c.extended_resource: n for n, c in self.classes.items() if c.extended_resource}
        if before.keys() != self.extended.keys():
            for pod in self.pods.values():
                if not pod.node_name:
                    self._note_waiting(pod)

    def _apply_volume(self, volume: Volume, _now: float) -> Changes:
        self.volumes[volume.meta.name] = volume
        return Changes(pods=self.waiting.keys())

    def _apply_volume_claim(self, claim: VolumeClaim, _now: float) -> Changes:
        self.volume_claims[(claim.meta.namespace, claim.meta.name)] = claim
        return Changes(pods=self.waiting.keys())

    # --- pools ----------------------------------------------------------------------------------------------

    def _apply_slice(self, member: ResourceSlice, now: float) -> Changes:
        return self._refresh(self.published.put_slice(member), now)

    def _apply_metadata(self, meta: MetadataSlice, now: float) -> Changes:
        return self._refresh(self.published.put_metadata(meta), now)

    def _apply_rule(self, rule: TaintRule, now: float) -> Changes:
        return self._refresh_or_mark(self.published.put_rule(rule), now)

    def _refresh(self, pools: Iterable[PoolId], now: float) -> Changes:
        changes = Changes()
        for pool_id in pools:
            changes = merged(changes, self._follow(self.published.refresh(pool_id, now)))
        return changes

    def _refresh_or_mark(self, pools: tuple[PoolId, ...], now: float) -> Changes:
        """A rule may select every pool of the cluster: too many to judge within one event. Nothing is decided
        until they are."""
        if len(pools) <= _AT_ONCE:
            return self._refresh(pools, now)
        for pool_id in pools:
            self.published.stale[pool_id] = now
        return Changes(self.waiting.keys())

    def refresh_stale(self, budget: int) -> Changes:
        """Judge at most ``budget`` of the pools that a rule's change has still to be applied to."""
        changes = Changes()
        for pool_id, now in tuple(islice(self.published.stale.items(), budget)):
            changes = merged(changes, self._refresh((pool_id,), now))
        return changes

    def _follow(self, pool: Refreshed) -> Changes:
        """What follows from a pool that was judged anew."""
        before, after = pool.before, pool.after
        self.matches.pool_changed(pool.id)
        if before is None or after is None or _judged_by(before) != _judged_by(after):
            for uid in self.ledger.claims_in(pool.id):
                self._rederive(uid)
        is_ours = (before is not None and before.affinity) or (after is not None and after.affinity)
        return Changes(self.waiting.keys(), frozenset({pool.id} if is_ours else ()), pool.metadata)

    # --- claims and holders ---------------------------------------------------------------------------------

    def _apply_claim(self, claim: Claim, now: float) -> Changes:
        before = self.claims.get(claim.key)
        changes = Changes()
        if before is not None and before.meta.uid != claim.meta.uid:
            changes = self._claim_gone(before)
            before = None
        self.claims[claim.key] = claim
        if claim.allocation is not None and not claim.reserved_for and claim.record is not None:
            self.idle[claim.key] = None
        else:
            self.idle.pop(claim.key, None)
        uid = claim.meta.uid
        freed: frozenset[DeviceId] = frozenset()
        if claim.allocation is not None:
            if before is not None and before.allocation is None:
                self._notice_breach(claim, claim.allocation)
            ended = self.assumed.pop(uid, None)
            self.setbacks.cleared.pop(uid, None)
            touched = self._hold(claim, claim.allocation, claim.record)
            if ended is not None:
                # Who holds what may be as it was, but nothing of it is assumed any more.
                touched |= frozenset(self.ledger.devices_of(uid))
        else:
            assumption = self.assumed.get(uid)
            if assumption is not None and older(assumption.confirmed_at, claim.meta.resource_version):
                del self.assumed[uid]
                assumption = None
            touched = frozenset()
            if assumption is None:
                touched = freed = self._touch(self.ledger.drop(uid))
                self._unextracted.pop(uid, None)
            if before is not None and before.allocation is not None:
                self._note_cleared(claim, before.allocation, now)
        self._repin(claim.key)
        pods = self.waiting.keys() if freed else self._pods_waiting_for(claim.key)
        pools = self._affinity_pools(d[:2] for d in touched)
        return merged(changes, Changes(pods=pods, pools=pools))

    def _pods_waiting_for(self, key: ClaimKey) -> frozenset[PodKey]:
        return frozenset(self.pods_of_claim.get(key, ())) & self.waiting.keys()

    def _affinity_pools(self, pools: Iterable[PoolId]) -> frozenset[PoolId]:
        """Of some pools, those whose lock state people look at (a pool that is gone included)."""
        return frozenset(p for p in pools if p not in self.pools or self.pools[p].affinity)

    def _claim_gone(self, claim: Claim) -> Changes:
        uid = claim.meta.uid
        self.idle.pop(claim.key, None)
        self.assumed.pop(uid, None)
        self.setbacks.cleared.pop(uid, None)
        self._unextracted.pop(uid, None)
        freed = self._touch(self.ledger.drop(uid))
        self._repin(claim.key)
        pods = self.waiting.keys() if freed else self._pods_waiting_for(claim.key)
        return Changes(pods=pods, pools=self._affinity_pools(d[:2] for d in freed))

    def _hold(self, claim: Claim, allocation: Allocation, record: Record | None) -> frozenset[DeviceId]:
        """Enter the claim's holds with their keys as they follow from today's extractors."""
        uid = claim.meta.uid
        recorded: dict[tuple[str, ...], KeyMap] = {}
        results = [r for r in allocation.results if not r.admin]
        if record is not None and allocation.fits(record):
            recorded = {r.identity: r.keys for r in record.results}
        self._unextracted.pop(uid, None)
        holds = []
        for result in results:
            keys, doubt = self._keys_of_holder(allocation, result, recorded.get(result.identity))
            if doubt is _PENDING:
                self._unextracted[uid] = None
            hold = Hold(uid, *claim.key, result.request, result.share_id, result.consumed, keys, doubt)
            holds.append(((result.driver, result.pool, result.device), hold))
        return self._touch(self.ledger.place(uid, holds))

    def _touch(self, devices: frozenset[DeviceId]) -> frozenset[DeviceId]:
        for pool_id in {device[:2] for device in devices}:
            self.matches.pool_touched(pool_id)
        return devices

    def _keys_of_holder(
        self, allocation: Allocation, result: AllocationResult, recorded: KeyMap | None
    ) -> tuple[KeyMap | None, str]:
        """Keys, or ``None`` and why they are not known (settled semantics 3 and 13)."""
        pool = self.pools.get((result.driver, result.pool))
        if pool is None or not pool.affinity:
            return (), ""
        if not pool.extractors:
            return None, "its pool has no extractors"
        configs = in_scope_configs(allocation.configs, result.driver, result.request)
        outcome = self.extractions.outcome(pool.extractors, configs)
        match outcome:
            case None:
                return None, _PENDING
            case Extracted(keys):
                if recorded is not None and recorded != keys:
                    return None, "the pool's extractors changed since one of its claims was allocated"
                return keys, ""
            case Unsatisfied(missing):
                return None, f"one of its claims yields no value for {', '.join(missing)}"
            case SliceError() | ClaimError():
                return None, f"the keys of one of its claims cannot be reconstructed ({outcome.message})"

    def _rederive(self, uid: str) -> frozenset[DeviceId]:
        """Derive a holder's keys again, from what it is allocated or assumed to be."""
        assumption = self.assumed.get(uid)
        key = assumption.key if assumption is not None else self.ledger.claim_of(uid)
        claim = self.claims.get(key) if key is not None else None
        if claim is None:
            return frozenset()
        if assumption is not None:
            return self._hold(claim, assumption.allocation, assumption.record)
        if claim.allocation is not None:
            return self._hold(claim, claim.allocation, claim.record)
        return frozenset()

    def settle_extractions(self) -> Changes:
        """Derive holders again whose evaluations have been made since."""
        touched: set[PoolId] = set()
        for uid in tuple(self._unextracted):
            touched.update(d[:2] for d in self._rederive(uid))
        if not touched:
            return Changes()
        return Changes(pods=self.waiting.keys(), pools=self._affinity_pools(touched))

    def remove_claim(self, key: ClaimKey) -> Changes:
        return self._remove("ResourceClaim", *key, 0.0)

    def rederive_steps(self, step: int) -> Iterator[Changes]:
        """Every holder anew, from claims and assumptions, ``step`` of them at a time; what nothing holds any
        more is dropped. Each is right by itself, so events may be observed in between."""
        keys = {claim.meta.uid: key for key, claim in self.claims.items()}
        uids = iter(tuple(dict.fromkeys((*self.ledger.claims(), *keys))))
        while chunk := list(islice(uids, step)):
            touched: set[DeviceId] = set()
            for uid in chunk:
                self._unextracted.pop(uid, None)
                touched |= self._touch(self.ledger.drop(uid))
                claim = self.claims.get(keys.get(uid, ("", "")))
                if claim is None or claim.meta.uid != uid:
                    continue
                assumption = self.assumed.get(uid)
                if claim.allocation is not None:
                    touched |= self._hold(claim, claim.allocation, claim.record)
                elif assumption is not None:
                    touched |= self._hold(claim, assumption.allocation, assumption.record)
            yield Changes(pools=self._affinity_pools(d[:2] for d in touched))
        pods = iter(tuple(self.pods))
        while some := list(islice(pods, step)):
            for key in some:
                if (pod := self.pods.get(key)) is not None:
                    self._pin(pod)
            yield Changes()
        yield Changes(pods=self.waiting.keys())

    @property
    def unextracted(self) -> int:
        """Holders whose keys are still being extracted."""
        return len(self._unextracted)

    def _notice_breach(self, claim: Claim, allocation: Allocation) -> None:
        """A foreign allocation on a fenced device (H4): a holder like any other, and somebody should know."""
        own = claim.record is not None and allocation.fits(claim.record)
        if own or claim.meta.uid in self.assumed:
            return
        for result in allocation.results:
            pool = self.pools.get((result.driver, result.pool))
            if pool is not None and pool.affinity and pool.usable and not result.admin:
                text = (
                    f"device {result.pool}/{result.device} was allocated to it by another allocator; "
                    "see who tolerates the fence, and delete the pods of the claim"
                )
                self.notices.append(Notice(NoticeReason.FENCE_BREACHED, "ResourceClaim", *claim.key, text))
                return

    def _note_cleared(self, claim: Claim, before: Allocation, now: float) -> None:
        """The allocation was taken back. Live pods wait out the cool-down; its node is bad for them (H7)."""
        node = before.node_selector.single_node() if before.node_selector is not None else None
        if node is None:
            return
        for key in self.pods_of_claim.get(claim.key, ()):
            pod = self.pods[key]
            if pod.finished or pod.meta.deleting:
                continue
            self.setbacks.clear(claim.meta.uid, node, now)
            if not pod.node_name:
                self.setbacks.exclude(pod, node, now)

    # --- assumptions ----------------------------------------------------------------------------------------

    def assume(self, uid: str, assumption: Assumption) -> None:
        claim = self.claims.get(assumption.key)
        if claim is None or claim.meta.uid != uid or claim.allocation is not None:
            return
        self.assumed[uid] = assumption
        self._hold(claim, assumption.allocation, assumption.record)
        self._repin(claim.key)

    def confirm(self, uid: str, resource_version: str) -> Changes:
        assumption = self.assumed.get(uid)
        if assumption is None:
            return Changes()
        self.assumed[uid] = replace(assumption, confirmed=True, confirmed_at=resource_version)
        claim = self.claims.get(assumption.key)
        if claim is not None and resource_version and older(resource_version, claim.meta.resource_version):
            # The watch has already gone past our write and shows the claim without it: it was cleared since.
            return self.release_assumption(uid)
        return Changes()

    def release_assumption(self, uid: str) -> Changes:
        assumption = self.assumed.pop(uid, None)
        if assumption is None:
            return Changes()
        freed = self._touch(self.ledger.drop(uid))
        self._unextracted.pop(uid, None)
        self._repin(assumption.key)
        return Changes(pods=self.waiting.keys(), pools=self._affinity_pools(d[:2] for d in freed))

    # --- pods -----------------------------------------------------------------------------------------------

    def _apply_pod(self, pod: Pod, _now: float) -> Changes:
        before = self.pods.get(pod.key)
        changes = Changes()
        if before is not None and before.meta.uid != pod.meta.uid:
            changes = self._pod_gone(before)
            before = None
        self.pods[pod.key] = pod
        for key in self._claim_keys(before) - self._claim_keys(pod) if before is not None else ():
            self._unlink(key, pod.key)
        for key in self._claim_keys(pod):
            self.pods_of_claim.setdefault(key, set()).add(pod.key)
        was_waiting = pod.key in self.waiting
        self._note_waiting(pod)
        freed = self._pin(pod)
        pods = self.waiting.keys() if freed else frozenset({pod.key}) & self.waiting.keys()
        if before is not None and was_waiting and not freed and _same_wish(before, pod):
            pods = frozenset()
        if pod.node_name and (before is None or not before.node_name):
            following = self.waiting.following(pod.meta.namespace)
            pods = pods | following if pods else following
        elif pod.node_name and before is not None and before.labels != pod.labels:
            # Others may want to be with it now, or no longer keep away from it.
            pods |= self.waiting.minding(pod.meta.namespace)
        return merged(changes, Changes(pods=pods))

    def _claim_keys(self, pod: Pod) -> set[ClaimKey]:
        return {(pod.meta.namespace, c.claim) for c in pod.claims if c.claim}

    def _unlink(self, claim: ClaimKey, pod: PodKey) -> None:
        pods = self.pods_of_claim.get(claim)
        if pods is not None:
            pods.discard(pod)
            if not pods:
                del self.pods_of_claim[claim]

    def _pod_gone(self, pod: Pod) -> Changes:
        for key in self._claim_keys(pod):
            self._unlink(key, pod.key)
        self.setbacks.forget_pod(pod)
        self.waiting.drop(pod.key)
        freed = self.usage.drop(pod.key)
        return Changes(pods=self.waiting.keys() if freed else frozenset())

    def _repin(self, claim: ClaimKey) -> None:
        for key in self.pods_of_claim.get(claim, ()):
            self._pin(self.pods[key])

    def _pin(self, pod: Pod) -> bool:
        """Count a pod where it is, or where it can only go. Returns whether that freed anything."""
        if pod.finished:
            return self.usage.drop(pod.key)
        return self.usage.assign(pod, pod.node_name or self.pinned_node(pod) or pod.nominated_node)

    def pinned_node(self, pod: Pod) -> str:
        """The node that the pod's allocated or assumed claims tie it to, or empty."""
        for key in self._claim_keys(pod):
            claim = self.claims.get(key)
            allocation = self.allocation_of(claim) if claim is not None else None
            if allocation is not None and allocation.node_selector is not None:
                node = allocation.node_selector.single_node()
                if node is not None:
                    return node
        return ""

    def pinned_if_whole(self, key: PodKey) -> str:
        """As :meth:`pinned_node`, once every claim of the pod is there and allocated."""
        pod = self.pods.get(key)
        if pod is None or not pod.claims:
            return ""
        for entry in pod.claims:
            claim = self.claims.get((key[0], entry.claim))
            if not entry.not_needed and (claim is None or self.allocation_of(claim) is None):
                return ""
        return self.pinned_node(pod)

    def allocation_of(self, claim: Claim) -> Allocation | None:
        """The allocation a claim has, or is assumed to have."""
        if claim.allocation is not None:
            return claim.allocation
        assumption = self.assumed.get(claim.meta.uid)
        return assumption.allocation if assumption is not None else None


def salvage_claim(raw: Mapping[str, Any]) -> Claim | None:
    """Of a claim that is not understood, what it holds: enough to keep its devices, nothing to decide by."""
    try:
        root = Reader.document_of(raw, "ResourceClaim")
        status = root.obj("status")
        if not status.has("allocation"):
            return None
        return Claim(read_meta(root), "", (), (), (), _salvaged(status), (), None, "", ("spec",))
    except BadObject:
        return None


def _salvaged(status: Reader) -> Allocation:
    """The allocation; without its configs where these are not understood, so that its keys are not known."""
    stored = status.obj("allocation")
    try:
        return parse_allocation(stored.data)
    except BadObject:
        devices = {"results": stored.obj("devices").items("results")}
        return parse_allocation({**stored.data, "devices": devices})


def _judged_by(pool: Pool) -> tuple[bool, object]:
    return (pool.affinity, pool.extractors)


def _same_wish(before: Pod, after: Pod) -> bool:
    """Whether nothing changed that a decision looks at (conditions and annotations do not)."""
    return before.meta.deleting == after.meta.deleting and before == replace(after, meta=before.meta)


def merged(first: Changes, second: Changes) -> Changes:
    """Both changes as one."""
    return Changes(
        first.pods | second.pods if first.pods and second.pods else first.pods or second.pods,
        first.pools | second.pools,
        first.slices | second.slices,
        first.problem or second.problem,
    )
