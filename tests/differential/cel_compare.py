"""Compares this project's CEL with the oracle's answer to the same expression and object.

Equal means: the same kind of compile error, or the same static type and estimate; and then the same value
(typed), or an error of the same kind, at the same cost. Texts of errors are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.cel_values import typed

from kubernetes_cel import CelError, CompileError, CostLimitExceeded, Environment, EvaluationError, from_json
from kubernetes_cel.device import device_variable


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine says. `kind` is parse, type, value, error, cost or panic."""

    kind: str
    estimate: tuple[str, str] | None = None
    out_type: str = ""
    value: Any = None
    cost: str = ""
    message: str = field(default="", compare=False)


class Engine:
    """This project's environments, compared as one would use them."""

    def __init__(self) -> None:
        self._admission = Environment.admission()
        self._device = Environment.device()

    def ask(self, request: Mapping[str, Any]) -> Answer:
        """Answer a request as the oracle would (`expression`, `env`, `object`)."""
        selector = request.get("env") == "device"
        environment = self._device if selector else self._admission
        try:
            program = environment.compile(request["expression"], output="bool" if selector else "any")
        except CompileError as error:
            return Answer("parse" if error.kind == "parse" else "type", message=error.message)
        estimate = (str(program.estimate.min), str(program.estimate.max))
        try:
            variables = self._variables(selector, request.get("object"))
        except EvaluationError as error:
            return Answer("error", estimate, program.output_type, message=error.message)
        outcome = program.run(variables)
        if isinstance(outcome.error, CostLimitExceeded):
            return Answer("cost", estimate, program.output_type, cost=str(outcome.cost))
        if outcome.error is not None:
            return Answer(
                "error", estimate, program.output_type, None, str(outcome.cost), outcome.error.message
            )
        return Answer("value", estimate, program.output_type, typed(outcome.value), str(outcome.cost))

    @staticmethod
    def _variables(selector: bool, value: Any) -> dict[str, Any]:
        if not selector:
            return {"object": from_json(value)}
        device = device_variable(
            value.get("driver", ""),
            value.get("attributes") or {},
            value.get("capacity") or {},
            value.get("allowMultipleAllocations") or False,
        )
        return {"device": device}


def upstream(answer: Mapping[str, Any], env: str) -> Answer:
    """The oracle's answer in the same form."""
    if "panic" in answer:
        return Answer("panic", message=answer["panic"])
    failure = answer.get("compileError")
    if failure is not None:
        return Answer(failure["kind"], message=failure["message"])
    estimate = tuple(answer["estDevice" if env == "device" else "estHint"])
    kind = "cost" if answer.get("costExceeded") else "error" if "error" in answer else "value"
    return Answer(
        kind,
        (estimate[0], estimate[1]),
        answer["outType"],
        answer.get("value"),
        answer.get("cost", ""),
        answer.get("error", ""),
    )


def difference(mine: Answer, theirs: Answer, *, unstable: bool = False) -> str | None:
    """What differs, or None. Answers that depend on Go's order of map entries agree on less."""
    if theirs.kind == "panic":
        # Upstream crashes; ours has to end in an error.
        return None if mine.kind in ("type", "parse", "error", "cost") else f"{theirs.message}, ours {mine}"
    if mine.kind in ("parse", "type") or theirs.kind in ("parse", "type"):
        return None if mine.kind == theirs.kind else f"kind: {mine.kind} instead of {theirs.kind}"
    for what in ("out_type", "estimate"):
        if getattr(mine, what) != getattr(theirs, what):
            return f"{what}: {getattr(mine, what)} instead of {getattr(theirs, what)}"
    if unstable:
        return None
    for what in ("kind", "value", "cost"):
        if getattr(mine, what) != getattr(theirs, what):
            return f"{what}: {getattr(mine, what)} instead of {getattr(theirs, what)}"
    return None


def crashed(engine: Engine, request: Mapping[str, Any]) -> str | None:
    """The text of an exception that is no CelError, which must never happen, or None."""
    try:
        engine.ask(request)
    except CelError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
