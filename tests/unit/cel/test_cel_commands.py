"""`sharing-affinity eval` and `lint`: contracts of the command line."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sharing_affinity.cli import main

SLICE: dict[str, Any] = {
    "apiVersion": "sharingaffinity.dev/v1alpha1",
    "kind": "SharingAffinitySlice",
    "metadata": {"name": "node-1-nic"},
    "spec": {
        "driver": "nic.sharingaffinity.dev",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
        "sharingAffinity": [{"name": "subnet", "expression": 'has(object.subnet) ? object.subnet : ""'}],
    },
}
DEVICES: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "node-1-nic-devices"},
    "spec": {
        "driver": "nic.sharingaffinity.dev",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": "eth1", "taints": [{"key": "sharingaffinity.dev/managed", "effect": "NoSchedule"}]}
        ],
    },
}


SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def published(name: str, content: Any) -> Any:
    """The content, which fits the published schema."""
    jsonschema.validate(content, json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    return content


def answers_of(text: str) -> list[Any]:
    return [published("eval", json.loads(line)) for line in text.splitlines()]


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


class TestEval:
    def test_lines_in_lines_out(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        requests = [
            {"id": 1, "expression": "object.a", "object": {"a": "é\n"}},
            {"id": "two", "expression": "object.a", "object": {"a": 5}},
            {"id": 3, "expression": "object.a +", "object": {}},
            {"id": 4, "expression": "object.b", "object": {}},
            {"id": 5, "expression": "1"},
            {"id": 6, "expression": "'" + "a" * 20000 + "'"},
            {"id": 7, "expression": "string(object.l.all(x, object.l.all(y, object.l.all(z, true))))"},
            {"id": 8, "expression": "int('x') == 1 ? '' : ''"},
        ]
        requests[6]["object"] = {"l": list(range(100))}
        text = "".join(json.dumps(request) + "\n" for request in requests)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["eval", "--stdin", "-o", "json"]) == 0
        answers = answers_of(capsys.readouterr().out)
        assert [answer["id"] for answer in answers] == [1, "two", 3, 4, 5, 6, 7, 8]
        assert answers[0] == {"id": 1, "value": "é\n", "estimatedCost": 1, "cost": 2}
        kinds = [answer.get("error", {}).get("kind") for answer in answers]
        assert kinds == [None, "non-string", "parse", "runtime", "type", "length", "cost", "type"]
        assert answers[3]["cost"] == 2
        assert "cost" not in answers[2]
        assert "estimatedCost" not in answers[2]
        assert answers[6]["cost"] == 1_000_001
        assert answers[6]["estimatedCost"] > 1_000_000  # refused by lint, run all the same

    def test_bad_lines_do_not_stop_the_others(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = ["nonsense", "[1]", '{"expression": 1}', "[" * 100_000, '{"id": 1, "expression": "\'a\'"}']
        source = "\n".join(lines).encode() + b"\n"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(source)))
        assert main(["eval", "--stdin", "-o", "json"]) == 2
        answers = answers_of(capsys.readouterr().out)
        assert [answer["id"] for answer in answers] == [None, None, None, None, 1]

    def test_numbers_and_text_are_read_as_kubernetes_reads_them(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        expression = "string(object.big) + (type(object.big) == double ? 'd' : 'i') + object.s"
        value = '{"big": 18446744073709551616, "s": "\\ud800"}'
        line = f'{{"id": 1, "expression": {json.dumps(expression)}, "object": {value}}}\n'.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
        assert main(["eval", "--stdin", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == "1.8446744073709552e+19d\ufffd"

    def test_an_expression_on_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        value = tmp_path / "object.yaml"
        value.write_text("subnet: no\nmac: 52:54:05:00:23:48\nday: 2026-01-01\nkey: 0x8001\n")
        assert main(["eval", "-e", "object.mac + ' ' + object.day", "--object", str(value)]) == 0
        assert '"52:54:05:00:23:48 2026-01-01"' in capsys.readouterr().out
        for field in ("subnet", "key"):
            assert main(["eval", "-e", f"object.{field}", "--object", str(value), "-o", "json"]) == 1
            assert json.loads(capsys.readouterr().out)["error"]["kind"] == "non-string"

    def test_the_extractors_of_a_slice(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = write(tmp_path / "slice.yaml", SLICE)
        value = write(tmp_path / "object.yaml", {"subnet": "a"})
        assert main(["eval", "-f", file, "--object", value, "-o", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["slice"], answer["key"], answer["value"]) == ("node-1-nic", "subnet", "a")

    def test_bad_input(self, tmp_path: Path) -> None:
        assert main(["eval", "-e", "object.a", "--object", str(tmp_path / "none")]) == 2
        assert main(["eval", "-f", write(tmp_path / "x.yaml", DEVICES)]) == 2

    def test_half_surrogate_pairs_are_what_go_reads(
        self, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        lone = "\ud800"
        requests = [
            {"id": f"a{lone}", "expression": f"object.a == '{lone}' ? object.a : ''", "object": {"a": lone}},
            {"id": 2, "expression": f"nope('{lone}')"},
        ]
        text = "".join(json.dumps(request) + "\n" for request in requests)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["eval", "--stdin", "-o", "json"]) == 0
        first, second = answers_of(capfdbinary.readouterr().out.decode())
        assert (first["id"], first["value"]) == ("a\ufffd", "\ufffd")
        assert second["error"]["kind"] == "type"


class TestLint:
    def lint(self, capsys: pytest.CaptureFixture[str], *files: str) -> tuple[int, list[dict[str, Any]]]:
        arguments = [argument for file in files for argument in ("-f", file)]
        code = main(["lint", "-o", "json", *arguments])
        return code, published("lint", json.loads(capsys.readouterr().out))["findings"]

    def test_good_slices(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.lint(capsys, write(tmp_path / "a.yaml", SLICE)) == (0, [])
        assert self.lint(capsys, write(tmp_path / "a.yaml", SLICE, DEVICES)) == (0, [])

    @pytest.mark.parametrize(
        ("path", "value", "where", "rule"),
        [
            (("driver",), "NIC", "spec.driver", "schema"),
            (("driver",), None, "spec.driver", "schema"),
            (("pool", "generation"), -1, "spec.pool.generation", "schema"),
            (("pool", "resourceSliceCount"), 0, "spec.pool.resourceSliceCount", "schema"),
            (("allNodes",), True, "spec", "schema"),
            (("colour",), "red", "spec.colour", "schema"),
            (("sharingAffinity",), [], "spec.sharingAffinity", "schema"),
            (
                ("sharingAffinity",),
                [{"name": f"k{i}", "expression": "''"} for i in range(9)],
                "spec.sharingAffinity",
                "schema",
            ),
            (
                ("sharingAffinity",),
                [{"name": "k", "expression": "''"}, {"name": "k", "expression": "'a'"}],
                "spec.sharingAffinity[1]",
                "schema",
            ),
            (("sharingAffinity", 0, "name"), "-k", "spec.sharingAffinity[0].name", "schema"),
            (
                ("sharingAffinity", 0, "expression"),
                "'" + "é" * 5120 + "'",
                "spec.sharingAffinity[0].expression",
                "schema",
            ),
            (
                ("sharingAffinity", 0, "expression"),
                "object.",
                "spec.sharingAffinity[0].expression",
                "compile",
            ),
            (("sharingAffinity", 0, "expression"), "1 + 1", "spec.sharingAffinity[0].expression", "compile"),
            (
                ("sharingAffinity", 0, "expression"),
                "object.a.map(x, x.lowerAscii())[0]",
                "spec.sharingAffinity[0].expression",
                "cost",
            ),
        ],
    )
    def test_findings(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        path: tuple[str | int, ...],
        value: Any,
        where: str,
        rule: str,
    ) -> None:
        broken = copy.deepcopy(SLICE)
        target: Any = broken["spec"]
        for step in path[:-1]:
            target = target[step]
        if value is None:
            del target[path[-1]]
        else:
            target[path[-1]] = value
        code, findings = self.lint(capsys, write(tmp_path / "a.yaml", broken))
        assert code == 1
        assert (where, rule) in [(finding["path"], finding["rule"]) for finding in findings], findings
        assert all(finding["where"].startswith(str(tmp_path / "a.yaml")) for finding in findings)

    @pytest.mark.parametrize("version", [None, "sharingaffinity.dev/v1", "resource.k8s.io/v1"])
    def test_a_version_that_is_not_served(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str | None
    ) -> None:
        code, (finding,) = self.lint(capsys, write(tmp_path / "a.yaml", {**SLICE, "apiVersion": version}))
        assert code == 1
        assert (finding["path"], finding["rule"]) == ("apiVersion", "schema")
        assert finding["where"].endswith(":1")

    def test_fields_that_templates_left_empty(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The API server drops nulls of fields that are not nullable before it looks at anything."""
        empty = {"allNodes": None, "nodeSelector": None}
        kept = {**SLICE, "spec": {**SLICE["spec"], **empty}}
        assert self.lint(capsys, write(tmp_path / "a.yaml", kept)) == (0, [])
        missing = {**SLICE, "spec": {**SLICE["spec"], "driver": None}}
        code, findings = self.lint(capsys, write(tmp_path / "a.yaml", missing))
        assert (code, [(f["path"], f["message"]) for f in findings]) == (1, [("spec.driver", "is required")])

    def test_pool_rules(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        second = copy.deepcopy(SLICE)
        second["metadata"]["name"] = "node-1-nic-2"
        code, findings = self.lint(capsys, write(tmp_path / "a.yaml", SLICE, second))
        assert code == 1
        assert "declared by node-1-nic already" in findings[0]["message"]

        costly = copy.deepcopy(SLICE)
        expression = 'object.a.exists(x, x.startsWith("a")) ? object.b : ""'
        costly["spec"]["sharingAffinity"] = [{"name": f"k{i}", "expression": expression} for i in range(8)]
        other = copy.deepcopy(costly)
        other["metadata"]["name"] = "node-1-nic-2"
        other["spec"]["sharingAffinity"] = [
            {"name": f"m{i}", "expression": expression.replace("exists", "all")} for i in range(8)
        ]
        third = copy.deepcopy(other)
        third["metadata"]["name"] = "node-1-nic-3"
        third["spec"]["sharingAffinity"] = [{"name": f"n{i}", "expression": expression} for i in range(8)]
        code, findings = self.lint(capsys, write(tmp_path / "a.yaml", costly, other, third))
        assert [finding["rule"] for finding in findings] == ["cost"], findings

        unfenced = copy.deepcopy(DEVICES)
        del unfenced["spec"]["devices"][0]["taints"]
        code, findings = self.lint(capsys, write(tmp_path / "a.yaml", SLICE, unfenced))
        assert code == 1
        assert "Unfenced" in findings[0]["message"]

    def test_bad_input(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("a: [")
        assert main(["lint", "-f", str(tmp_path / "a.yaml")]) == 2
