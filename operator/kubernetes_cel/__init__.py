"""Kubernetes CEL for Python: the ValidatingAdmissionPolicy environment, with its costs and limits.

    environment = Environment.admission()
    program = environment.compile('has(object.subnet) ? object.subnet : ""', output="string")
    program.estimate.max                                # 2
    program.evaluate({"object": {"subnet": "a"}})       # "a"

Expressions are parsed by cel-python's parser (its grammar extended), then checked, estimated and planned
here, so that values, errors and costs are cel-go's. The package knows nothing of DRA apart from
`Environment.device()`.
"""

from __future__ import annotations

from kubernetes_cel.environment import MAX_LENGTH, OBJECT_SIZE, Environment
from kubernetes_cel.errors import (
    CelError,
    CheckError,
    CompileError,
    CostLimitExceeded,
    EvaluationError,
    Issue,
    LengthError,
    NonStringError,
    ParseError,
)
from kubernetes_cel.program import COST_LIMIT, CostEstimate, Outcome, Program
from kubernetes_cel.values import from_json

__all__ = [
    "COST_LIMIT",
    "MAX_LENGTH",
    "OBJECT_SIZE",
    "CelError",
    "CheckError",
    "CompileError",
    "CostEstimate",
    "CostLimitExceeded",
    "Environment",
    "EvaluationError",
    "Issue",
    "LengthError",
    "NonStringError",
    "Outcome",
    "ParseError",
    "Program",
    "from_json",
]
