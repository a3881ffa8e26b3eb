"""A bad object is refused for itself alone, and says where it is wrong."""

from __future__ import annotations


class BadObject(ValueError):  # noqa: N818 - the object is at fault, not the program
    """An object that cannot be understood.

    ``path`` is a JSON path inside the object (``spec.devices.requests[0].name``), ``problem`` says what is
    wrong and what would be right. The text of the exception is one line with everything in it.
    """

    __slots__ = ("kind", "name", "namespace", "path", "problem")

    def __init__(self, kind: str, namespace: str, name: str, path: str, problem: str) -> None:
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.path = path
        self.problem = problem
        where = f"{namespace}/{name}" if namespace else name
        super().__init__(f"{kind} {where or '(no name)'}: {path}: {problem}")
