"""simulate and explain over files: the contract, the examples, and what is said about bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from harness import objects as o

from sharing_affinity.api.keys import shorten
from sharing_affinity.cli import explain, main, make_parser

ROOT = Path(__file__).parents[3]
JSON = dict[str, Any]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def schema(name: str) -> JSON:
    return json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())


class Cli:
    """Runs the command on objects put into a file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def file(self, *raws: JSON, name: str = "objects.yaml") -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump_all(raws, sort_keys=False))
        return str(path)

    def run(self, *argv: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(argv)
        out, err = self.capsys.readouterr()
        return code, out, err

    def simulate(self, *files: str, gates: str = "") -> JSON:
        argv = [a for f in files for a in ("-f", f)]
        code, out, err = self.run(
            "simulate", "-o", "json", *argv, *(["--feature-gates", gates] if gates else [])
        )
        assert (code, err) == (0, "")
        content = json.loads(out)
        jsonschema.validate(content, schema("simulate"))
        return content


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


def nodes_of(content: JSON) -> dict[str, str | None]:
    return {p["name"]: p["node"] for p in content["pods"]}


def devices_of(content: JSON) -> dict[str, list[str]]:
    return {
        c["name"]: [r["device"] for r in c["allocation"]["devices"]["results"]] if c["allocation"] else []
        for c in content["claims"]
    }


def locks_of(content: JSON) -> dict[str, JSON | None]:
    return {d["device"]: d["lock"] for d in content["devices"]}


BASE = [o.node(), o.device_class(), o.metadata_slice(), o.device_slice()]


@pytest.mark.parametrize(
    ("example", "pending", "locks"),
    [
        ("rdma-partition-key", ["d"], {"mlx5_0": {"pkey": "0x8001"}, "mlx5_1": {"pkey": "0x8002"}}),
        (
            "fpga-bitstream",
            ["video-1"],
            {"fpga-0": {"bitstream": "bitstream-ml-v2"}, "fpga-1": {"bitstream": "bitstream-crypto-v1"}},
        ),
        ("nic-subnet", ["plain"], {"eth1": {"subnet": "subnet-x"}, "eth2": {"subnet": "subnet-y"}}),
    ],
)
def test_the_three_stories(cli: Cli, example: str, pending: list[str], locks: JSON) -> None:
    content = cli.simulate(str(ROOT / "examples" / f"{example}.yaml"))
    assert sorted(n for n, node in nodes_of(content).items() if node is None) == pending
    assert locks_of(content) == locks


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_output_repeats_byte_for_byte_in_every_form(cli: Cli, example: Path) -> None:
    for form in ("table", "json", "yaml"):
        first = cli.run("simulate", "-o", form, "-f", str(example))
        assert first == cli.run("simulate", "-o", form, "-f", str(example))
        assert first[0] == 0
        assert first[2] == ""


@pytest.mark.parametrize("command", ["simulate", "locks"])
def test_several_files_may_follow_one_flag(cli: Cli, command: str) -> None:
    one, two = (str(ROOT / "examples" / name) for name in ("nic-subnet.yaml", "fpga-bitstream.yaml"))

    together = cli.run(command, "-f", one, two, "-o", "json")

    assert together[0] == 0
    assert together == cli.run(command, "-f", one, "-f", two, "-o", "json")


def test_share_ids_and_times_follow_from_the_claim_alone(cli: Cli) -> None:
    one = cli.simulate(cli.file(*BASE, o.claim("c", "A"), o.pod("p", ["c"])))
    more = [o.claim("b", "A"), o.pod("a", ["b"])]
    two = cli.simulate(cli.file(*BASE, *more, o.claim("c", "A"), o.pod("p", ["c"])))
    allocation = one["claims"][0]["allocation"]
    assert allocation == next(c for c in two["claims"] if c["name"] == "c")["allocation"]
    assert len({c["allocation"]["devices"]["results"][0]["shareID"] for c in two["claims"]}) == 2


def test_pods_go_by_priority_then_age_then_name(cli: Cli) -> None:
    slots = o.device_slice([o.device("eth1", "1")])
    raws = [o.node(), o.device_class(), o.metadata_slice(), slots]
    raws += [o.claim(n, "A") for n in ("old", "new", "high")]
    late = "2026-02-01T00:00:00Z"
    raws += [o.pod("new", created=late), o.pod("old")]
    assert nodes_of(cli.simulate(cli.file(*raws))) == {"old": "node-a", "new": None}
    raws.append(o.pod("high", created=late, priority=1))
    assert nodes_of(cli.simulate(cli.file(*raws))) == {"high": "node-a", "old": None, "new": None}


def test_template_claims_are_made_as_the_controller_makes_them(cli: Cli) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"spec": o.claim("x", "A")["spec"]},
    }
    entry = [{"name": "nic", "resourceClaimTemplateName": "t"}]
    content = cli.simulate(cli.file(*BASE, template, o.pod("p", resourceClaims=entry)))
    (claim,) = content["claims"]
    assert claim["name"].startswith("p-nic-")
    assert locks_of(content) == {"eth1": {"subnet": "A"}, "eth2": None}
    # A claim that is there already is taken, and no second one made.
    owner = [{"kind": "Pod", "name": "p", "uid": "uid-default-p", "controller": True}]
    note = {"resource.kubernetes.io/pod-claim-name": "nic"}
    there = o.claim("p-nic-abcde", "B", ownerReferences=owner, annotations=note)
    content = cli.simulate(cli.file(*BASE, template, there, o.pod("p", resourceClaims=entry)))
    assert devices_of(content) == {"p-nic-abcde": ["eth1"]}
    assert locks_of(content) == {"eth1": {"subnet": "B"}, "eth2": None}


def test_missing_template_keeps_the_pod_waiting(cli: Cli) -> None:
    entry = [{"name": "nic", "resourceClaimTemplateName": "t"}]
    content = cli.simulate(cli.file(*BASE, o.pod("p", resourceClaims=entry)))
    assert content["pods"][0]["message"] == "ResourceClaimTemplate t does not exist"


def test_state_of_the_file_is_where_it_starts(cli: Cli) -> None:
    held = o.allocated(o.claim("held", "A"), "eth1")
    unknown = o.allocated(o.claim("odd"), "eth2")
    content = cli.simulate(cli.file(*BASE, held, unknown, o.claim("p", "A"), o.pod("p")))
    assert devices_of(content) == {"held": ["eth1"], "odd": ["eth2"], "p": ["eth1"]}
    assert [d["state"] for d in content["devices"]] == ["Locked", "Unreconstructable"]


def test_feature_gates(cli: Cli) -> None:
    file = cli.file(*BASE, o.allocated(o.claim("held", "A"), "eth2"), o.claim("p", "A"), o.pod("p"))
    assert devices_of(cli.simulate(file))["p"] == ["eth2"]
    assert devices_of(cli.simulate(file, gates="DRASharingAffinityScoring=false"))["p"] == ["eth1"]
    off = cli.simulate(file, gates="DRASharingAffinity=false,DRASharingAffinityScoring=true")
    assert devices_of(off)["p"] == []
    assert "DRASharingAffinity is off" in off["pods"][0]["message"]
    code, _, err = cli.run("simulate", "-f", file, "--feature-gates", "DRAShareAffinity=true")
    assert code == 2
    assert "unknown feature gate 'DRAShareAffinity'" in err


def test_lists_of_kubectl_are_unwrapped(cli: Cli, tmp_path: Path) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [*BASE, o.claim("p", "A"), o.pod("p")]}
    path = tmp_path / "list.json"
    path.write_text(json.dumps(listed))
    assert devices_of(cli.simulate(str(path)))["p"] == ["eth1"]
    items = [{k: v for k, v in o.node("node-b").items() if k not in ("kind", "apiVersion")}]
    typed = {"apiVersion": "v1", "kind": "NodeList", "items": items}
    cli.simulate(str(path), cli.file(typed, name="typed.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "kind: Node\nmetadata:\n  name: n\nstatus:\n  allocatable:\n    cpu: lots\n",
            ":6: Node n: status.allocatable.cpu",
        ),
        ("kind: Pod\nmetadata:\n  nam: x\n", ":2: Pod: metadata.name is missing"),
        ("a: b: c\n", ":1: not YAML"),
        ("- 1\n", ":1: not a Kubernetes object"),
        ("metadata:\n  name: x\n", ":1: kind is missing"),
        (
            "apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  metadata:\n    name: ok\n"
            "- kind: ResourceClaim\n  metadata:\n    name: c\n  spec:\n    devices:\n      requests:\n"
            "      - name: 7\n",
            ":13: ResourceClaim default/c: spec.devices.requests[0].name: is a number, not a string",
        ),
        (
            "kind: Node\nmetadata:\n  name: n\n---\nkind: Node\nmetadata: 5\n",
            ":6: Node: metadata.name is missing",
        ),
        (
            "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata:\n  name: c\n",
            ":1: resource.k8s.io/v1beta1 is not supported",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(cli: Cli, text: str, expected: str) -> None:
    path = cli.folder / "bad.yaml"
    path.write_text(text)
    code, out, err = cli.run("simulate", "-f", str(path))
    assert (code, out) == (2, "")
    assert f"bad.yaml{expected}" in err


@pytest.mark.parametrize(
    "other",
    [
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": []},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "j-"}},
        {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest", "metadata": {}},
        {"apiVersion": "v1", "kind": "PodList", "items": None},
    ],
    ids=lambda other: str(other["kind"]),
)  # fmt: skip
def test_what_does_not_matter_is_not_judged(cli: Cli, other: JSON) -> None:
    raws = [*BASE, o.claim("p", "A"), o.pod("p")]
    assert cli.simulate(cli.file(*raws, other)) == cli.simulate(cli.file(*raws))


def test_all_mistakes_are_told_at_once(cli: Cli) -> None:
    bad = [o.node(name) for name in ("x", "y")]
    for raw in bad:
        raw["status"] = 1
    code, _, err = cli.run("simulate", "-f", cli.file(*BASE, *bad))
    assert code == 2
    assert len(err.splitlines()) == 2


def test_missing_file(cli: Cli) -> None:
    code, _, err = cli.run("simulate", "-f", "/nowhere/at/all.yaml")
    assert code == 2
    assert "No such file" in err


@pytest.mark.parametrize(
    ("scalar", "lock"),
    [
        ("0x8001", None),
        ("no", None),
        ("010", None),
        ("1_000", None),
        ("52:54:05:00:23:48", "52:54:05:00:23:48"),
        ("2026-01-01", "2026-01-01"),
        ('"0x8001"', "0x8001"),
        ('"no"', "no"),
        ("' A '", " A "),
        ("12e03x", "12e03x"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(cli: Cli, scalar: str, lock: str | None) -> None:
    """G-01: what is no string never becomes a lock."""
    extractor = {"name": "k", "expression": 'has(object.k) ? object.k : ""'}
    raws = [o.node(), o.device_class(), o.metadata_slice([extractor]), o.device_slice()]
    file = cli.file(*raws, o.claim("p", configs=[o.config({"k": "MARK"})]), o.pod("p"))
    path = Path(file)
    path.write_text(path.read_text().replace("MARK", scalar))
    content = cli.simulate(file)
    if lock is None:
        assert content["pods"][0]["reason"] == "SharingAffinitySliceError"
        assert set(locks_of(content).values()) == {None}
    else:
        assert locks_of(content)["eth1"] == {"k": lock}


def test_explain_tells_every_device(cli: Cli) -> None:
    raws = [*BASE, o.allocated(o.claim("held", "A"), "eth1", slots="16"), o.allocated(o.claim("odd"), "eth2")]
    raws += [o.claim("p", "A"), o.pod("p"), o.claim("q", "B"), o.pod("q"), o.pod("bound", nodeName="node-a")]
    file = cli.file(*raws)
    code, out, _ = cli.run("explain", "pod", "p", "-f", file, "-o", "json")
    assert code == 1
    content = json.loads(out)
    jsonschema.validate(content, schema("explain"))
    reasons = {d["device"]: d["reason"] for d in content["nodes"][0]["devices"]}
    assert reasons["eth1"] == f"device has not enough {o.SLOTS} left"
    assert reasons["eth2"] == "device has unknown affinity state due to legacy or invalid active claims"
    code, out, _ = cli.run("explain", "pod", "default/q", "-f", file)
    assert code == 1
    assert "node-a/eth1: device is locked to incompatible affinity values (claim has subnet=B)" in out
    assert "held" not in out
    assert cli.run("explain", "pod", "bound", "-f", file)[0] == 0
    assert cli.run("explain", "pod", "nobody", "-f", file)[0] == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("pod", "p", "-f", "FILES"),
        ("-f", "FILES", "pod", "p"),
        ("-o", "json", "-f", "FILES", "pod", "p"),
        ("-f", "FILES", "-n", "default", "pod", "p"),
        ("-f", "FILES", "pod", "p", "-n", "default"),
        ("pod", "-f", "FILES", "-n", "default", "p"),
    ],
)
def test_the_pod_may_come_before_or_after_the_files(cli: Cli, argv: tuple[str, ...]) -> None:
    one, two = cli.file(*BASE, name="one.yaml"), cli.file(o.claim("p", "A"), o.pod("p"), name="two.yaml")
    words = [word for given in argv for word in ((one, two) if given == "FILES" else (given,))]
    code, out, err = cli.run("explain", *words)
    assert (code, err) == (0, "")
    assert "node-a" in out


def test_locks_of_every_state_and_in_every_form(cli: Cli) -> None:
    raws = [*BASE, o.allocated(o.claim("held", "A"), "eth1"), o.allocated(o.claim("odd"), "eth2")]
    raws += [o.allocated(o.claim("lost", "A"), "eth1", pool="gone")]
    file = cli.file(*raws)
    code, out, err = cli.run("locks", "-f", file, "-o", "json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    jsonschema.validate(content, schema("locks"))
    found = {(p["pool"], d["device"]): d["state"] for p in content["pools"] for d in p["devices"]}
    assert found[("node-a", "eth1")] == "Locked"
    assert found[("node-a", "eth2")] == "Unreconstructable"
    assert found[("gone", "eth1")] == "Unknown"
    assert content == yaml.safe_load(cli.run("locks", "-f", file, "-o", "yaml")[1])
    assert "subnet=A" in cli.run("locks", "-f", file)[1]
    only = json.loads(cli.run("locks", "-f", file, "-o", "json", "--pool", "gone")[1])
    assert [pool["pool"] for pool in only["pools"]] == ["gone"]


@pytest.mark.parametrize("indent", [None, 2, "\t"], ids=["lines", "spaces", "tabs"])
def test_json_objects_one_after_another(cli: Cli, indent: int | str | None) -> None:
    """As several `kubectl get -o json` leave them in one file, and as kubectl reads them."""
    raws = [*BASE, o.claim("p", "A"), o.pod("p")]
    file = cli.folder / "objects.json"
    file.write_text("\n".join(json.dumps(raw, indent=indent) for raw in raws) + "\n")
    assert cli.simulate(str(file)) == cli.simulate(cli.file(*raws))


def test_a_mistake_in_json_objects_has_its_line(cli: Cli) -> None:
    file = cli.folder / "objects.json"
    node = '{"kind": "Node", "metadata": {"name": "a"}}'
    file.write_text(f'\n{node} {node}\n{{"kind": "Node",\n "metadata":\n {{"name": "b", "uid": 1}}}}\n')
    assert cli.run("simulate", "-f", str(file)) == (
        2, "", f"{file}:5: Node b: metadata.uid: is a number, not a string\n",
    )  # fmt: skip


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_half_a_surrogate_pair_is_read_as_kubectl_reads_it(cli: Cli, form: str) -> None:
    file = cli.folder / "objects.json"
    file.write_text(
        json.dumps({"kind": "List", "items": [*BASE, o.claim("p", "A"), o.pod("p\ud800", ["p"])]})
    )
    code, out, err = cli.run("simulate", "-o", form, "-f", str(file))
    assert (code, err) == (0, "")
    assert "p\ufffd" in out.encode().decode()


def test_a_lock_is_one_line_whatever_its_value(cli: Cli) -> None:
    """Values are the users' own: no escape sequence of theirs reaches the terminal of who looks."""
    value = "x\x1b[2J\n" + "y" * 100
    file = cli.file(*BASE, o.allocated(o.claim("held", value), "eth1"))
    out = cli.run("locks", "-f", file)[1]
    assert f"subnet={shorten(value)} " in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 160
    (pool,) = json.loads(cli.run("locks", "-f", file, "-o", "json")[1])["pools"]
    assert pool["devices"][0]["lock"] == {"subnet": value}


def test_a_cluster_is_explained_without_what_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Files are refused as a whole; a cluster's odd object is nobody else's problem."""
    parser, _ = make_parser()
    odd = o.claim("odd")
    odd["spec"]["devices"]["requests"] = "many"
    objects = [raw for raw in (*BASE, odd, o.claim("p", "A"), o.pod("p")) if raw["kind"] != "Node"]
    unseen = [{"kind": "Node", "namespace": None, "means": ""}]
    simulation = explain._of_cluster(objects, unseen, parser.parse_args(["explain", "pod", "p"]))
    content = explain.explanation(simulation, ("default", "p"))
    assert content is not None
    assert content["node"] == "node-a"
    assert "odd" in capsys.readouterr().err


def test_explain_of_a_pod_that_fits(cli: Cli) -> None:
    code, out, _ = cli.run(
        "explain", "pod", "p", "-f", cli.file(*BASE, o.claim("p", "A"), o.pod("p")), "-o", "json"
    )
    content = json.loads(out)
    jsonschema.validate(content, schema("explain"))
    assert code == 0
    assert (content["node"], content["devices"][0]["device"]) == ("node-a", "eth1")
