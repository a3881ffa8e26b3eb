"""The Helm chart, made from the kustomize folders: `python -m tools.chart` writes it, `--check` compares.

There is one source, `manifests/`. A template is what kustomize renders, with the namespace and a few values
replaced by expressions. `values.yaml` is written by hand and holds the same values again, so that the chart
with its defaults renders what `kubectl apply -k manifests/overlays/default` applies; a test compares the two
with the real helm.

Names are fixed, since the product is installed once per cluster. The Namespace is not part of the chart: Helm
needs it before it can install.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = Path("charts/sharing-affinity")
NAMESPACE = "sharing-affinity-system"
#: Folder of manifests to the value that switches it off, if any.
COMPONENTS = {
    "operator": "",
    "policies": ".Values.policies.enabled",
    "webhook": ".Values.webhook.enabled",
    "monitoring": ".Values.monitoring.enabled",
}
#: Where pods may be told to run; absent from the manifests.
PLACEMENT = ("nodeSelector", "tolerations", "affinity")
OPENING = '{{ "{{" }}'
HEADER = "{{- /* Made by tools/chart.py from manifests/%s: change it there. */ -}}\n"

Json = dict[str, Any]
Kustomize = Callable[[Path], str]


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


@dataclass
class _Expressions:
    """Template expressions, each represented by a token while YAML is written."""

    known: list[str] = field(default_factory=list)

    def scalar(self, expression: str) -> str:
        return self._token(f"{{{{ {expression} }}}}")

    def tree(self, expression: str) -> str:
        """A list or mapping; ``INDENT`` in the expression becomes the indentation it needs."""
        return self._token(f"{{{{- {expression} | nindent INDENT }}}}")

    def optional(self, key: str, value: str) -> str:
        """A key that is there only when its value is not empty."""
        return self._token(
            f"{{{{- with {value} }}}}\n{key}:\n  {{{{- toYaml . | nindent INDENT }}}}\n{{{{- end }}}}"
        )

    def _token(self, text: str) -> str:
        self.known.append(text)
        return f"@@{len(self.known) - 1}@@"

    def put_back(self, text: str) -> str:
        return "\n".join(line for row in text.split("\n") for line in self._row(row))

    def _row(self, row: str) -> Iterator[str]:
        found = re.search(r"""["']?@@(\d+)@@["']?(: null)?""", row)
        if found is None:
            yield row
            return
        expression = self.known[int(found[1])]
        indent = len(row) - len(row.lstrip(" "))
        expression = expression.replace("INDENT", str(indent + 2))
        if found[2]:
            for line in expression.split("\n"):
                yield " " * indent + line
        else:
            yield row[: found.start()] + expression + row[found.end() :]


def files(kustomize: Kustomize) -> dict[Path, str]:
    """The files of the chart that are made, by path below the chart. ``kustomize`` renders a folder."""
    made = {}
    for folder, enabled in COMPONENTS.items():
        documents = [one for one in yaml.safe_load_all(kustomize(ROOT / "manifests" / folder)) if one]
        kept = [one for one in documents if one["kind"] not in ("CustomResourceDefinition", "Namespace")]
        body = "---\n".join(_template(one) for one in kept)
        if enabled:
            body = f"{{{{- if {enabled} }}}}\n{body}{{{{- end }}}}\n"
        made[Path("templates") / f"{folder}.yaml"] = HEADER % folder + body
    for path in sorted((ROOT / "crds").glob("sharingaffinity.dev_*.yaml")):
        made[Path("crds") / path.name] = path.read_text()
    return made


def _template(document: Json) -> str:
    expressions = _Expressions()
    match document["kind"]:
        case "Deployment":
            _deployment(document, document["metadata"]["name"].rpartition("-")[2], expressions)
        case "ValidatingAdmissionPolicy":
            for variable in document["spec"]["variables"]:
                if variable["name"] == "exemptNamespaces":
                    text = "printf \"'%s'\" .Values.policies.exemptNamespaces | quote"
                    variable["expression"] = expressions.scalar(text)
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    # Braces of Prometheus and Grafana are not Helm's.
    text = text.replace("{{", OPENING)
    text = expressions.put_back(text).replace(NAMESPACE, "{{ .Release.Namespace }}")
    if document["kind"] == "NetworkPolicy":
        return f"{{{{- if .Values.networkPolicy.enabled }}}}\n{text}{{{{- end }}}}\n"
    return text


def _deployment(document: Json, name: str, expressions: _Expressions) -> None:
    values = f".Values.{name}"
    spec, pod = document["spec"], document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    spec["replicas"] = expressions.scalar(f"{values}.replicas")
    pod["priorityClassName"] = expressions.scalar(f"{values}.priorityClassName")
    container["image"] = expressions.scalar(
        'printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote'
    )
    container["imagePullPolicy"] = expressions.scalar(".Values.image.pullPolicy")
    container["resources"] = expressions.tree(f"toYaml {values}.resources")
    container["args"] = expressions.tree(f'include "sharing-affinity.{name}Args" .')
    for key in PLACEMENT:
        pod[expressions.optional(key, f"{values}.{key}")] = None
    pod[expressions.optional("imagePullSecrets", ".Values.image.pullSecrets")] = None


def differences(kustomize: Kustomize) -> list[str]:
    """What is not as it would be made; empty when the chart is up to date."""
    wanted = files(kustomize)
    found = {
        path.relative_to(ROOT / CHART)
        for folder in ("templates", "crds")
        for path in (ROOT / CHART / folder).glob("*.yaml")
    }
    stale = [f"{CHART / path} is not made from anything" for path in sorted(found - set(wanted))]
    for path, text in wanted.items():
        target = ROOT / CHART / path
        if not target.exists() or target.read_text() != text:
            stale.append(f"{CHART / path} is out of date: python -m tools.chart")
    return stale


def with_kubectl(kubectl: str) -> Kustomize:
    """kustomize as kubectl has it built in."""

    def render(folder: Path) -> str:
        run = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(run.stderr.strip())
        return run.stdout

    return render


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when it is out of date")
    parser.add_argument("--kubectl", default=None, help="kubectl to use [the local cluster's]")
    args = parser.parse_args(argv)
    kustomize = with_kubectl(args.kubectl or _kubectl())
    if args.check:
        stale = differences(kustomize)
        print("\n".join(stale) or "the chart is up to date")
        return 1 if stale else 0
    for path, text in files(kustomize).items():
        target = ROOT / CHART / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return 0


def _kubectl() -> str:
    from e2e import build, versions

    (folder,) = build.ensure(versions.kubernetes(versions.DEFAULT_MINOR))
    return str(folder / "kubectl")


if __name__ == "__main__":
    sys.exit(main())
