"""Macros over lists and maps as Python loops.

`all`, `exists`, `exists_one` and the collecting macros (`map`, `filter`, `transformList`) are known by name
and run without their accumulator's expression; what they charge per element is what their trees charge (see
`macros`). All others, and nothing else, run from their trees.

An accumulator can hold an error: the loop goes on, as upstream's does, and charges on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kubernetes_cel.attributes import LAZY
from kubernetes_cel.costs import LIST_COST
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.runtime import Code, Run
from kubernetes_cel.values import MISSING, ListView, MapView, TypedMap, type_name

#: Charges of `@not_strictly_false(!@result)`, `@not_strictly_false(@result)`, and of the accumulator in the
#: step.
_EXISTS_CONDITION = 3
_ALL_CONDITION = 2
_ACCUMULATOR = 1

_Slots = tuple[int, int, int]
_Advance = Callable[[Run], Iterator[None]]


def plan_loop(
    macro: str,
    over: Code,
    slots: _Slots,
    init: Any,
    condition: Code,
    step: Code,
    result: Code,
    parts: Sequence[tuple[Code, Any]],
) -> Code:
    """Code of a macro. `slots` are accumulator, first and second variable (-1: none).

    `parts` are the author's own expressions with their constant values (or MISSING): predicate, transform.
    """
    advance = _advance(over, slots[1], slots[2])
    if macro == "exists":
        return _quantifier(advance, parts[0][0], _EXISTS_CONDITION, decisive=True)
    if macro == "all":
        return _quantifier(advance, parts[0][0], _ALL_CONDITION, decisive=False)
    if macro == "exists_one":
        return _exists_one(advance, parts[0][0])
    if macro == "collect":
        predicate = parts[0][0] if len(parts) == 2 else None
        return _collect(advance, predicate, *parts[-1])
    return _fold(advance, slots[0], init, condition, step, result)


def _advance(over: Code, first: int, second: int) -> _Advance:
    """Evaluates the range and puts each element (or key and value) into the variables' slots."""

    def one(run: Run) -> Iterator[None]:
        elements = over(run)
        if not isinstance(elements, list | ListView | dict | MapView):
            raise EvaluationError(f"got '{type_name(elements)}', expected iterable type")
        slots = run.slots
        for element in elements:
            slots[first] = element
            yield

    def two(run: Run) -> Iterator[None]:
        elements = over(run)
        slots = run.slots
        if isinstance(elements, list | ListView):
            for i, element in enumerate(elements):
                slots[first] = i
                slots[second] = element
                yield
        elif isinstance(elements, dict | MapView):
            for key, value in elements.items():
                slots[first] = key
                slots[second] = value
                yield
        else:
            raise EvaluationError(f"unsupported comprehension range type: {type_name(elements)}")

    return one if second < 0 else two


def _quantifier(advance: _Advance, predicate: Code, condition_cost: int, *, decisive: bool) -> Code:
    """`exists` (decisive: True) or `all` (decisive: False), with errors absorbed as || and && do."""
    step_cost = condition_cost + _ACCUMULATOR

    def quantify(run: Run) -> bool:
        failed: EvaluationError | None = None
        decided = False
        for _ in advance(run):
            if decided:
                run.charge_units(condition_cost)
                break
            run.charge_units(step_cost)
            try:
                holds = predicate(run)
            except EvaluationError as error:
                failed = failed or error
                continue
            if holds is decisive:
                decided = True
            elif type(holds) is not bool and failed is None:
                failed = no_such_overload()
        run.charge_units(_ACCUMULATOR)
        if decided:
            return decisive
        if failed is not None:
            raise failed
        return not decisive

    return quantify


def _exists_one(advance: _Advance, predicate: Code) -> Code:
    def count(run: Run) -> bool:
        failed: EvaluationError | None = None
        found = 0
        for _ in advance(run):
            try:
                holds = predicate(run)
            except EvaluationError as error:
                failed = error
                continue
            if holds is True:
                run.charge_units(2)  # accumulator, addition
                found += 1
            elif holds is not False:
                failed = no_such_overload()
        run.charge_units(2)  # accumulator, comparison
        if failed is not None:
            raise failed
        return found == 1

    return count


def _collect(advance: _Advance, predicate: Code | None, transform: Code, constant: Any) -> Code:
    """`map`, `filter` and `transformList`. A constant transform is a list built once: it costs nothing."""
    built_each_time = constant is MISSING

    def collect(run: Run) -> list[Any]:
        collected: list[Any] = []
        failed: EvaluationError | None = None
        for _ in advance(run):
            if predicate is not None:
                try:
                    holds = predicate(run)
                except EvaluationError as error:
                    failed = error
                    continue
                if holds is False:
                    continue
                if holds is not True:
                    failed = no_such_overload()
                    continue
            run.charge(_ACCUMULATOR)
            if built_each_time:
                try:
                    element = transform(run)
                except EvaluationError as error:
                    failed = failed or error
                    element = None
                run.charge(LIST_COST)
            else:
                element = constant
            run.charge(1)  # concatenation
            if failed is None:
                collected.append(element)
        run.charge(_ACCUMULATOR)
        if failed is not None:
            raise failed
        return collected

    return collect


def _fold(advance: _Advance, accumulator: int, init: Any, condition: Code, step: Code, result: Code) -> Code:
    """Any comprehension, from its tree."""
    builds_map = isinstance(init, dict) and not init

    def fold(run: Run) -> Any:
        slots = run.slots
        # Inserting into the accumulator changes it in place; nothing else can see it before the loop is done.
        slots[accumulator] = TypedMap() if builds_map else init
        for _ in advance(run):
            try:
                if condition(run) is False:
                    break
            except EvaluationError:
                pass
            try:
                slots[accumulator] = step(run)
            except EvaluationError as error:
                slots[accumulator] = error
        return result(run)

    return fold


def bind_lazily(slot: int, body: Code) -> Code:
    """The body of `optMap` or `cel.bind`, whose variable in `slot` is computed when first asked for."""

    def bound(run: Run) -> Any:
        run.slots[slot] = LAZY
        return body(run)

    return bound
