"""Node selectors and label selectors: parsed once, matched as upstream's helpers match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sharing_affinity.api.reader import Reader


@dataclass(frozen=True, slots=True)
class Requirement:
    """``key operator values``; operators of nodes (In, NotIn, Exists, DoesNotExist, Gt, Lt) and of labels."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy the requirement; an unknown operator is never satisfied."""
        present = self.key in labels
        value = labels.get(self.key, "")
        match self.operator:
            case "In":
                return present and value in self.values
            case "NotIn":
                return not present or value not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                return present and self._compares(value)
        return False

    def _compares(self, value: str) -> bool:
        if len(self.values) != 1:
            return False
        try:
            left, right = int(value), int(self.values[0])
        except ValueError:
            return False
        return left > right if self.operator == "Gt" else left < right


@dataclass(frozen=True, slots=True)
class Term:
    """One node selector term: all expressions (labels) and all fields (``metadata.name``) hold. Empty matches
    none."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.expressions and not self.fields:
            return False
        return all(r.matches(labels) for r in self.expressions) and all(
            r.key == "metadata.name" and r.matches({"metadata.name": name}) for r in self.fields
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms, any of which is enough."""

    terms: tuple[Term, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return any(term.matches(name, labels) for term in self.terms)

    def single_node(self) -> str | None:
        """The node of the exact node-local form, otherwise ``None``."""
        if len(self.terms) == 1 and not self.terms[0].expressions and len(self.terms[0].fields) == 1:
            only = self.terms[0].fields[0]
            if only.key == "metadata.name" and only.operator == "In" and len(only.values) == 1:
                return only.values[0]
        return None


def read_node_selector(reader: Reader) -> NodeSelector:
    return NodeSelector(reader.many("nodeSelectorTerms", read_term))


def read_term(reader: Reader) -> Term:
    return Term(
        reader.many("matchExpressions", read_requirement), reader.many("matchFields", read_requirement)
    )


def read_requirement(reader: Reader) -> Requirement:
    return Requirement(reader.text("key"), reader.text("operator"), reader.texts("values"))


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """An object's label selector; empty selects everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


def read_label_selector(reader: Reader) -> LabelSelector:
    exact = tuple(Requirement(k, "In", (v,)) for k, v in sorted(reader.text_map("matchLabels").items()))
    return LabelSelector(exact + reader.many("matchExpressions", read_requirement))
