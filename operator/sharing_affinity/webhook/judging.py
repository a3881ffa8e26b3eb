"""What is wrong with a SharingAffinitySlice, said as the API server says it.

Paths, values and reasons follow the messages by which the API server refuses a CEL selector of a DeviceClass,
since their readers are the same people. The rules themselves are elsewhere: the schema in the CRD, compiling
in `kubernetes_cel`, what the slices of one pool may be together in `pools`.

A slice that is changed outside its ``spec`` is never refused: finalizers and owners of a slice that was
stored before these rules (or while nobody checked them) must stay removable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_cel import CompileError, Environment
from sharing_affinity import pools
from sharing_affinity.api import BadObject, MetadataSlice, names, parse_metadata_slice


@dataclass(frozen=True, slots=True)
class Finding:
    """One field that cannot stay: its path, ``Invalid value``, ``Duplicate value`` or ``Forbidden``, the
    value (None where naming it says nothing), and why."""

    path: str
    problem: str
    value: str | None
    detail: str

    def __str__(self) -> str:
        value = "" if self.value is None else f" {json.dumps(self.value, ensure_ascii=False)}:"
        return f"{self.path}: {self.problem}:{value} {self.detail}"


def judge(
    raw: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    peers: Iterable[MetadataSlice],
    environment: Environment,
) -> list[Finding]:
    """All that is wrong with the slice ``raw``; ``old`` is what it replaces, ``peers`` the slices of its
    pool.

    Peers of other generations, and the stored version of the slice itself, are left out of account.
    """
    if old is not None and old.get("spec") == raw.get("spec"):
        return []
    try:
        found = parse_metadata_slice(raw)
    except BadObject as problem:
        return [Finding(problem.path, "Invalid value", None, problem.problem)]
    findings = list(_extractors(found, environment))
    same = [
        peer for peer in peers if peer.generation == found.generation and peer.meta.name != found.meta.name
    ]
    findings += _together(found, sorted(same, key=lambda peer: peer.meta.name), environment)
    return findings


def message(name: str, findings: Sequence[Finding]) -> str:
    """One line over all findings, as the API server sums them up."""
    texts = list(map(str, findings))
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f'{names.SLICE_KIND}.{names.GROUP} "{name}" is invalid: {said}'


def _extractors(found: MetadataSlice, environment: Environment) -> Iterator[Finding]:
    for index, extractor in enumerate(found.extractors):
        path = f"spec.sharingAffinity[{index}].expression"
        try:
            estimate = environment.compile(extractor.expression, output="string").estimate.max
        except CompileError as error:
            yield Finding(path, "Invalid value", extractor.expression, f"compilation failed: {error.message}")
            continue
        if estimate > names.POOL_COST_BUDGET:
            bound = "has no bound" if estimate >= 2**60 else f"is {estimate}"
            detail = (
                f"too complex, exceeds cost limit: the estimated cost {bound}, the budget of a pool is "
                f"{names.POOL_COST_BUDGET}"
            )
            yield Finding(path, "Forbidden", None, detail)


def _together(
    found: MetadataSlice, peers: Sequence[MetadataSlice], environment: Environment
) -> Iterator[Finding]:
    def estimate(expression: str) -> int | None:
        try:
            cost = environment.compile(expression, output="string").estimate.max
        except CompileError:
            return None
        # Over the budget alone: said of its own field, or the fault of a peer.
        return cost if cost <= names.POOL_COST_BUDGET else 0

    for problem in pools.extractor_problems([*peers, found], estimate):
        if problem.owner is not found:
            continue
        if problem.index is None:
            yield Finding("spec.sharingAffinity", "Forbidden", None, f"pool {found.pool}: {problem.message}")
        else:
            path = f"spec.sharingAffinity[{problem.index}].name"
            name = found.extractors[problem.index].name
            yield Finding(path, "Duplicate value", name, f"pool {found.pool}: {problem.message}")
