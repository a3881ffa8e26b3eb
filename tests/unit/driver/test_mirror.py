"""What the metadata sidecar wants to be there, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from harness import objects
from hypothesis import given, settings
from hypothesis import strategies as st

from affinity_driver import extractors_file
from affinity_driver.cli import main
from affinity_driver.kube import ApiError
from affinity_driver.mirror import desired, fence
from affinity_driver.mirror.command import Source
from affinity_driver.mirror.sidecar import Sidecar, SidecarOptions
from affinity_driver.publish.diff import Verb, Write
from sharing_affinity import pools
from sharing_affinity.api import Extractor, parse_metadata_slice, parse_slice, parse_taint_rule

DRIVER = objects.DRIVER
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-node", "controller": True}
SUBNET = Extractor("subnet", 'has(object.subnetID) ? object.subnetID : ""')


def device_slice(name: str = "dev", **more: Any) -> dict[str, Any]:
    """As an official library publishes: unfenced, owned by the Node."""
    devices = more.pop("devices", [objects.device(f"{name}-eth1", fence=False)])
    made = objects.device_slice(devices, name=name, **more)
    made["metadata"]["ownerReferences"] = [{**OWNER, "blockOwnerDeletion": True}]
    return made


def keys(number: int) -> list[Extractor]:
    return [Extractor(f"k{index:02}", f'"{index}"') for index in range(number)]


def mirrored(slices: list[dict[str, Any]], extractors: list[Extractor] | None = None) -> list[dict[str, Any]]:
    found = desired.wanted(slices, {"node-a": extractors or [SUBNET]})
    return list(found.get("node-a", ()))


def performed(before: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The stored metadata after each write, until nothing is left to do."""
    stored = {item["metadata"]["name"]: item for item in before}
    states = []
    while writes := desired.plan(wanted, [stored[name] for name in sorted(stored)]):
        for write in writes:
            if write.verb is Verb.DELETE:
                del stored[write.name]
            else:
                assert (write.verb is Verb.CREATE) == (write.name not in stored)
                stored[write.name] = write.body
            states.append(list(stored.values()))
    return states


def judged(slices: list[dict[str, Any]], metadata: list[dict[str, Any]]) -> pools.Pool:
    rule = {**fence.wanted_rule(DRIVER)}
    return pools.validate(
        DRIVER,
        "node-a",
        [parse_slice(item) for item in slices],
        [
            parse_metadata_slice({**item, "metadata": objects.meta(item["metadata"]["name"])})
            for item in metadata
        ],
        rules=[parse_taint_rule(rule)],
        rule_fences=True,
        estimate=lambda expression: 1,
    )


def test_pool_of_another_publisher_joins() -> None:
    slices = [device_slice("a", generation=7, count=2), device_slice("b", generation=7, count=2)]
    (made,) = mirrored(slices)
    assert made["spec"]["pool"] == {"name": "node-a", "generation": 7, "resourceSliceCount": 3}
    assert made["spec"]["nodeName"] == "node-a"
    assert made["metadata"]["ownerReferences"] == [OWNER]
    assert desired.is_ours(made)
    assert judged(slices, [made]).state is pools.PoolState.JOINED


@pytest.mark.parametrize("generation", [1, 9])
def test_generation_is_followed_in_both_directions(generation: int) -> None:
    (before,) = mirrored([device_slice(generation=5)])
    slices = [device_slice(generation=generation)]
    (write,) = desired.plan(mirrored(slices), [before])
    assert write.verb is Verb.UPDATE
    assert judged(slices, [before]).state is not pools.PoolState.JOINED
    assert judged(slices, [write.body]).state is pools.PoolState.JOINED


def test_old_generation_beside_a_new_one_is_not_mirrored() -> None:
    (made,) = mirrored([device_slice("a", generation=3), device_slice("b", generation=4, count=2)])
    assert made["spec"]["pool"] == {"name": "node-a", "generation": 4, "resourceSliceCount": 3}


def test_nothing_is_said_while_slices_disagree_about_their_number() -> None:
    assert mirrored([device_slice("a", count=1), device_slice("b", count=2)]) == []


def test_nothing_is_written_twice() -> None:
    made = mirrored([device_slice()], keys(9))
    assert len(made) == 2
    assert desired.plan(made, made) == ()


@pytest.mark.parametrize("before", [1, 8, 9, 17])
@pytest.mark.parametrize("after", [1, 8, 9, 17])
def test_no_moment_of_a_change_joins_with_a_mixture_of_extractors(before: int, after: int) -> None:
    """Old and new sets differ in one expression and in size; whatever number of slices the publisher has at
    that moment, only a whole set is ever usable.
    """
    slices = [device_slice()]
    new_set = [*keys(after)[:-1], Extractor("changed", '"x"')]
    old, new = mirrored(slices, keys(before)), mirrored(slices, new_set)
    whole = [{(e.name, e.expression) for e in each} for each in (keys(before), new_set)]
    states = performed(old, new)
    for state in states:
        for count in (1, 2, 3):
            pool = judged([device_slice(f"d{index}", count=count) for index in range(count)], state)
            assert not pool.usable or {(e.name, e.expression) for e in pool.extractors} in whole
    assert judged(slices, states[-1]).usable


SIZES = [("a", 9), ("b", 9), ("c", 9), ("a", 8), ("b", 17), ("c", 1)]
SETS = [[Extractor(f"k{index:02}", f'"{tag}"') for index in range(size)] for tag, size in SIZES]
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.just("file"), st.sampled_from(SETS)),
    st.tuples(st.just("pass"), st.integers(0, 4)),
    st.tuples(st.just("write"), st.integers(1, 4)),
)


@settings(max_examples=40)
@given(st.lists(steps, max_size=30))
def test_no_order_of_publishing_and_writing_joins_a_mixture(history: list[tuple[Any, ...]]) -> None:
    """The publisher changes its slices, and the file its content, between any two writes of a sidecar that
    may start again after any of them: a usable pool has one whole set of extractors that the file had.
    """
    slices = [device_slice()]
    stored: dict[str, dict[str, Any]] = {}
    file, pending = SETS[0], list[Write]()
    whole = [[(e.name, e.expression) for e in each] for each in SETS]
    for kind, *values in [*[("pass", 20)] * 4, *history, *[("pass", 20)] * 4]:
        writes: tuple[Write, ...] = ()
        if kind == "publish":
            generation, count = values
            slices = [device_slice(f"d{index}", generation=generation, count=count) for index in range(count)]
        elif kind == "file":
            (file,) = values
        else:
            if kind == "pass":
                existing = [stored[name] for name in sorted(stored)]
                pending = list(desired.plan(mirrored(slices, file), existing))
            writes, pending = tuple(pending[: values[0]]), pending[values[0] :]
        for write in (*writes, None):
            if write is not None and write.verb is Verb.DELETE:
                del stored[write.name]
            elif write is not None:
                stored[write.name] = write.body
            pool = judged(slices, list(stored.values()))
            found = [(extractor.name, extractor.expression) for extractor in pool.extractors]
            assert not pool.usable or found in whole
    assert pool.usable
    assert found == [(e.name, e.expression) for e in file]


def test_annotations_outlive_a_change_that_needs_a_new_object() -> None:
    (before,) = mirrored([device_slice()])
    before["metadata"]["annotations"] = {"kept": "yes"}
    moved = [device_slice(nodeSelector={"nodeSelectorTerms": [{"matchExpressions": []}]})]
    delete, create = desired.plan(mirrored(moved), [before])
    assert (delete.verb, create.verb) == (Verb.DELETE, Verb.CREATE)
    assert create.body["metadata"]["annotations"] == {"kept": "yes"}
    assert "nodeName" not in create.body["spec"]


def test_slices_of_different_nodes_are_described_everywhere() -> None:
    (made,) = mirrored([device_slice("a", count=2), device_slice("b", count=2, nodeName="node-b")])
    assert made["spec"]["allNodes"] is True
    assert judged([device_slice("a", count=2), device_slice("b", count=2)], [made]).usable


@pytest.mark.parametrize(
    ("change", "stands"),
    [
        ({}, True),
        ({"deviceSelector": {}}, True),
        ({"deviceSelector": {"driver": DRIVER, "pool": "node-a"}}, False),
        ({"deviceSelector": {"driver": "other"}}, False),
        ({"taint": {"key": "sharingaffinity.dev/managed", "effect": "NoExecute"}}, False),
        ({"taint": {"key": "other", "effect": "NoSchedule"}}, False),
    ],
)
def test_which_rules_fence_a_driver(change: dict[str, Any], stands: bool) -> None:
    rule = fence.wanted_rule(DRIVER)
    rule["metadata"]["creationTimestamp"] = "1970-01-01T00:01:00Z"
    rule["spec"] |= change
    assert fence.fenced_since([rule], DRIVER) == (60.0 if stands else None)


def test_age_of_the_fence_is_that_of_its_oldest_rule() -> None:
    rules = []
    for stamp in ("1970-01-01T00:02:00Z", "1970-01-01T00:01:00Z"):
        rule = fence.wanted_rule(DRIVER)
        rule["spec"]["taint"]["timeAdded"] = stamp
        rules.append(rule)
    assert fence.fenced_since(rules, DRIVER) == 60.0


class Stored:
    """The sidecar's API server: what its three lists answer, and what was deleted."""

    def __init__(self, **lists: list[dict[str, Any]]) -> None:
        self.lists = lists
        self.deleted: list[str] = []

    def list(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        return {"items": self.lists.get(path.rpartition("/")[2], [])}

    def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        self.deleted.append(uid)


def running(api: Stored, clock: Callable[[], float], steady: Callable[[], float]) -> Sidecar:
    options = SidecarOptions(DRIVER, "node-a")
    return Sidecar(api, options, lambda: [SUBNET], lambda *_: None, clock, steady)  # type: ignore[arg-type]


def test_metadata_outlives_a_clock_that_is_put_forward() -> None:
    """A node boots with an old clock, and gets the time while its devices are not published yet."""
    (metadata,) = mirrored([device_slice()])
    metadata["metadata"] |= {"uid": "m", "resourceVersion": "1"}
    rule = fence.wanted_rule(DRIVER)
    rule["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    api = Stored(sharingaffinityslices=[metadata], devicetaintrules=[rule])
    passed, put = [0.0], [0.0]
    made = running(api, lambda: 3600.0 + passed[0] + put[0], lambda: passed[0])
    made.sync()
    passed[0], put[0] = 10.0, 86400.0
    made.sync()
    assert api.deleted == []
    passed[0] = 700.0
    made.sync()
    assert api.deleted == ["m"]


@pytest.mark.parametrize(("conflicts", "left"), [(2, set()), (99, {"m"})])
def test_withdrawing_goes_on_when_the_operator_writes_a_status(conflicts: int, left: set[str]) -> None:
    (metadata,) = mirrored([device_slice()])
    metadata["metadata"] |= {"uid": "m", "resourceVersion": "1"}

    class Contended(Stored):
        def delete(self, path: str, *, uid: str, resource_version: str) -> None:
            nonlocal conflicts
            conflicts -= 1
            if conflicts >= 0:
                raise ApiError(409, "Conflict", "the object has been modified")
            super().delete(path, uid=uid, resource_version=resource_version)

    api = Contended(sharingaffinityslices=[metadata])
    with pytest.raises(ApiError) if left else nullcontext():
        running(api, lambda: 0.0, lambda: 0.0).withdraw()
    assert {"m"} - set(api.deleted) == left


def test_pools_that_are_gone_are_not_remembered() -> None:
    """With --all-nodes, each node that ever was would be kept."""
    rule = fence.wanted_rule(DRIVER)
    rule["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    metadata = mirrored([device_slice()])
    api = Stored(resourceslices=[device_slice()], sharingaffinityslices=metadata, devicetaintrules=[rule])
    made = running(api, lambda: 3600.0, lambda: 0.0)
    made.sync()
    assert set(made._seen) == {"node-a"}
    del api.lists["resourceslices"], api.lists["sharingaffinityslices"]
    made.sync()
    assert made._seen == {}


GOOD = """\
sharingAffinity:
  - name: subnet
    expression: >-
      has(object.subnet) ? object.subnet : ""
"""
COSTLY = """\
  - name: c
    expression: 'object.a.all(x, object.a.all(y, object.a.all(z, x == z))) ? "" : ""'
"""


def test_file_is_read() -> None:
    (found,) = extractors_file.parse(GOOD)
    assert found == Extractor("subnet", 'has(object.subnet) ? object.subnet : ""')


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["f:1: one field is needed, sharingAffinity"]),
        ("[", ["f:1: not YAML"]),
        ("other: 1", ["f:1: one field is needed"]),
        ("sharingAffinity: []", ["f:1: sharingAffinity: a list of at least one entry"]),
        (GOOD + "  - name: vlan", ["f:5: an entry has exactly the fields name and expression"]),
        (GOOD + "  - {name: a, name: b, expression: x}", ["f:5: an entry has exactly the fields"]),
        (GOOD + "  - name: vlan\n    expression: 5", ["f:6: expression: a string is needed"]),
        (GOOD + "  - {name: subnet, expression: '\"x\"'}", ["f:5: subnet: declared in line 2 already"]),
        (GOOD + "  - {name: -, expression: '\"x\"'}", ["f:5: extractor name '-' is no qualified name"]),
        (
            GOOD + "  - {name: a, expression: objekt.x}\n  - {name: b, expression: '1'}",
            ["f:5: a: ", "f:6: b: "],
        ),
        (GOOD + COSTLY, ["f:5: c: the extractors up to here may cost"]),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_lines(text: str, problems: list[str]) -> None:
    with pytest.raises(extractors_file.FileError) as caught:
        extractors_file.parse(text, "f")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(problems), lines
    for line, start in zip(lines, problems, strict=True):
        assert line.startswith(start)


def test_bad_change_of_the_file_is_told_and_not_taken(tmp_path: Path) -> None:
    path, told = tmp_path / "f", []
    path.write_text(GOOD)
    source = Source(path, lambda *words: told.append(words))
    (before,) = source.extractors()
    path.write_text("nothing: good")
    assert source.extractors() == (before,)
    assert [reason for reason, _ in told] == ["BadExtractors"]
    path.write_text(GOOD.replace("subnet", "vlan"))
    assert [extractor.name for extractor in source.extractors()] == ["vlan"]
    path.unlink()
    assert [extractor.name for extractor in source.extractors()] == ["vlan"]


def test_command_line_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(["metadata-sidecar", "--driver", DRIVER]) == 2
    assert main(["metadata-sidecar", "--driver", DRIVER, "--extractors", "f"]) == 2
    assert main(["metadata-sidecar", "--driver", DRIVER, "--extractors", "f", "--all-nodes"]) == 3
    assert "--extractors FILE" in (told := capsys.readouterr().err)
    assert "--node-name" in told
    assert "ServiceAccount" in told
