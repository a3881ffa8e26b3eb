"""Random prepares, unprepares, restarts, reboots and kills against a model, and mutants that it has to catch.
Sometimes two instances run side by side, as during an upgrade, and take turns.

What must hold after every step: claims prepared on one device agree on their keys; a claim has a CDI file
if and only if it is prepared (one that a kill left unfinished may have one); the same claim is answered the
same way every time; a device without users is blank.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from harness.driver_rig import Rig, nic_claim
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from affinity_driver import cdi, disk
from affinity_driver.claims.errors import IncompatibleError
from affinity_driver.profiles import ProfileOptions
from affinity_driver.state import checkpoint, device_state, model
from affinity_driver.state.model import NodeState, Phase, PreparedClaim

UIDS = st.sampled_from("12345")
SUBNETS = st.sampled_from("AB")
DEVICES = st.sampled_from([("eth1",), ("eth2",), ("eth1", "eth2")])
SLOTS = 3
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where fsync costs nothing; what it is for cannot be tested by killing a process anyway."""


class Killed(BaseException):
    """The process is gone; nothing after this changes a file."""


class DriverMachine(RuleBasedStateMachine):
    """The model: which claims were answered as prepared, and which a kill left in between."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="driver-machine-", dir=MEMORY))
        self.steps_left: int | None = None
        self.other: Rig | None = None
        self.prepared: dict[str, PreparedClaim] = {}
        self.unsure: dict[str, PreparedClaim] = {}
        self.answers: dict[str, Any] = {}
        self.boot = 1

    @initialize()
    def first_start(self) -> None:
        self._start()

    def _start(self, damaged: bool = False) -> None:
        self.steps_left = None
        if not damaged:
            self._check_what_a_kill_left()
        options = ProfileOptions(slots=SLOTS)
        self.other = None
        self.rig = Rig.make(self.root, disk.Disk(self._tick), f"boot-{self.boot}", options=options)

    def _check_what_a_kill_left(self) -> None:
        """The checkpoint is readable at every moment, and knows of every device and file that was touched."""
        data = disk.Disk().read(self.root / "plugin" / "checkpoint.json")
        known = checkpoint.decode(data).claims if data is not None else {}
        if hasattr(self, "rig"):
            assert {path.stem.rpartition("_")[2] for path in (self.root / "cdi").glob("*.json")} <= set(known)
            devices = {share.device for claim in known.values() for share in claim.shares}
            assert {device for device in self.rig.devices if self.rig.programmed(device)} <= devices

    def _tick(self, step: str, path: Path) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise Killed
            self.steps_left -= 1

    def _fits(self, claim: PreparedClaim) -> bool:
        """Whether the model lets the claim in beside who is prepared or unsure."""
        others = [c for uid, c in {**self.unsure, **self.prepared}.items() if uid != claim.uid]
        for share in claim.shares:
            here = [other for c in others for other in c.shares if other.device == share.device]
            if any(dict(other.keys) != dict(share.keys) for other in here) or len(here) >= SLOTS:
                return False
        return True

    @rule(uid=UIDS, subnet=SUBNETS, devices=DEVICES, steps=st.none() | st.integers(0, 30))
    def prepare(self, uid: str, subnet: str, devices: tuple[str, ...], steps: int | None) -> None:
        """Prepare, and maybe be killed after some steps. A claim that is known comes as it was: it's
        immutable.
        """
        known = self.prepared.get(uid) or self.unsure.get(uid)
        claim = known or nic_claim(uid, subnet, *devices)
        fits = self._fits(claim)
        surely = not self.unsure or set(self.unsure) == {uid}
        self.steps_left = steps
        try:
            answer = self.rig.prepare(replace(claim, phase=Phase.STARTED))
        except Killed:
            if uid not in self.prepared:
                self.unsure[uid] = claim
            self._start()
            return
        except IncompatibleError:
            assert not fits or not surely, "refused what fits"
            assert uid not in self.prepared, "refused what is prepared"
            self.unsure.pop(uid, None)
            return
        finally:
            self.steps_left = None
        assert fits or not surely or uid in self.prepared, "let in what does not fit"
        assert self.answers.setdefault(uid, answer) == answer
        self.unsure.pop(uid, None)
        self.prepared[uid] = claim

    @rule(uid=UIDS, steps=st.none() | st.integers(0, 30))
    def unprepare(self, uid: str, steps: int | None) -> None:
        self.steps_left = steps
        try:
            self.rig.state.unprepare(uid)
        except Killed:
            if uid in self.prepared:
                self.unsure[uid] = self.prepared.pop(uid)
            self._start()
            return
        finally:
            self.steps_left = None
        self.prepared.pop(uid, None)
        self.unsure.pop(uid, None)
        self.answers.pop(uid, None)

    @rule(steps=st.none() | st.integers(0, 10))
    def restart(self, steps: int | None) -> None:
        """A new process; maybe killed while it starts."""
        if steps is not None:
            self.steps_left = steps
            with contextlib.suppress(Killed):
                Rig.make(self.root, disk.Disk(self._tick), f"boot-{self.boot}")
        self._start()

    @rule()
    def the_other_instance(self) -> None:
        """The kubelet calls the other one from now on; it starts beside this one where there is none yet."""
        second = self.other or Rig.make(
            self.root, disk.Disk(self._tick), f"boot-{self.boot}", options=ProfileOptions(slots=SLOTS)
        )
        self.rig, self.other = second, self.rig

    @rule(wipe=st.booleans())
    def reboot(self, wipe: bool) -> None:
        """Containers and NICs start over; the kubelet prepares what its pods still need, in any order."""
        self.boot += 1
        if wipe:
            shutil.rmtree(self.root / "cdi", ignore_errors=True)
        self._start()
        assert all(claim.phase is Phase.STARTED for claim in self.rig.state.snapshot().claims.values())
        self.unsure.update(self.prepared)
        self.prepared.clear()

    @rule()
    def lose_cdi_files(self) -> None:
        """Somebody empties the tmpfs; the next prepare or start puts it right."""
        shutil.rmtree(self.root / "cdi", ignore_errors=True)
        self._start()

    @rule(damage=st.sampled_from([b"", b"\0" * 64]))
    def lose_checkpoint(self, damage: bytes) -> None:
        """The file is damaged; the CDI files still tell who was prepared."""
        path = self.root / "plugin" / "checkpoint.json"
        if path.exists() and not self.unsure:
            path.write_bytes(damage)
            self._start(damaged=True)
            assert self.rig.state.recovered == 1

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "rig"):
            return
        state = self.rig.state.snapshot()
        for device in self.rig.devices:
            # Not by state.holders, which is under test.
            holders = [(c, s) for c in state.claims.values() for s in c.shares if s.device == device]
            assert len({tuple(sorted(share.keys.items())) for _, share in holders}) <= 1
            assert len(holders) <= SLOTS
            programmed = self.rig.programmed(device)
            assert holders or programmed == {}
            for claim, share in holders:
                if claim.uid in self.prepared:
                    assert programmed == dict(share.keys)
        completed = {uid for uid, claim in state.claims.items() if claim.phase is Phase.COMPLETED}
        assert set(self.prepared) <= completed
        assert set(state.claims) <= set(self.prepared) | set(self.unsure)
        assert completed <= self.rig.cdi_files() <= set(state.claims)

    def teardown(self) -> None:
        self.steps_left = None
        if hasattr(self, "rig"):
            for uid in "12345":
                self.rig.state.unprepare(uid)
            assert self.rig.cdi_files() == set()
            assert not self.rig.state.snapshot().claims
            assert [self.rig.programmed(device) for device in self.rig.devices] == [{}, {}]
        shutil.rmtree(self.root, ignore_errors=True)


def _run(examples: int, steps: int, mutant: bool = False) -> None:
    """Run the machine; for a mutant always the same examples, and no effort to make a failure small."""
    every = [phase for phase in hypothesis.Phase if not (mutant and phase is hypothesis.Phase.shrink)]
    run_state_machine_as_test(
        DriverMachine,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=mutant or hypothesis.settings().derandomize,
            phases=every,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


def test_random_histories() -> None:
    _run(examples=60, steps=30)


@pytest.mark.long
def test_many_random_histories() -> None:
    _run(examples=1500, steps=60)


# --- mutants ------------------------------------------------------------------------------------------------
# Each is a mistake that somebody could make in the driver. The machine above has to notice every one.

Patch = Callable[[pytest.MonkeyPatch], None]


def _nothing_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_state, "check_compatible", lambda *_: None)


def _started_claims_do_not_hold(patch: pytest.MonkeyPatch) -> None:
    holders = NodeState.holders

    def completed_only(self: NodeState, device: str, besides: str | None = None) -> Any:
        return [(c, s) for c, s in holders(self, device, besides) if c.phase is Phase.COMPLETED]

    patch.setattr(NodeState, "holders", completed_only)


def _capacity_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "_amount", lambda text: 0)


def _cdi_file_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cdi.CdiDirectory, "remove", lambda self, uid: False)


def _no_cdi_file_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cdi.CdiDirectory, "ensure", lambda self, claim, environment: False)


def _cdi_is_not_reconciled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_state.DeviceState, "_reconcile", lambda self, state, contents: None)


def _device_is_reset_under_its_users(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_state.DeviceState, "_in_use", lambda self, device, besides=None: False)


def _device_is_never_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_state.DeviceState, "_release", lambda self, device: None)


def _checkpoint_is_not_written_before_the_hardware(patch: pytest.MonkeyPatch) -> None:
    def admit(self: Any, state: NodeState, wanted: PreparedClaim, devices: Any) -> PreparedClaim:
        stored = state.claims.get(wanted.uid)
        if stored is not None and stored.phase is Phase.COMPLETED:
            return stored
        capacities = {n: {k: str(v["value"]) for k, v in d.capacity.items()} for n, d in devices.items()}
        model.check_compatible(state, wanted, capacities)
        return wanted

    patch.setattr(device_state.DeviceState, "_admit", admit)


def _nothing_is_persisted(patch: pytest.MonkeyPatch) -> None:
    kept: dict[Path, NodeState] = {}
    patch.setattr(device_state.CheckpointFile, "save", lambda self, state: kept.__setitem__(id(self), state))
    patch.setattr(device_state.CheckpointFile, "load", lambda self: kept.get(id(self)))  # type: ignore[call-overload]
    patch.setattr(cdi.CdiDirectory, "recover", lambda self: {})


def _writes_are_not_atomic(patch: pytest.MonkeyPatch) -> None:
    def write(self: disk.Disk, path: Path, data: bytes, mode: int = 0o600) -> None:
        self._before("write", path)
        path.write_bytes(data[: len(data) // 2])
        self._before("write", path)
        path.write_bytes(data)

    patch.setattr(disk.Disk, "write", write)


def _reboot_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeState, "after_reboot", lambda self, boot: self)


def _damaged_checkpoint_means_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cdi.CdiDirectory, "recover", lambda self: {})


def _answers_differ(patch: pytest.MonkeyPatch) -> None:
    count = [0]

    def device_id(self: cdi.CdiDirectory, uid: str, share: Any) -> str:
        count[0] += 1
        return f"{self.kind}={uid}-{count[0]}"

    patch.setattr(cdi.CdiDirectory, "device_id", device_id)


def _unprepare_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_state.DeviceState, "unprepare", lambda self, uid: False)


def _failed_claim_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeState, "without", lambda self, uid: self)


MUTANTS: list[Patch] = [
    _nothing_is_checked,
    _started_claims_do_not_hold,
    _capacity_is_not_counted,
    _cdi_file_is_forgotten,
    _no_cdi_file_is_written,
    _cdi_is_not_reconciled,
    _device_is_reset_under_its_users,
    _device_is_never_reset,
    _checkpoint_is_not_written_before_the_hardware,
    _nothing_is_persisted,
    _writes_are_not_atomic,
    _reboot_is_not_noticed,
    _damaged_checkpoint_means_an_empty_one,
    _answers_differ,
    _unprepare_does_nothing,
    _failed_claim_is_kept,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, Exception, Killed)):
        _run(examples=300, steps=30, mutant=True)
