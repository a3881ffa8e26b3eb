"""Environments: what an expression may refer to, and compiling in them.

`Environment.admission()` is the ValidatingAdmissionPolicy environment of Kubernetes 1.37 with one variable
`object` of unknown type, `Environment.device()` the one of DRA device selectors. An environment is immutable
apart from its cache of programs, and safe to share between threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kubernetes_cel import device, types
from kubernetes_cel.ast import Source
from kubernetes_cel.checker import check
from kubernetes_cel.costs import Node, Range, SizeHint
from kubernetes_cel.declarations import Declarations, Library
from kubernetes_cel.errors import CheckError, CompileError, Issue, LengthError
from kubernetes_cel.estimate import estimate_cost
from kubernetes_cel.libraries import ADMISSION
from kubernetes_cel.macros import BINDINGS
from kubernetes_cel.parser import parse
from kubernetes_cel.planner import plan
from kubernetes_cel.program import Program, on_fresh_stack, to_estimate
from kubernetes_cel.standard import OPTIONALS, STANDARD, TWO_VARIABLES
from kubernetes_cel.types import Type
from kubernetes_cel.validators import validate

#: Longest expression in bytes of UTF-8.
MAX_LENGTH = 10 * 1024
#: Largest size of anything below `object`: opaque device configuration is limited to 10 KiB.
OBJECT_SIZE = 10 * 1024
#: Programs an environment keeps.
CACHE_SIZE = 1024

#: What an expression's result is required to be; `dyn` is accepted for either, and looked at when it runs.
Output = Literal["any", "string", "bool"]


@dataclass(frozen=True, slots=True)
class _Failure:
    error: CompileError


def object_size(node: Node) -> Range | None:
    """The size hint for `object`: everything below it has at most 10,240 elements, characters or bytes."""
    return Range(0, OBJECT_SIZE) if node.path and node.path[0] == "object" else None


class Environment:
    """Compiles expressions over given variables with given libraries."""

    def __init__(
        self,
        variables: Mapping[str, Type],
        libraries: Iterable[Library] = (),
        *,
        fields: Mapping[str, Mapping[str, Type]] | None = None,
        size_hint: SizeHint = lambda _: None,
        max_length: int = MAX_LENGTH,
        cache_size: int = CACHE_SIZE,
        container: str = "",
    ) -> None:
        """`variables`: name to static type. `fields`: fields of object types. `size_hint`: for estimates.
        `container`: the namespace in which names are looked up first.

        The language definition's own functions, optionals and two-variable comprehensions are always there.
        """
        self._declarations = Declarations.of(
            (STANDARD, OPTIONALS, TWO_VARIABLES, *libraries), variables, fields, container
        )
        self._costs = {
            name: function.cost
            for name, function in self._declarations.functions.items()
            if function.cost is not None
        }
        self._size_hint = size_hint
        self._max_length = max_length
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[str, Output], Program | _Failure] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def admission(cls) -> Environment:
        """`object` (dyn) with the libraries of Kubernetes 1.37, sizes below it bounded by 10,240."""
        return cls({"object": types.dyn}, ADMISSION, size_hint=object_size)

    @classmethod
    def device(cls) -> Environment:
        """`device` as in DRA selectors of Kubernetes 1.37; values come from `device.device_variable`."""
        return cls(
            {"device": device.DEVICE},
            (*ADMISSION, BINDINGS),
            fields=device.FIELDS,
            size_hint=device.size_hint,
        )

    def compile(self, text: str, output: Output = "any") -> Program:
        """The program of an expression, from the cache if it was compiled before.

        Raises `LengthError`, `ParseError` or `CheckError` (all `CompileError`), the same again for the same
        text. `output` says what the result must be; a static type that can never be it is a `CheckError`.
        """
        key = (text, output)
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
        if known is None:
            known = self._compile_once(text, output)
            with self._lock:
                self._cache[key] = known
                while len(self._cache) > self._cache_size:
                    self._cache.popitem(last=False)
        if isinstance(known, _Failure):
            raise known.error.with_traceback(None)
        return known

    def _compile_once(self, text: str, output: Output) -> Program | _Failure:
        try:
            try:
                return self._compile(text, output)
            except RecursionError:
                return on_fresh_stack(lambda: self._compile(text, output))
        except CompileError as error:
            return _Failure(error)
        except RecursionError:
            return _Failure(CheckError([Issue(1, 0, "expression is nested too deeply")], text))

    def _compile(self, text: str, output: Output) -> Program:
        length = len(text.encode("utf-8", "surrogatepass"))
        if length > self._max_length:
            message = f"expression is too long: {length} bytes, at most {self._max_length} are allowed"
            raise LengthError([Issue(1, 0, message)], text)
        root, source = parse(text, self._declarations.macros)
        checked = check(root, source, self._declarations)
        validate(checked, self._declarations)
        static_type = checked.types[root.id]
        _require(static_type, output, source)
        estimate = estimate_cost(checked, self._costs, self._size_hint)
        planned = plan(checked, self._declarations)
        return Program(text, to_estimate(estimate), static_type, planned, output == "string")


def _require(t: Type, output: Output, source: Source) -> None:
    if output == "any" or types.is_dyn(t):
        return
    wanted = types.string if output == "string" else types.bool_
    if t != wanted:
        message = f"must evaluate to {output} or the unknown type, not {t}"
        raise CheckError([Issue(1, 0, message)], source.text)
