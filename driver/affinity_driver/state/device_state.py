"""Preparing and unpreparing, so that a kill at any point leaves something the next call can finish.

The order of a prepare: judge and write ``Started`` to the checkpoint; program the devices; write the CDI
file and ``Completed``. An unprepare: reset what has no other user; remove the CDI file and the checkpoint
entry. So a device is never touched, and a CDI file never exists, for a claim that the checkpoint does not
know.

Locks, all of them between processes too, since two overlap during an upgrade: one per claim for the whole
of either operation (a prepare during an unprepare waits, and then really prepares); one per device around
its hardware; the node lock around the checkpoint, always innermost and short.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from affinity_driver.cdi import CdiDirectory, device_name
from affinity_driver.claims.errors import HardwareError, IncompatibleError
from affinity_driver.disk import Disk
from affinity_driver.publish.desired import Device

from .checkpoint import CheckpointError, CheckpointFile
from .lock import KeyedLocks, NodeLock
from .model import NodeState, Phase, PreparedClaim, Share, check_compatible

LOCK_FILE = "serialize.lock"


class Hardware(Protocol):
    """The part of a profile that prepare needs."""

    def configure(self, device: str, keys: Mapping[str, str]) -> None:
        """See ``Profile``."""
        ...

    def release(self, device: str) -> None:
        """See ``Profile``."""
        ...

    def environment(self, share: Share) -> Mapping[str, str]:
        """See ``Profile``."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device as the kubelet is told of it."""

    request: str
    pool: str
    device: str
    share_id: str | None
    cdi_id: str


class DeviceState:
    """All that is prepared on this node.

    ``directory`` is the driver's own, for the checkpoint and the lock file. ``recovered`` counts the times
    the checkpoint could not be read and was set aside.
    """

    def __init__(
        self, directory: Path, hardware: Hardware, cdi: CdiDirectory, boot_id: str, disk: Disk
    ) -> None:
        self._hardware = hardware
        self._cdi = cdi
        self._boot_id = boot_id
        self._directory = directory
        self._disk = disk
        self._file = CheckpointFile(directory / "checkpoint.json", disk)
        self._node = NodeLock(directory / LOCK_FILE)
        self._claims = KeyedLocks(directory / LOCK_FILE, "claim")
        self._devices = KeyedLocks(directory / LOCK_FILE, "device")
        self.recovered = 0
        self._log = structlog.get_logger("affinity_driver.state")

    def start(self, devices: frozenset[str]) -> NodeState:
        """Bring files and hardware in line with the checkpoint; call before serving. Returns what is
        prepared.
        """
        with self._node.held():
            self._disk.sweep_temporaries(self._directory)
            self._cdi.sweep_temporaries()
            state = self._load()
            self._reconcile(state, contents=True)
        for device in sorted(devices):
            lock = self._devices.take(device)
            if lock is None:
                continue  # Another instance is at work on it, for a claim or to reset it; that may take long.
            try:
                # Asked under the device's lock: another instance may have prepared a claim meanwhile.
                if not self._in_use(device):
                    self._release(device)
            finally:
                os.close(lock)
        return state

    def snapshot(self) -> NodeState:
        """What is prepared now."""
        with self._node.held():
            return self._load()

    def prepare(self, wanted: PreparedClaim, devices: Mapping[str, Device]) -> tuple[PreparedDevice, ...]:
        """Prepare a resolved claim; the same answer each time. Raises PrepareError and then has changed
        nothing.

        ``devices`` are the pool's devices by name, for their capacities.
        """
        with self._claims.held(wanted.uid):
            claim = self._begin(wanted, devices)
            try:
                for share in claim.shares:
                    if not share.admin:
                        with self._devices.held(share.device):
                            self._hardware.configure(share.device, share.keys)
                claim = self._complete(claim)
            except Exception:
                if claim.phase is Phase.STARTED:  # else it was prepared before, and its containers may run
                    self._roll_back(claim)
                raise
            return self._answer(claim)

    def unprepare(self, uid: str, seen: PreparedClaim | None = None) -> bool:
        """Undo a claim; False where nothing of it was known. Needs no API server. Raises PrepareError.

        With ``seen``, nothing is done to a claim that is another one by now.
        """
        with self._claims.held(uid):
            with self._node.held():
                claim = self._load().claims.get(uid)
            if seen is not None and claim != seen:
                return False
            if claim is None:
                return self._cdi.remove(uid)
            self._undo(claim)
            return True

    def _begin(self, wanted: PreparedClaim, devices: Mapping[str, Device]) -> PreparedClaim:
        with self._node.held():
            state = self._load()
            self._reconcile(state, contents=False)
            stored = state.claims.get(wanted.uid)
            if stored is None or stored.same_allocation(wanted):
                return self._admit(state, wanted, devices)
        self._log.info("claim was allocated anew, undoing the former allocation", claim=_named(stored))
        self._undo(stored)
        with self._node.held():
            return self._admit(self._load(), wanted, devices)

    def _admit(self, state: NodeState, wanted: PreparedClaim, devices: Mapping[str, Device]) -> PreparedClaim:
        """The claim as prepared already, or judged and noted as started. Raises IncompatibleError."""
        stored = state.claims.get(wanted.uid)
        if stored is not None and stored.phase is Phase.COMPLETED:
            return stored
        capacities = {
            name: {key: str(value["value"]) for key, value in devices[name].capacity.items()}
            for name in {share.device for share in wanted.shares}
        }
        try:
            check_compatible(state, wanted, capacities)
        except IncompatibleError as error:
            holders = [_named(state.claims[uid]) for uid in error.holders if uid in state.claims]
            self._log.warning("rejected", claim=_named(wanted), reason=str(error), holders=holders)
            if stored is not None:
                # Not prepared before a crash, and somebody else came first since: it holds nothing any more.
                self._file.save(state.without(wanted.uid))
            raise
        claim = replace(wanted, phase=Phase.STARTED)
        self._file.save(state.with_claim(claim))
        return claim

    def _complete(self, claim: PreparedClaim) -> PreparedClaim:
        with self._node.held():
            state = self._load()
            done = replace(claim, phase=Phase.COMPLETED)
            self._cdi.ensure(done, self._environment(done))
            if state.claims.get(claim.uid) != done:
                self._file.save(state.with_claim(done))
            return done

    def _roll_back(self, claim: PreparedClaim) -> None:
        """Undo after a failure whose own error matters more; the next call undoes what this one cannot."""
        try:
            self._undo(claim)
        except Exception:
            self._log.exception("cannot roll back", claim=_named(claim))

    def _undo(self, claim: PreparedClaim) -> None:
        """Reset what has no other user, and forget the claim.

        Its devices stay locked until it is forgotten: of two claims that leave a device at once, the second
        finds itself the last.
        """
        devices = sorted({share.device for share in claim.shares if not share.admin})
        with ExitStack() as locks:
            for device in devices:
                locks.enter_context(self._devices.held(device))
            for device in devices:
                if not self._in_use(device, besides=claim.uid):
                    self._release(device)
            with self._node.held():
                self._cdi.remove(claim.uid)
                self._file.save(self._load().without(claim.uid))

    def _in_use(self, device: str, besides: str | None = None) -> bool:
        """Whether a claim, other than ``besides``, holds the device."""
        return bool(self.snapshot().holders(device, besides))

    def _release(self, device: str) -> None:
        try:
            self._hardware.release(device)
        except HardwareError as error:
            # A broken device must not keep its last pod from going away; the next user will meet the error.
            self._log.error("cannot reset device", device=device, error=str(error))

    def _load(self) -> NodeState:
        """The checkpoint, as of this boot. An unreadable one is set aside and replaced by what CDI files
        tell.
        """
        try:
            stored = self._file.load()
        except CheckpointError as error:
            target = self._file.quarantine()
            self.recovered += 1
            stored = None
            self._log.error("checkpoint set aside", file=str(target), error=str(error))
        if stored is None:
            state = NodeState(self._boot_id, self._cdi.recover())
            if state.claims:
                self._log.warning(
                    "recovered claims from CDI files", claims=[_named(c) for c in state.claims.values()]
                )
        else:
            state = stored.after_reboot(self._boot_id)
        if state != stored:
            self._file.save(state)
        return state

    def _reconcile(self, state: NodeState, contents: bool) -> None:
        """CDI files as the checkpoint says: missing ones made again, unknown ones removed."""
        files = self._cdi.claims()
        for uid in files - state.claims.keys():
            self._log.info("removing CDI file of an unknown claim", uid=uid)
            self._cdi.remove(uid)
        for uid, claim in state.claims.items():
            if claim.phase is Phase.COMPLETED and (contents or uid not in files):
                self._cdi.ensure(claim, self._environment(claim))

    def _environment(self, claim: PreparedClaim) -> dict[str, Mapping[str, str]]:
        shares = {device_name(claim.uid, share): share for share in reversed(claim.holders_first)}
        return {name: self._hardware.environment(share) for name, share in shares.items()}

    def _answer(self, claim: PreparedClaim) -> tuple[PreparedDevice, ...]:
        return tuple(
            PreparedDevice(
                request=share.request.partition("/")[0],
                pool=share.pool,
                device=share.device,
                share_id=share.share_id,
                cdi_id=self._cdi.device_id(claim.uid, share),
            )
            for share in claim.shares
        )


def _named(claim: PreparedClaim) -> str:
    return f"{claim.namespace}/{claim.name} ({claim.uid})"
