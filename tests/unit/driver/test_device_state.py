"""Prepare and unprepare: sharing, idempotence, roll-back, restarts, lost files, kills at every write."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.driver_rig import Rig, nic_claim

from affinity_driver.claims.errors import HardwareError, IncompatibleError
from affinity_driver.claims.report import prepared_entries
from affinity_driver.disk import Disk
from affinity_driver.state.checkpoint import CheckpointFile
from affinity_driver.state.model import Phase

NEWER = b'{"format": "affinity-driver-checkpoint", "version": 9}\n'


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig.make(tmp_path)


def test_case_d01_shared_device_lives_until_its_last_user(rig: Rig) -> None:
    """dra-driver-nvidia-gpu 1231: refuse a differing config, count references, reset after the last."""
    rig.prepare(nic_claim("1", "A"))
    with pytest.raises(IncompatibleError):
        rig.prepare(nic_claim("2", "B"))
    rig.prepare(nic_claim("3", "A"))
    assert rig.cdi_files() == {"1", "3"}
    rig.state.unprepare("1")
    assert rig.programmed("eth1") == {"subnet": "A"}
    with pytest.raises(IncompatibleError):
        rig.prepare(nic_claim("2", "B"))
    rig.state.unprepare("3")
    assert rig.programmed("eth1") == {}
    rig.prepare(nic_claim("2", "B"))
    assert rig.programmed("eth1") == {"subnet": "B"}


def test_settings_that_are_no_keys_may_differ(rig: Rig) -> None:
    rig.prepare(nic_claim("1", mtu=1500))
    rig.prepare(nic_claim("2", mtu=9000))
    for uid, mtu in (("1", "1500"), ("2", "9000")):
        assert f"NIC_MTU={mtu}" in (rig.root / "cdi" / f"nic.sharingaffinity.dev-nic_{uid}.json").read_text()


def test_prepare_twice_answers_the_same_and_writes_nothing(rig: Rig) -> None:
    first = rig.prepare(nic_claim("1"))
    writes: list[str] = []
    again = rig.restart(Disk(lambda step, path: writes.append(step)))
    writes.clear()
    assert again.prepare(nic_claim("1")) == first
    assert writes == []


def test_answer_names_base_request_share_and_cdi_device(rig: Rig) -> None:
    claim = nic_claim("1")
    claim = replace(claim, shares=(replace(claim.shares[0], request="nic/fast"),))
    (device,) = rig.prepare(claim)
    assert (device.request, device.pool, device.device) == ("nic", "node-a", "eth1")
    assert device.share_id == "share-1-0"
    assert device.cdi_id == "nic.sharingaffinity.dev/nic=1-eth1-share-1-0"


@pytest.mark.parametrize("watcher_first", [False, True])
def test_a_dedicated_device_that_its_holder_also_watches_is_set_up_for_the_holder(
    rig: Rig, watcher_first: bool
) -> None:
    """Two requests of a claim, one with admin access, and one device without share ID: one CDI device."""
    claim = nic_claim("1", "A")
    holder = replace(claim.shares[0], share_id=None)
    watcher = replace(holder, request="watch", admin=True, keys={}, settings={})
    both = replace(claim, shares=(watcher, holder) if watcher_first else (holder, watcher))
    assert len({device.cdi_id for device in rig.prepare(both)}) == 1
    (file,) = (rig.root / "cdi").glob("*.json")
    assert "NIC_SUBNET=A" in file.read_text()
    (entry,) = prepared_entries("d", both, rig.profile.report)
    assert entry["data"]["keys"] == {"subnet": "A"}
    assert [condition["reason"] for condition in entry["conditions"]] == ["Prepared", "Locked"]


def test_unprepare_of_unknown_claims_succeeds(rig: Rig) -> None:
    assert rig.state.unprepare("never") is False
    rig.prepare(nic_claim("1"))
    assert rig.state.unprepare("1") is True
    assert rig.state.unprepare("1") is False
    assert rig.cdi_files() == set()
    assert not rig.state.snapshot().claims


def test_a_claim_with_two_devices_is_all_or_nothing(rig: Rig) -> None:
    rig.prepare(nic_claim("1", "A", "eth2"))
    with pytest.raises(IncompatibleError):
        rig.prepare(nic_claim("2", "B", "eth1", "eth2"))
    assert rig.programmed("eth1") == {}
    assert set(rig.state.snapshot().claims) == {"1"}


def test_failing_hardware_is_rolled_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    configure = rig.profile.configure

    def broken(device: str, keys: Mapping[str, str]) -> None:
        if device == "eth2":
            raise HardwareError("device eth2 does not answer")
        configure(device, keys)

    monkeypatch.setattr(rig.profile, "configure", broken)
    rig.prepare(nic_claim("1"))
    with pytest.raises(HardwareError):
        rig.prepare(nic_claim("2", "a", "eth1", "eth2"))
    assert rig.cdi_files() == {"1"}
    assert rig.programmed("eth1") == {"subnet": "a"}
    assert set(rig.state.snapshot().claims) == {"1"}


def test_a_failing_repetition_takes_nothing_from_a_running_pod(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted kubelet asks again for every running pod; an error then is no reason to undo anything."""
    rig.prepare(nic_claim("1", "A"))

    def broken(device: str, keys: Mapping[str, str]) -> None:
        raise HardwareError(f"device {device} does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(rig.profile, "configure", broken)
        with pytest.raises(HardwareError):
            rig.prepare(nic_claim("1", "A"))
    assert rig.programmed("eth1") == {"subnet": "A"}
    assert rig.cdi_files() == {"1"}
    with pytest.raises(IncompatibleError):
        rig.prepare(nic_claim("2", "B"))


@pytest.mark.parametrize("full", ["cdi", "plugin"])
def test_a_full_disk_is_rolled_back(tmp_path: Path, full: str) -> None:
    """Whatever cannot be written: the error comes out, nothing stays prepared, and a retry works."""
    space = [True]

    def check(step: str, path: Path) -> None:
        if step == "write" and not space[0] and path.parent.name == full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    rig = Rig.make(tmp_path, Disk(check))
    rig.prepare(nic_claim("1"))
    space[0] = False
    with pytest.raises(OSError, match="No space left"):
        rig.prepare(nic_claim("2"))
    space[0] = True
    assert rig.cdi_files() == {"1"}
    rig.state.unprepare("2")
    assert set(rig.state.snapshot().claims) == {"1"}
    rig.prepare(nic_claim("2"))
    assert rig.cdi_files() == {"1", "2"}


def test_hardware_that_cannot_be_reset_does_not_keep_a_pod(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> None:
        raise HardwareError("no answer")

    rig.prepare(nic_claim("1"))
    monkeypatch.setattr(rig.profile, "release", broken)
    assert rig.state.unprepare("1") is True


def test_same_name_with_a_new_uid_is_another_claim(rig: Rig) -> None:
    """Case D-05: identity is the UID."""
    old, new = nic_claim("u1", "A"), replace(nic_claim("u2", "B", "eth2"), name="claim-u1")
    rig.prepare(old)
    rig.prepare(new)
    rig.state.unprepare("u1")
    assert rig.cdi_files() == {"u2"}
    assert rig.programmed("eth2") == {"subnet": "B"}
    rig.state.unprepare("u1")
    assert rig.cdi_files() == {"u2"}


def test_a_claim_freed_and_allocated_again_leaves_its_old_device(rig: Rig) -> None:
    rig.prepare(nic_claim("1", "A", "eth1"))
    (device,) = rig.prepare(nic_claim("1", "B", "eth2"))
    assert device.device == "eth2"
    assert rig.programmed("eth1") == {}
    assert set(rig.state.snapshot().claims) == {"1"}


class TestRestart:
    def test_the_lock_outlives_the_process(self, rig: Rig) -> None:
        rig.prepare(nic_claim("1", "A"))
        with pytest.raises(IncompatibleError):
            rig.restart().prepare(nic_claim("2", "B"))

    def test_emptied_cdi_directory_is_filled_at_start_and_before_each_prepare(self, rig: Rig) -> None:
        rig.prepare(nic_claim("1"))
        rig.prepare(nic_claim("2"))
        _empty(rig.root / "cdi")
        again = rig.restart()
        assert again.cdi_files() == {"1", "2"}
        _empty(rig.root / "cdi")
        again.prepare(nic_claim("1"))
        assert again.cdi_files() == {"1", "2"}

    def test_cdi_files_of_unknown_claims_go(self, rig: Rig) -> None:
        rig.prepare(nic_claim("1"))
        stray = rig.root / "cdi" / "nic.sharingaffinity.dev-nic_stray.json"
        foreign = rig.root / "cdi" / "vendor.com-gpu_1.json"
        stray.write_text("{}")
        foreign.write_text("{}")
        rig.restart()
        assert not stray.exists()
        assert foreign.exists()

    def test_reboot_means_set_up_again_on_request(self, rig: Rig) -> None:
        first = rig.prepare(nic_claim("1"))
        _empty(rig.root / "cdi")
        again = rig.restart(boot="boot-2")
        assert again.state.snapshot().claims["1"].phase is Phase.STARTED
        assert again.programmed("eth1") == {}
        with pytest.raises(IncompatibleError):
            again.prepare(nic_claim("2", "B"))
        assert again.prepare(nic_claim("1")) == first
        assert again.programmed("eth1") == {"subnet": "a"}
        assert again.cdi_files() == {"1"}

    @pytest.mark.parametrize(
        "damage", [b"", b"garbage", b'{"format": "affinity-driver-checkpoint", "version": 9}\n']
    )
    def test_bad_checkpoint_is_set_aside_and_recovered_from_cdi(self, rig: Rig, damage: bytes) -> None:
        rig.prepare(nic_claim("1", "A"))
        (rig.root / "plugin" / "checkpoint.json").write_bytes(damage)
        again = rig.restart()
        assert again.state.recovered == 1
        assert (rig.root / "plugin" / "checkpoint.json.bad.0").read_bytes() == damage
        with pytest.raises(IncompatibleError):
            again.prepare(nic_claim("2", "B"))
        again.state.unprepare("1")
        again.prepare(nic_claim("2", "B"))

    def test_lost_checkpoint_is_recovered_from_cdi(self, rig: Rig) -> None:
        rig.prepare(nic_claim("1", "A"))
        (rig.root / "plugin" / "checkpoint.json").unlink()
        assert set(rig.restart().state.snapshot().claims) == {"1"}

    def test_devices_without_users_are_reset_at_start(self, rig: Rig) -> None:
        rig.profile.hardware.program("eth1", {"subnet": "left over"})
        rig.restart()
        assert rig.programmed("eth1") == {}


def test_case_d03_prepare_during_unprepare_really_prepares(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes 140527: a prepare that meets an unprepare must not find the claim "already prepared"."""
    entered, go_on = threading.Event(), threading.Event()
    release = rig.profile.release

    def slow(device: str) -> None:
        entered.set()
        assert go_on.wait(10)
        release(device)

    rig.prepare(nic_claim("1"))
    monkeypatch.setattr(rig.profile, "release", slow)
    unpreparing = threading.Thread(target=rig.state.unprepare, args=("1",))
    unpreparing.start()
    assert entered.wait(10)
    preparing = threading.Thread(target=rig.prepare, args=(nic_claim("1"),))
    preparing.start()
    preparing.join(0.3)
    assert preparing.is_alive(), "the prepare did not wait for the unprepare"
    go_on.set()
    unpreparing.join(10)
    preparing.join(10)
    assert rig.cdi_files() == {"1"}
    assert rig.programmed("eth1") == {"subnet": "a"}
    assert rig.state.snapshot().claims["1"].phase is Phase.COMPLETED


def test_a_slow_device_delays_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    configure = rig.profile.configure

    def slow(device: str, keys: Mapping[str, str]) -> None:
        if device == "eth1":
            entered.set()
            assert go_on.wait(10)
        configure(device, keys)

    monkeypatch.setattr(rig.profile, "configure", slow)
    slow_one = threading.Thread(target=rig.prepare, args=(nic_claim("1"),))
    slow_one.start()
    assert entered.wait(10)
    rig.prepare(nic_claim("2", "b", "eth2"))
    with pytest.raises(IncompatibleError):
        rig.prepare(nic_claim("3", "other"))
    go_on.set()
    slow_one.join(10)
    assert rig.cdi_files() == {"1", "2"}


def test_racing_claims_of_different_keys_never_share(rig: Rig) -> None:
    outcomes: list[str] = []

    def run(uid: str, subnet: str) -> None:
        try:
            rig.prepare(nic_claim(uid, subnet))
            outcomes.append(subnet)
        except IncompatibleError:
            pass

    threads = [threading.Thread(target=run, args=(str(n), "AB"[n % 2])) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(outcomes) == 6
    assert len(set(outcomes)) == 1


class TestTwoInstances:
    """Two processes of an upgrade on the same folders; here two states, which share nothing."""

    def test_what_one_prepared_the_other_answers_and_undoes(self, rig: Rig) -> None:
        other = rig.restart()
        assert rig.prepare(nic_claim("1", "A")) == other.prepare(nic_claim("1", "A"))
        with pytest.raises(IncompatibleError):
            other.prepare(nic_claim("2", "B"))
        assert other.state.unprepare("1")
        assert rig.prepare(nic_claim("2", "B"))
        assert rig.programmed("eth1") == {"subnet": "B"}

    def test_a_device_is_programmed_by_one_at_a_time(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """The old one is at it when the kubelet asks the new one about the same claim."""
        other = rig.restart()
        begun, go_on, order = threading.Event(), threading.Event(), list[str]()
        configure = rig.profile.configure

        def slow(device: str, keys: Any) -> None:
            begun.set()
            go_on.wait(20)
            configure(device, keys)
            order.append("old")

        def quick(device: str, keys: Any) -> None:
            order.append("new")

        monkeypatch.setattr(rig.profile, "configure", slow)
        monkeypatch.setattr(other.profile, "configure", quick)
        first = threading.Thread(target=rig.prepare, args=(nic_claim("1", "A"),))
        first.start()
        begun.wait(20)
        waiting = [threading.Thread(target=other.prepare, args=(nic_claim(uid, "A"),)) for uid in ("1", "2")]
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        assert order == []
        go_on.set()
        for thread in (first, *waiting):
            thread.join(20)
        assert order == ["old", "new", "new"]  # asked again, the profile finds the device as it should be
        assert rig.cdi_files() == {"1", "2"}

    def test_a_start_resets_no_device_that_is_being_prepared(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load = CheckpointFile.load
        prepared = threading.Event()

        def late(self: CheckpointFile) -> Any:
            """The old instance prepares a claim between the new one's look and its resets."""
            state = load(self)
            if not prepared.is_set() and self is not rig.state._file:
                prepared.set()
                monkeypatch.setattr(CheckpointFile, "load", load)
                threading.Thread(target=rig.prepare, args=(nic_claim("1", "A"),)).start()
            return state

        monkeypatch.setattr(CheckpointFile, "load", late)
        other = rig.restart()
        assert prepared.is_set()
        assert other.prepare(nic_claim("1", "A"))
        assert other.programmed("eth1") == {"subnet": "A"}

    def test_a_start_waits_for_no_device_that_another_is_at_work_on(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A device that hangs in the old instance must not keep the version that knows how to mend it out."""
        at_work, go_on = threading.Event(), threading.Event()

        def hangs(device: str, keys: Mapping[str, str]) -> None:
            at_work.set()
            go_on.wait(60)

        monkeypatch.setattr(rig.profile, "configure", hangs)
        old = threading.Thread(target=rig.prepare, args=(nic_claim("1", "A"),))
        old.start()
        assert at_work.wait(10)
        started: list[Rig] = []
        new = threading.Thread(target=lambda: started.append(rig.restart()))
        new.start()
        new.join(20)
        try:
            assert started, "the new instance waits for the old one's device"
            assert started[0].prepare(nic_claim("2", "B", "eth2"))
        finally:
            go_on.set()
            old.join(20)
            new.join(20)

    def test_of_two_that_leave_at_once_the_last_resets(self, rig: Rig) -> None:
        other = rig.restart()
        for number in range(20):
            rig.prepare(nic_claim("1", "A", "eth1", "eth2"))
            other.prepare(nic_claim("2", "A", "eth2", "eth1"))
            leaving = [
                threading.Thread(target=made.state.unprepare, args=(uid,))
                for made, uid in ((rig, "1"), (other, "2"))
            ]
            for thread in leaving:
                thread.start()
            for thread in leaving:
                thread.join(20)
            assert [rig.programmed(device) for device in rig.devices] == [{}, {}], f"round {number}"


# --- kill -9 at every step that changes a file -------------------------------------------------------------


def _prepare_first(rig: Rig) -> None:
    rig.prepare(nic_claim("1", "A", "eth1", "eth2"))


def _prepare_second(rig: Rig) -> None:
    rig.prepare(nic_claim("2", "A"))


def _unprepare_first(rig: Rig) -> None:
    rig.state.unprepare("1")


def _unprepare_second(rig: Rig) -> None:
    rig.state.unprepare("2")


SCENARIO: list[Callable[[Rig], None]] = [_prepare_first, _prepare_second, _unprepare_first, _unprepare_second]


def _steps(root: Path, boot: str) -> int:
    """How many file-changing steps the whole scenario takes."""
    count = [0]

    def tick(step: str, path: Path) -> None:
        count[0] += 1

    rig = Rig.make(root, Disk(tick), boot)
    for operation in SCENARIO:
        operation(rig)
    return count[0]


def _killed_at(root: Path, number: int, boot: str) -> int:
    """Run the scenario in a child process that kills itself with SIGKILL ahead of step ``number``.

    Returns how many operations had returned before.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count = [0]

        def tick(step: str, path: Path) -> None:
            count[0] += 1
            if count[0] == number:
                if step == "fsync" and path.suffix == ".tmp":
                    path.write_bytes(
                        path.read_bytes()[:7]
                    )  # what a power failure may leave of an unsynced file
                os.kill(os.getpid(), signal.SIGKILL)

        rig = Rig.make(root, Disk(tick), boot)
        for operation in SCENARIO:
            operation(rig)
            os.write(write, b".")
        os._exit(0)
    os.close(write)
    done = 0
    while os.read(read, 1):
        done += 1
    os.close(read)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"step {number} was never reached"
    return done


@pytest.mark.parametrize("next_boot", ["boot-1", "boot-2"])
def test_kill_at_every_write(tmp_path: Path, next_boot: str) -> None:
    """After a kill ahead of any step nothing answered is lost, all can be finished, nothing is left over."""
    total = _steps(tmp_path / "count", "boot-1")
    assert total > 40
    for number in range(1, total + 1):
        root = tmp_path / str(number)
        done = _killed_at(root, number, "boot-1")
        rig = Rig.make(root, None, next_boot)
        context = f"killed ahead of step {number}, {done} operations done"
        held = rig.state.snapshot().claims
        surely = ({}, {"1"}, {"2"}, {})[done]
        assert set(surely) <= held.keys(), context
        completed = {uid for uid, claim in held.items() if claim.phase is Phase.COMPLETED}
        assert completed <= rig.cdi_files() <= held.keys(), context
        if held:
            device = next(iter(held.values())).shares[0].device
            with pytest.raises(IncompatibleError):
                rig.prepare(nic_claim("foreign", "B", device))
        for operation in SCENARIO[done:]:  # the kubelet retries what was not answered
            operation(rig)
        assert rig.state.snapshot().claims == {}, context
        assert rig.cdi_files() == set(), context
        assert [rig.programmed(device) for device in rig.devices] == [{}, {}], context
        left = {path.name for path in (root / "plugin").iterdir()}
        assert left <= {"checkpoint.json", "serialize.lock", "hardware"}, context
        assert list((root / "plugin" / "hardware").glob("*")) == [], context


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
