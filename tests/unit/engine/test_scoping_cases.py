"""Area A of the public cases: which configs are in scope, and what they yield, live and after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from harness import objects as o
from harness.worlds import World, nics

from sharing_affinity.engine import DeviceState, NotServed, Placed, Reason

JSON = dict[str, Any]


def any_of(name: str, *alternatives: tuple[str, str]) -> JSON:
    """A firstAvailable request; each alternative is (name, selector)."""
    return {
        "name": name,
        "firstAvailable": [
            {"name": sub, "deviceClassName": o.CLASS, "selectors": [o.cel(selector)]}
            for sub, selector in alternatives
        ],
    }


def stored(w: World, name: str) -> list[JSON]:
    raw = w.objects[("ResourceClaim", "default", name)]
    return list(raw["status"]["allocation"]["devices"].get("config", []))


def test_a01_config_of_two_subrequests_does_not_widen_to_other_requests() -> None:
    w = nics()
    got = w.place(
        "pod",
        requests=[any_of("nic", ("fast", "true"), ("slow", "true")), o.request("mgmt")],
        configs=[o.config(o.nic("A"), ["nic/fast", "nic/slow"]), o.config(o.nic("B"), ["mgmt"])],
    )
    assert got == ["eth1", "eth2"]
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=B"}
    assert stored(w, "pod")[0]["requests"] == ["nic/fast", "nic/slow"]
    assert w.restarted().locks() == w.locks()


def test_a01_request_list_that_covers_all_is_left_out_and_means_all() -> None:
    w = nics()
    w.place(
        "pod", requests=[o.request("nic"), o.request("mgmt")], configs=[o.config(o.nic("A"), ["nic", "mgmt"])]
    )
    assert "requests" not in stored(w, "pod")[0]
    assert w.restarted().locks() == w.locks() == {"eth1": "subnet=A"}


def test_a02_class_configs_say_which_request_they_are_for() -> None:
    w = nics(o.device_class("nic-a", [o.nic("A")]), o.device_class("nic-b", [o.nic("B")]))
    w.place("pod", requests=[o.request("r0", "nic-a"), o.request("r1", "nic-b")])
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=B"}
    assert [(c["source"], c["requests"]) for c in stored(w, "pod")] == [
        ("FromClass", ["r0"]),
        ("FromClass", ["r1"]),
    ]
    assert w.restarted().locks() == w.locks()


def test_a02_two_requests_of_one_class_share_one_entry() -> None:
    w = nics(o.device_class("nic-a", [o.nic("A")]))
    w.place("pod", requests=[o.request("r0", "nic-a"), o.request("r1", "nic-a")])
    assert [c["source"] for c in stored(w, "pod")] == ["FromClass"]
    assert "requests" not in stored(w, "pod")[0]


def test_a02_ambiguous_class_configs_of_an_old_allocation_are_never_guessed() -> None:
    raw = o.claim("old", requests=[o.request("r0", "nic-a"), o.request("r1", "nic-b")])
    raw = o.allocated(raw, requests=["r0", "r1"])
    devices = raw["status"]["allocation"]["devices"]
    devices["results"][1]["device"] = "eth2"
    devices["config"] = [{"source": "FromClass", **o.config(o.nic(s))} for s in ("A", "B")]
    w = nics(raw)
    assert [w.lock(d).state for d in ("eth1", "eth2")] == [DeviceState.UNRECONSTRUCTABLE] * 2


@pytest.mark.parametrize("scope", ["nic", "nic/silver"])
def test_a03_config_of_parent_or_chosen_alternative_is_in_scope(scope: str) -> None:
    w = nics()
    w.place(
        "pod",
        requests=[any_of("nic", ("gold", "false"), ("silver", "true"))],
        configs=[o.config(o.nic("A"), [scope])],
    )
    raw = w.objects[("ResourceClaim", "default", "pod")]
    assert raw["status"]["allocation"]["devices"]["results"][0]["request"] == "nic/silver"
    assert w.restarted().locks() == w.locks() == {"eth1": "subnet=A"}


def test_a03_config_of_another_alternative_is_not_in_scope() -> None:
    w = nics()
    refused = w.refuse(
        "pod",
        requests=[any_of("nic", ("gold", "false"), ("silver", "true"))],
        configs=[o.config(o.nic("A"), ["nic/gold"])],
    )
    assert "produced no value" in refused.message


def test_a03_names_are_compared_whole() -> None:
    w = nics()
    w.refuse("pod", requests=[o.request("ni"), o.request("nic")], configs=[o.config(o.nic("A"), ["nic"])])


@pytest.mark.parametrize("requests", [None, [], ["nic"]])
def test_a04_absent_empty_and_full_request_lists_are_the_same(requests: list[str] | None) -> None:
    config = o.config(o.nic("A"))
    if requests is not None:
        config["requests"] = requests
    w = nics()
    w.place("pod", configs=[config])
    assert w.restarted().locks() == w.locks() == {"eth1": "subnet=A"}


def two_kinds(expression: str) -> World:
    return World(
        o.node(),
        o.device_class(),
        o.metadata_slice([{"name": "mode", "expression": expression}]),
        o.device_slice(),
    )


GPU = o.config({"kind": "GpuConfig", "sharing": "MPS"})
MIG = o.config({"kind": "MigDeviceConfig", "profile": "1g"})


def test_a05_unguarded_extractor_makes_two_kinds_contradict() -> None:
    w = two_kinds("object.kind")
    refused = w.refuse("pod", configs=[GPU, MIG])
    assert refused.reason is Reason.CLAIM_ERROR
    assert w.locks() == {}


def test_a05_guarded_extractor_takes_the_kind_it_knows() -> None:
    w = two_kinds('object.kind == "GpuConfig" ? object.sharing : ""')
    w.place("pod", configs=[GPU, MIG])
    assert w.locks() == {"eth1": "mode=MPS"}


def test_a05_two_configs_of_one_value_agree() -> None:
    w = two_kinds("object.kind")
    w.place("pod", configs=[GPU, o.config({"kind": "GpuConfig", "other": 1})])
    assert w.locks() == {"eth1": "mode=GpuConfig"}


def test_a06_bare_config_and_unguarded_extractor_abort_the_pod_alone() -> None:
    w = two_kinds('object.apiVersion == "v1" ? "x" : ""')
    refused = w.refuse("pod", configs=[o.config({"vlan": 1001, "podIfName": "sriov0"})])
    assert refused.reason is Reason.SLICE_ERROR
    assert w.place("good", configs=[o.config({"apiVersion": "v1"})]) == ["eth1"]


def test_a06_number_made_a_string_by_the_extractor() -> None:
    w = two_kinds('has(object.vlan) ? string(object.vlan) : ""')
    w.place("pod", configs=[o.config({"vlan": 1001, "podIfName": "sriov0"})])
    assert w.locks() == {"eth1": "mode=1001"}


def test_a07_the_claims_value_wins_over_the_classs() -> None:
    w = nics(o.device_class("nic-a", [o.nic("default")]))
    w.place("pod", requests=[o.request(device_class="nic-a")], configs=[o.config(o.nic("A"))])
    assert w.restarted().locks() == w.locks() == {"eth1": "subnet=A"}


def test_a07_the_class_alone_supplies_a_key() -> None:
    w = nics(o.device_class("nic-a", [o.nic("default")]))
    w.place("pod", requests=[o.request(device_class="nic-a")])
    assert w.restarted().locks() == w.locks() == {"eth1": "subnet=default"}


def test_a07_class_and_claim_may_each_supply_a_key() -> None:
    w = World(
        o.node(),
        o.device_class("nic-a", [o.nic("default")]),
        o.metadata_slice([o.SUBNET, o.PKEY]),
        o.device_slice(),
    )
    w.place("pod", requests=[o.request(device_class="nic-a")], configs=[o.config(o.nic(ibPKey="7"))])
    assert w.restarted().locks() == w.locks() == {"eth1": "pkey=7,subnet=default"}


def test_a07_count_of_two_gives_both_devices_the_lock() -> None:
    w = nics()
    assert w.place("pod", "A", requests=[o.request(count=2)]) == ["eth1", "eth2"]
    assert w.locks() == {"eth1": "subnet=A", "eth2": "subnet=A"}


def test_configs_of_another_driver_are_out_of_scope() -> None:
    w = nics()
    w.refuse("pod", configs=[o.config(o.nic("A"), driver="other.example.com")])


def test_requests_of_one_claim_with_different_keys_never_share_a_device() -> None:
    w = World(o.node(), o.device_class(), o.metadata_slice(), o.device_slice([o.device("eth1")]))
    w.refuse(
        "pod",
        requests=[o.request("a"), o.request("b")],
        configs=[o.config(o.nic("A"), ["a"]), o.config(o.nic("B"), ["b"])],
    )
    assert w.locks() == {}


def test_values_are_taken_verbatim() -> None:
    w = nics()
    for index, value in enumerate(["0x8001", "0X8001"]):
        assert w.place(f"pod{index}", value) == [f"eth{index + 1}"]
    for value in ("32769", " 0x8001", "é", "e\u0301"):
        w.refuse(f"refused-{value.encode().hex()}", value)


def test_a_long_value_does_not_flood_messages() -> None:
    w = nics()
    w.place("one", "A" * 5000)
    w.place("two", "line\nbreak")
    refused = w.refuse("three", "B" * 5000)
    assert len(refused.message) < 600
    assert "\n" not in refused.message


def test_not_a_claim_of_ours_is_none_of_our_business() -> None:
    w = nics(o.device_class("gpu", selectors=[o.cel('device.driver == "gpu.example.com"')]))
    decision = w.try_place("pod", requests=[o.request("gpu", "gpu")])
    assert isinstance(decision, NotServed)
    assert not isinstance(w.decide("pod"), Placed)
