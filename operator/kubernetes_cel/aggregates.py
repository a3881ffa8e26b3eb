"""Code of list, map and message literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubernetes_cel.construction import Construct
from kubernetes_cel.costs import LIST_COST, MAP_COST, STRUCT_COST
from kubernetes_cel.errors import EvaluationError
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import Optional
from kubernetes_cel.values import build_map as make_map


def build_list(codes: Sequence[Code], optional: frozenset[int]) -> Code:
    """A list literal that is not constant; `optional` are the indexes written with a question mark."""
    if not optional:

        def build(run: Run) -> list[Any]:
            try:
                elements = [code(run) for code in codes]
            except EvaluationError:
                run.charge(LIST_COST)
                raise
            run.charge(LIST_COST)
            return elements

        return build

    def build_optional(run: Run) -> list[Any]:
        elements: list[Any] = []
        try:
            for i, code in enumerate(codes):
                element = code(run)
                if i in optional:
                    if type(element) is not Optional:
                        raise EvaluationError(
                            "cannot initialize optional list element from non-optional value"
                        )
                    if not element.has_value:
                        continue
                    element = element.value
                elements.append(element)
        except EvaluationError:
            run.charge(LIST_COST)
            raise
        run.charge(LIST_COST)
        return elements

    return build_optional


def build_map(pairs: Sequence[tuple[Code, Code, bool]]) -> Code:
    """A map literal that is not constant: code of key and value, and whether the entry is optional."""

    def build(run: Run) -> Any:
        entries: list[tuple[Any, Any]] = []
        try:
            for key_code, value_code, optional in pairs:
                key = key_code(run)
                value = value_code(run)
                if optional:
                    if type(value) is not Optional:
                        raise EvaluationError("cannot initialize optional entry from non-optional value")
                    if not value.has_value:
                        entries = [entry for entry in entries if not _same_key(entry[0], key)]
                        continue
                    value = value.value
                entries.append((key, value))
            built = make_map(entries)
        except EvaluationError:
            run.charge(MAP_COST)
            raise
        run.charge(MAP_COST)
        return built

    return build


def _same_key(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def build_message(construct: Construct, fields: Sequence[tuple[str, Code, bool]]) -> Code:
    """A message literal: name and code of each field, and whether it is optional."""

    def build(run: Run) -> Any:
        values: dict[str, Any] = {}
        try:
            for name, code, optional in fields:
                value = code(run)
                if optional:
                    if type(value) is not Optional:
                        raise EvaluationError(
                            f"cannot initialize optional entry '{name}' from non-optional value"
                        )
                    if not value.has_value:
                        values.pop(name, None)
                        continue
                    value = value.value
                values[name] = value
            built = construct(values, run.build)
        except EvaluationError:
            run.charge(STRUCT_COST)
            raise
        run.charge(STRUCT_COST)
        return built

    return build
