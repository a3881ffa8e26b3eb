"""The rules for sharing a device, the checkpoint's format, and CDI specs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinity_driver.cdi import ANNOTATION, CdiDirectory, device_name, spec
from affinity_driver.claims.errors import IncompatibleError
from affinity_driver.disk import Disk
from affinity_driver.state.checkpoint import CheckpointError, CheckpointFile, decode, encode
from affinity_driver.state.model import NodeState, Phase, PreparedClaim, Share, check_compatible

CAPACITY = {"eth1": {"slots": "4"}, "eth2": {"slots": "4"}}


def share(subnet: str = "a", device: str = "eth1", share_id: str | None = "s", **changes: Any) -> Share:
    base = Share("nic", "node-a", device, share_id, {"subnet": subnet}, {"mtu": 9000}, {"slots": "1"})
    return replace(base, **changes)


def claim(uid: str, *shares: Share, phase: Phase = Phase.COMPLETED) -> PreparedClaim:
    own = tuple(replace(each, share_id=each.share_id and f"{each.share_id}-{uid}") for each in shares)
    return PreparedClaim(uid, "tenant", f"claim-{uid}", phase, own)


def state(*claims: PreparedClaim) -> NodeState:
    return NodeState("boot", {each.uid: each for each in claims})


class TestCompatible:
    def test_the_same_keys_share(self) -> None:
        check_compatible(state(claim("1", share())), claim("2", share()), CAPACITY)

    def test_other_keys_do_not(self) -> None:
        with pytest.raises(IncompatibleError) as rejected:
            check_compatible(
                state(claim("1", share()), claim("3", share())), claim("2", share("b")), CAPACITY
            )
        assert str(rejected.value) == (
            'device eth1 is in use with another subnet by 2 prepared claims; this claim needs subnet="b"'
        )
        assert rejected.value.holders == ("1", "3")
        assert rejected.value.key == "subnet"

    def test_the_text_names_neither_holders_nor_their_values(self) -> None:
        holder = claim("1", share("secret-subnet"))
        with pytest.raises(IncompatibleError) as rejected:
            check_compatible(state(holder), claim("2", share("b")), CAPACITY)
        text = str(rejected.value)
        assert "secret-subnet" not in text
        assert holder.name not in text
        assert "tenant" not in text

    def test_started_claims_hold_too(self) -> None:
        with pytest.raises(IncompatibleError):
            check_compatible(
                state(claim("1", share(), phase=Phase.STARTED)), claim("2", share("b")), CAPACITY
            )

    def test_another_device_is_another_lock(self) -> None:
        check_compatible(state(claim("1", share())), claim("2", share("b", "eth2")), CAPACITY)

    def test_a_missing_key_is_another_value(self) -> None:
        with pytest.raises(IncompatibleError, match="this claim has no subnet"):
            check_compatible(state(claim("1", share())), claim("2", share(keys={})), CAPACITY)
        with pytest.raises(IncompatibleError):
            check_compatible(state(claim("1", share(keys={}))), claim("2", share()), CAPACITY)

    def test_private_settings_may_differ(self) -> None:
        check_compatible(state(claim("1", share())), claim("2", share(settings={"mtu": 1500})), CAPACITY)

    def test_a_claim_is_not_in_its_own_way(self) -> None:
        check_compatible(state(claim("1", share())), claim("1", share("b")), CAPACITY)

    def test_two_requests_of_one_claim_must_agree_on_a_device(self) -> None:
        both = PreparedClaim("2", "t", "c", Phase.STARTED, (share("a"), share("b", share_id="other")))
        with pytest.raises(IncompatibleError, match="another subnet by another request of this claim; "):
            check_compatible(state(), both, CAPACITY)
        with pytest.raises(IncompatibleError, match="another subnet by 1 prepared claim; "):
            check_compatible(state(claim("1", share("b"))), both, CAPACITY)
        dedicated = replace(both, shares=(share(share_id=None), share(share_id=None)))
        with pytest.raises(IncompatibleError, match="still held by another request of this claim"):
            check_compatible(state(), dedicated, CAPACITY)

    def test_admin_access_holds_nothing_and_is_bound_by_nothing(self) -> None:
        admin = claim("1", share(admin=True))
        check_compatible(state(admin), claim("2", share("b")), CAPACITY)
        check_compatible(state(claim("2", share("b"))), admin, CAPACITY)

    def test_capacity_is_not_exceeded(self) -> None:
        full = state(*(claim(str(number), share()) for number in range(4)))
        with pytest.raises(IncompatibleError, match="not enough slots left beside 4 prepared claims"):
            check_compatible(full, claim("5", share()), CAPACITY)
        check_compatible(full, claim("5", share(consumed={})), CAPACITY)

    def test_case_b11_negative_consumption_is_no_credit(self) -> None:
        """Somebody's allocation with such an amount gives nobody more room."""
        full = state(*(claim(str(number), share()) for number in range(4)))
        debtor = full.with_claim(claim("5", share(consumed={"slots": "-5"})))
        with pytest.raises(IncompatibleError, match="not enough slots left"):
            check_compatible(debtor, claim("6", share()), CAPACITY)

    def test_a_dedicated_device_is_alone(self) -> None:
        dedicated = claim("1", share(share_id=None))
        for pair in ((dedicated, claim("2", share())), (claim("2", share()), dedicated)):
            with pytest.raises(IncompatibleError, match="cannot be prepared twice"):
                check_compatible(state(pair[0]), pair[1], CAPACITY)

    def test_a_share_id_is_prepared_once(self) -> None:
        first = PreparedClaim("1", "t", "a", Phase.COMPLETED, (share(),))
        second = replace(first, uid="2")
        with pytest.raises(IncompatibleError, match="cannot be prepared twice"):
            check_compatible(state(first), second, CAPACITY)


class TestCheckpoint:
    def test_round_trip(self) -> None:
        full = state(claim("1", share(), share(device="eth2", share_id=None)), claim("2", share(admin=True)))
        assert decode(encode(full)) == full

    def test_the_same_state_gives_the_same_bytes(self) -> None:
        first, second = claim("1", share()), claim("2", share())
        assert encode(state(first, second)) == encode(state(second, first))

    def test_unknown_fields_of_a_later_minor_change_are_ignored(self) -> None:
        payload = json.loads(encode(state(claim("1", share()))).split(b"\n", 1)[1])
        payload["later"] = 1
        payload["claims"][0]["later"] = 1
        assert decode(_file(payload)) == state(claim("1", share()))

    @pytest.mark.parametrize(
        ("damage", "expected"),
        [
            (lambda data: b"", "not readable"),
            (lambda data: data[:-5], "payload"),
            (lambda data: data.replace(b"tenant", b"tenanT"), "checksum"),
            (lambda data: data.replace(b'"version": 1', b'"version": 2'), "version 2"),
            (lambda data: b"\x00" * len(data), "not readable"),
            (lambda data: b'{"format": "other"}\n', "not a checkpoint"),
            (lambda data: b"[" * 100_000, "not readable"),
            (lambda data: _file({"bootID": "b", "claims": [{"uid": 1}]}), "not readable"),
        ],
    )
    def test_bad_bytes_are_explained(self, damage: Any, expected: str) -> None:
        with pytest.raises(CheckpointError, match=expected):
            decode(damage(encode(state(claim("1", share())))))

    def test_bad_files_are_set_aside_one_beside_the_other(self, tmp_path: Path) -> None:
        file = CheckpointFile(tmp_path / "checkpoint.json", Disk())
        for _ in range(2):
            file.path.write_bytes(b"bad")
            file.quarantine()
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "checkpoint.json.bad.0",
            "checkpoint.json.bad.1",
        ]
        assert file.load() is None

    def test_a_reboot_makes_everything_be_set_up_again(self) -> None:
        before = state(claim("1", share()))
        assert before.after_reboot("boot") is before
        after = before.after_reboot("next")
        assert after.claims["1"].phase is Phase.STARTED
        assert after.claims["1"].shares == before.claims["1"].shares


def _file(payload: Any) -> bytes:
    import hashlib

    data = json.dumps(payload).encode()
    digest = hashlib.sha256(data).hexdigest()
    head = {"format": "affinity-driver-checkpoint", "version": 1, "sha256": digest, "length": len(data)}
    return json.dumps(head).encode() + b"\n" + data


class TestCdi:
    def test_one_device_for_each_share(self) -> None:
        two = claim("1f", share(), share(device="eth2", share_id=None))
        environment = {device_name(two.uid, each): {"A": each.device} for each in two.shares}
        body = spec("nic.example.com/nic", two, environment)
        assert body["cdiVersion"] == "0.6.0"
        assert [device["name"] for device in body["devices"]] == ["1f-eth1-s-1f", "1f-eth2"]
        assert body["devices"][0]["containerEdits"] == {"env": ["A=eth1"]}

    def test_two_requests_for_one_dedicated_device_are_one_cdi_device(self) -> None:
        twice = PreparedClaim(
            "1", "t", "c", Phase.COMPLETED, (share(share_id=None), share(share_id=None, request="other"))
        )
        body = spec("k/c", twice, {"1-eth1": {"A": "1"}})
        assert len(body["devices"]) == 1

    def test_files_are_ours_readable_and_recoverable(self, tmp_path: Path) -> None:
        directory = CdiDirectory(tmp_path, "nic.example.com", "nic", Disk())
        one = claim("1", share())
        environment = {device_name("1", one.shares[0]): {"A": "1"}}
        assert directory.ensure(one, environment)
        assert not directory.ensure(one, environment)
        (path,) = tmp_path.iterdir()
        assert path.name == "nic.example.com-nic_1.json"
        assert path.stat().st_mode & 0o777 == 0o644
        (tmp_path / "vendor.com-gpu_2.json").write_text("{}")
        assert directory.claims() == {"1"}
        assert directory.recover() == {"1": one}
        path.write_text("{}")
        assert directory.recover() == {}
        assert directory.remove("1")
        assert not directory.remove("1")

    def test_annotation_is_a_string(self) -> None:
        body = spec("k/c", claim("1", share()), {device_name("1", claim("1", share()).shares[0]): {"A": "1"}})
        assert isinstance(body["annotations"][ANNOTATION], str)
