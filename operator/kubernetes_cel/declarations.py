"""How a library declares what it brings: functions with their overloads, macros and types.

A library is data. An overload has argument and result types for the checker, an id that the cost models know
it by, and an implementation that gets plain values (see `values`) and returns one, or raises
`EvaluationError`::

    LIBRARY = Library(
        name="greetings",
        functions=(
            Function(
                "greet",
                (
                    Overload("string_greet", (types.string,), types.string, lambda s: "hello " + s,
                    member=True), Overload("string_greet_int", (types.string, types.int_), types.string,
                    greet_times, member=True),
                ),
                cost=costs.TEXT,
            ),
        ),
    )

For member overloads the receiver is the first argument. Implementations are called only with values of the
declared run-time types (element types are looked at in the first element only, as upstream does), unless
`guarded` is False; they must be pure, and never keep or change an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kubernetes_cel import types
from kubernetes_cel.costs import CostModel
from kubernetes_cel.types import Type

if TYPE_CHECKING:
    from kubernetes_cel.ast import Expr
    from kubernetes_cel.checker import Checked
    from kubernetes_cel.macros import Expander


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. Type parameters are `types.param("T")`."""

    id: str
    args: tuple[Type, ...]
    result: Type
    impl: Callable[..., Any] | None = None
    member: bool = False
    #: Upstream binds the implementation as a function of any arity, although it has one or two arguments:
    #: then the first failing argument ends the call, where two-argument functions evaluate (and charge) both.
    variadic: bool = False
    #: Names of the type parameters in the signature.
    params: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", tuple(types.param_names((self.result, *self.args))))


@dataclass(frozen=True, slots=True)
class Function:
    """A function or operator: overloads in the order in which the checker tries them.

    `shared` is one implementation for all overloads (it must raise `EvaluationError("no such overload")`
    itself for what it does not know). `cost` is None where the default of 1 holds. `guarded=False` leaves
    argument types to the implementations when the checker left exactly one overload.
    """

    name: str
    overloads: tuple[Overload, ...]
    shared: Callable[..., Any] | None = None
    cost: CostModel | None = None
    guarded: bool = True
    #: For functions whose second argument is a pattern: given a constant one, the implementation for it.
    #: Raising `EvaluationError` makes the expression fail to compile.
    precompile: Callable[[str], Callable[..., Any]] | None = None
    #: The result may be far longer than what the call costs: texts it builds count against a limit.
    grows: bool = False

    def merged(self, other: Function) -> Function:
        """Both functions' overloads under one name: libraries may extend each other's functions."""
        mine = {overload.id for overload in self.overloads}
        if self.cost is not None and other.cost is not None and self.cost is not other.cost:
            raise ValueError(f"{self.name}: two libraries declare different costs")
        return replace(
            self,
            overloads=self.overloads + tuple(o for o in other.overloads if o.id not in mine),
            shared=self.shared or other.shared,
            cost=self.cost or other.cost,
            guarded=self.guarded and other.guarded,
            precompile=self.precompile or other.precompile,
            grows=self.grows or other.grows,
        )


@dataclass(frozen=True, slots=True)
class Macro:
    """A call that is rewritten while parsing. `args` is the exact number of arguments.

    `expand(expander, target, arguments)` returns the new tree, None for "not mine after all", or raises
    `macros.MacroError`.
    """

    name: str
    args: int
    receiver: bool
    expand: Callable[[Expander, Expr | None, list[Expr]], Expr | None]


#: Looks at a checked tree; yields (node id, message) for what it refuses.
Validator = Callable[["Checked", "Declarations"], Iterable[tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class Library:
    """Functions, macros and named types (`net.IP` and the like) that come together.

    `mixed` names functions in whose arguments list and map literals may mix types; `validators` run after the
    checker.
    """

    name: str
    functions: tuple[Function, ...] = ()
    macros: tuple[Macro, ...] = ()
    types: tuple[Type, ...] = ()
    validators: tuple[Validator, ...] = ()
    mixed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Declarations:
    """Everything an environment knows, by name. Built once, never changed.

    `container` is the namespace in which names are looked up first, empty for none.
    """

    functions: Mapping[str, Function]
    macros: Mapping[tuple[str, int, bool], Macro]
    variables: Mapping[str, Type]
    type_names: Mapping[str, Type]
    fields: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    validators: tuple[Validator, ...] = ()
    mixed: frozenset[str] = frozenset()
    container: str = ""

    @staticmethod
    def of(
        libraries: Iterable[Library],
        variables: Mapping[str, Type],
        fields: Mapping[str, Mapping[str, Type]] | None = None,
        container: str = "",
    ) -> Declarations:
        """Merge libraries. Later macros of the same name and arity win, functions of the same name are
        merged.
        """
        functions: dict[str, Function] = {}
        macros: dict[tuple[str, int, bool], Macro] = {}
        type_names: dict[str, Type] = {}
        validators: list[Validator] = []
        mixed: set[str] = set()
        for library in libraries:
            validators.extend(library.validators)
            mixed.update(library.mixed)
            for function in library.functions:
                known = functions.get(function.name)
                functions[function.name] = function if known is None else known.merged(function)
            for macro in library.macros:
                macros[macro.name, macro.args, macro.receiver] = macro
            for t in library.types:
                type_names[t.name] = t
        for name in fields or {}:
            type_names[name] = types.struct(name)
        return Declarations(
            functions,
            macros,
            dict(variables),
            type_names,
            dict(fields or {}),
            tuple(validators),
            frozenset(mixed),
            container,
        )
