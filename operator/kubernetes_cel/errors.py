"""What can go wrong with an expression, as exceptions a caller can tell apart.

Everything derives from `CelError`. Errors found before running are `CompileError`s and carry their place in
the text (line, column, and a rendering with a caret line); errors of a run are `EvaluationError`s, and inside
an evaluation they behave as CEL says: `&&` and `||` may absorb them. `CostLimitExceeded` is deliberately no
`EvaluationError`, so that nothing in an expression can absorb it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Snippets longer than this are left out of messages.
MAX_SNIPPET = 16384


class CelError(Exception):
    """Base of all errors of this package. `kind` is one of parse, type, length, runtime, cost, non-string."""

    kind: str = "runtime"

    @property
    def message(self) -> str:
        """The error as text, without the exception's type."""
        return str(self.args[0]) if self.args else ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding of the parser or checker: 1-based `line`, 0-based `column` in code points, and the text."""

    line: int
    column: int
    message: str

    def render(self, source: str) -> str:
        """`ERROR: <input>:line:column: message`, the source line, and a caret under the column."""
        head = f"ERROR: <input>:{self.line}:{self.column + 1}: {self.message}"
        lines = source.split("\n")
        if not 0 < self.line <= len(lines) or len(lines[self.line - 1]) > MAX_SNIPPET:
            return head
        snippet = lines[self.line - 1].replace("\t", " ")
        marks = ["\uff0e" if ord(c) > 0x7F else "." for c in snippet[: self.column]]
        at = snippet[self.column : self.column + 1]
        marks.append("\uff3e" if at and ord(at) > 0x7F else "^")
        return f"{head}\n | {snippet}\n | {''.join(marks)}"


class CompileError(CelError):
    """The text is no program of this environment. `issues` holds every finding, in order of place."""

    kind = "type"

    def __init__(self, issues: Sequence[Issue], source: str) -> None:
        ordered = sorted(issues, key=lambda issue: (issue.line, issue.column))
        super().__init__("\n".join(issue.render(source) for issue in ordered))
        self.issues = tuple(ordered)
        self.source = source


class ParseError(CompileError):
    """The text is not CEL."""

    kind = "parse"


class CheckError(CompileError):
    """The text is CEL, but does not compile here: unknown names, no overload, bad constants, wrong result
    type.
    """

    kind = "type"


class LengthError(CompileError):
    """The text is longer than an expression may be."""

    kind = "length"


class EvaluationError(CelError):
    """The evaluation ended in an error. `cost` is what it had cost by then (set by `Program`)."""

    kind = "runtime"
    cost: int = 0


class EvaluationAborted(CelError):  # noqa: N818 - the name says what happened
    """What makes upstream's evaluator panic. It ends the evaluation whatever is around it, as an internal
    error.

    Only seen inside this package: `Program` hands it out as an `EvaluationError`.
    """


class NonStringError(CelError):
    """The evaluation ended well, but not in a string where one is required."""

    kind = "non-string"

    def __init__(self, message: str, cost: int = 0) -> None:
        super().__init__(message)
        self.cost = cost


class CostLimitExceeded(CelError):  # noqa: N818 - the name says what happened
    """The evaluation was stopped at its cost limit. `cost` is the cost at which it stopped."""

    kind = "cost"

    def __init__(self, cost: int) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")
        self.cost = cost


def no_such_overload(function: str = "", arguments: Sequence[str] = ()) -> EvaluationError:
    """The error of a call whose arguments fit no overload; `arguments` are run-time type names."""
    if not function:
        return EvaluationError("no such overload")
    if not arguments:
        return EvaluationError(f"no such overload: {function}")
    return EvaluationError(f"no such overload: {function}({', '.join(arguments)})")
