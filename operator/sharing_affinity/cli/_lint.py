"""What `sharing-affinity lint` finds: schema, extractors, cost, and rules of pools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kubernetes_cel import CompileError, Environment
from sharing_affinity import pools
from sharing_affinity.api import (
    BadObject,
    MetadataSlice,
    ResourceSlice,
    TaintRule,
    names,
    parse_metadata_slice,
    parse_slice,
    parse_taint_rule,
)
from sharing_affinity.cli._files import Document
from sharing_affinity.cli._schema import SchemaChecker, as_stored, slice_schema


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing that is wrong. `rule` is schema, compile, cost or pool; `where` is `file:line`."""

    where: str
    kind: str
    name: str
    path: str
    rule: str
    message: str

    def __str__(self) -> str:
        path = f" {self.path}" if self.path else ""
        return f"{self.where}: {self.kind} {self.name}{path}: {self.message} [{self.rule}]"


def lint(documents: Sequence[Document], *, rule_fences: bool = False) -> list[LintFinding]:
    """Everything that is wrong with the slices among the documents; other kinds are left alone."""
    findings: list[LintFinding] = []
    environment = Environment.admission()
    checker, schema = SchemaChecker(), slice_schema()
    metadata: list[tuple[Document, MetadataSlice]] = []
    slices: list[tuple[Document, ResourceSlice]] = []
    rules: list[TaintRule] = []
    for document in documents:
        kind = document.raw.get("kind")
        if kind == names.SLICE_KIND:
            found = [
                _finding(document, path, "schema", message)
                for path, message in checker.check(as_stored(document.raw), schema)
            ]
            if document.raw.get("apiVersion") != names.API_VERSION:
                found.append(_finding(document, "apiVersion", "schema", f"must be {names.API_VERSION}"))
            findings.extend(found)
            try:
                parsed = parse_metadata_slice(document.raw)
            except BadObject as problem:
                if not found:
                    findings.append(_finding(document, problem.path, "schema", problem.problem))
                continue
            metadata.append((document, parsed))
            findings.extend(_extractors(document, parsed, environment))
        elif kind == "ResourceSlice":
            try:
                slices.append((document, parse_slice(document.raw)))
            except BadObject as problem:
                findings.append(_finding(document, problem.path, "schema", problem.problem))
        elif kind == "DeviceTaintRule":
            try:
                rules.append(parse_taint_rule(document.raw))
            except BadObject as problem:
                findings.append(_finding(document, problem.path, "schema", problem.problem))
    findings.extend(_pools(metadata, slices, rules, environment, rule_fences))
    return findings


def _finding(document: Document, path: str, rule: str, message: str) -> LintFinding:
    meta = document.raw.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    path = path.removeprefix("$.").lstrip(".")
    return LintFinding(
        where=document.locate(path),
        kind=str(document.raw.get("kind")),
        name=str(name or "(no name)"),
        path=path,
        rule=rule,
        message=message,
    )


def _extractors(document: Document, found: MetadataSlice, environment: Environment) -> Iterator[LintFinding]:
    for i, extractor in enumerate(found.extractors):
        path = f"spec.sharingAffinity[{i}].expression"
        try:
            program = environment.compile(extractor.expression, output="string")
        except CompileError as problem:
            yield _finding(document, path, "compile", f"{extractor.name} ({problem.kind}): {problem.message}")
            continue
        if program.estimate.max > names.POOL_COST_BUDGET:
            cost = "has no bound" if program.estimate.max >= 2**60 else f"is {program.estimate.max}"
            yield _finding(
                document,
                path,
                "cost",
                f"{extractor.name}: the estimated cost {cost}, over the pool's budget of "
                f"{names.POOL_COST_BUDGET}; docs/cel.md says what to write instead",
            )


def _pools(
    metadata: Sequence[tuple[Document, MetadataSlice]],
    slices: Sequence[tuple[Document, ResourceSlice]],
    rules: Sequence[TaintRule],
    environment: Environment,
    rule_fences: bool,
) -> Iterator[LintFinding]:
    def estimate(expression: str) -> int | None:
        try:
            cost = environment.compile(expression, output="string").estimate.max
        except CompileError:
            return None
        # What is over the budget alone has been reported with its slice.
        return cost if cost <= names.POOL_COST_BUDGET else 0

    members: dict[tuple[str, str], list[tuple[Document, ResourceSlice]]] = defaultdict(list)
    for document, member in slices:
        members[member.driver, member.pool].append((document, member))
    described: dict[tuple[str, str], list[tuple[Document, MetadataSlice]]] = defaultdict(list)
    for document, meta in metadata:
        described[meta.driver, meta.pool].append((document, meta))
    for driver, pool in sorted({*members, *described}):
        own, about = members[driver, pool], described[driver, pool]
        first = (about or own)[0][0]
        if own:
            judged = pools.validate(
                driver,
                pool,
                [member for _, member in own],
                [meta for _, meta in about],
                rules=rules,
                rule_fences=rule_fences,
                estimate=estimate,
            )
            if judged.state not in (pools.PoolState.JOINED, pools.PoolState.STOCK):
                message = f"pool {driver}/{pool}: {judged.state}: {judged.message}"
                yield _finding(first, "", "pool", message)
        else:
            yield from _described_only(driver, pool, about, estimate)


def _described_only(
    driver: str, pool: str, about: Sequence[tuple[Document, MetadataSlice]], estimate: pools.Estimate
) -> Iterator[LintFinding]:
    """Rules of a pool that need no ResourceSlice: unique keys, one number of members, the shared budget."""
    newest = max(meta.generation for _, meta in about)
    current = [(document, meta) for document, meta in about if meta.generation == newest]
    owners: dict[str, str] = {}
    cost = 0
    for document, meta in current:
        for i, extractor in enumerate(meta.extractors):
            cost += estimate(extractor.expression) or 0
            owner = owners.setdefault(extractor.name, meta.meta.name)
            if owner != meta.meta.name:
                yield _finding(
                    document,
                    f"spec.sharingAffinity[{i}].name",
                    "pool",
                    f"pool {driver}/{pool}: key {extractor.name} is declared by {owner} already",
                )
    counts = sorted({meta.count for _, meta in current})
    if len(counts) > 1:
        numbers = ", ".join(map(str, counts))
        message = f"pool {driver}/{pool}: its slices disagree on resourceSliceCount: {numbers}"
        yield _finding(current[-1][0], "spec.pool.resourceSliceCount", "pool", message)
    if cost > names.POOL_COST_BUDGET:
        message = f"pool {driver}/{pool}: its extractors may cost {cost}, over the budget of"
        yield _finding(current[0][0], "", "cost", f"{message} {names.POOL_COST_BUDGET}")
