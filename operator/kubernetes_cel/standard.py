"""The language definition's own functions and operators, optionals, and two-variable comprehensions.

Conversions, times and everything Kubernetes adds are in `libraries`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2

from kubernetes_cel import costs, operators, types
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.macros import OPTIONAL_MACROS, STANDARD_MACROS, TWO_VARIABLE_MACROS
from kubernetes_cel.types import Type, list_of, map_of, optional_of, param
from kubernetes_cel.values import (
    EMPTY,
    MISSING,
    NONE,
    Duration,
    ListView,
    MapView,
    Optional,
    Timestamp,
    TypedMap,
    equal,
    find,
    not_equal,
    size_of_list,
    size_or_none,
)

_A, _B = param("A"), param("B")
_K, _V = param("K"), param("V")
_LIST = list_of(_A)
_MAP = map_of(_A, _B)
_BOOL, _BYTES, _DOUBLE, _INT, _STRING, _UINT = (
    types.bool_,
    types.bytes_,
    types.double,
    types.int_,
    types.string,
    types.uint,
)
_DURATION, _TIMESTAMP = types.duration, types.timestamp


def _unbound(*_: Any) -> Any:
    raise no_such_overload()


def _binary(
    name: str, impl: Callable[[Any, Any], Any], *signatures: tuple[str, Type, Type, Type]
) -> Function:
    overloads = tuple(Overload(id_, (left, right), result) for id_, left, right, result in signatures)
    return Function(name, overloads, shared=impl)


def _comparison(name: str, prefix: str, accept: Callable[[int], bool]) -> Function:
    pairs = (
        ("bool", _BOOL, _BOOL),
        ("int64", _INT, _INT),
        ("int64_double", _INT, _DOUBLE),
        ("int64_uint64", _INT, _UINT),
        ("uint64", _UINT, _UINT),
        ("uint64_double", _UINT, _DOUBLE),
        ("uint64_int64", _UINT, _INT),
        ("double", _DOUBLE, _DOUBLE),
        ("double_int64", _DOUBLE, _INT),
        ("double_uint64", _DOUBLE, _UINT),
        ("string", _STRING, _STRING),
        ("bytes", _BYTES, _BYTES),
        ("timestamp", _TIMESTAMP, _TIMESTAMP),
        ("duration", _DURATION, _DURATION),
    )
    signatures = tuple((f"{prefix}_{kind}", left, right, _BOOL) for kind, left, right in pairs)
    return _binary(name, operators.ordering(accept), *signatures)


_OPERATORS = (
    Function("_?_:_", (Overload("conditional", (_BOOL, _A, _A), _A),), shared=_unbound),
    Function("_&&_", (Overload("logical_and", (_BOOL, _BOOL), _BOOL),), shared=_unbound),
    Function("_||_", (Overload("logical_or", (_BOOL, _BOOL), _BOOL),), shared=_unbound),
    Function("!_", (Overload("logical_not", (_BOOL,), _BOOL),), shared=operators.logical_not),
    Function("@not_strictly_false", (Overload("not_strictly_false", (_BOOL,), _BOOL),), shared=_unbound),
    Function("_==_", (Overload("equals", (_A, _A), _BOOL),), shared=equal, cost=costs.EQUALITY),
    Function("_!=_", (Overload("not_equals", (_A, _A), _BOOL),), shared=not_equal),
    _binary(
        "_+_",
        operators.add,
        ("add_bytes", _BYTES, _BYTES, _BYTES),
        ("add_double", _DOUBLE, _DOUBLE, _DOUBLE),
        ("add_duration_duration", _DURATION, _DURATION, _DURATION),
        ("add_duration_timestamp", _DURATION, _TIMESTAMP, _TIMESTAMP),
        ("add_timestamp_duration", _TIMESTAMP, _DURATION, _TIMESTAMP),
        ("add_int64", _INT, _INT, _INT),
        ("add_list", _LIST, _LIST, _LIST),
        ("add_string", _STRING, _STRING, _STRING),
        ("add_uint64", _UINT, _UINT, _UINT),
    ),
    _binary(
        "_/_",
        operators.divide,
        ("divide_double", _DOUBLE, _DOUBLE, _DOUBLE),
        ("divide_int64", _INT, _INT, _INT),
        ("divide_uint64", _UINT, _UINT, _UINT),
    ),
    _binary(
        "_%_",
        operators.modulo,
        ("modulo_int64", _INT, _INT, _INT),
        ("modulo_uint64", _UINT, _UINT, _UINT),
    ),
    _binary(
        "_*_",
        operators.multiply,
        ("multiply_double", _DOUBLE, _DOUBLE, _DOUBLE),
        ("multiply_int64", _INT, _INT, _INT),
        ("multiply_uint64", _UINT, _UINT, _UINT),
    ),
    Function(
        "-_",
        (Overload("negate_double", (_DOUBLE,), _DOUBLE), Overload("negate_int64", (_INT,), _INT)),
        shared=operators.negate,
    ),
    _binary(
        "_-_",
        operators.subtract,
        ("subtract_double", _DOUBLE, _DOUBLE, _DOUBLE),
        ("subtract_duration_duration", _DURATION, _DURATION, _DURATION),
        ("subtract_int64", _INT, _INT, _INT),
        ("subtract_timestamp_duration", _TIMESTAMP, _DURATION, _TIMESTAMP),
        ("subtract_timestamp_timestamp", _TIMESTAMP, _TIMESTAMP, _DURATION),
        ("subtract_uint64", _UINT, _UINT, _UINT),
    ),
    _comparison("_<_", "less", lambda order: order < 0),
    _comparison("_<=_", "less_equals", lambda order: order <= 0),
    _comparison("_>_", "greater", lambda order: order > 0),
    _comparison("_>=_", "greater_equals", lambda order: order >= 0),
    Function(
        "_[_]",
        (
            Overload("index_list", (_LIST, _INT), _A),
            Overload("index_map", (_MAP, _A), _B),
            Overload("optional_list_index_int", (optional_of(list_of(_V)), _INT), optional_of(_V)),
            Overload("optional_map_index_value", (optional_of(map_of(_K, _V)), _K), optional_of(_V)),
        ),
        shared=_unbound,
    ),
    _binary("@in", operators.contains, ("in_list", _A, _LIST, _BOOL), ("in_map", _A, _MAP, _BOOL)),
)


def _size_overloads() -> tuple[Overload, ...]:
    out: list[Overload] = []
    for kind, t in (("bytes", _BYTES), ("list", _LIST), ("map", _MAP), ("string", _STRING)):
        out.append(Overload(f"size_{kind}", (t,), _INT))
        out.append(Overload(f"{kind}_size", (t,), _INT, member=True))
    return tuple(out)


def _text(test: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def run(text: Any, other: Any) -> bool:
        if type(text) is str and type(other) is str:
            return test(text, other)
        raise no_such_overload()

    return run


def compile_pattern(pattern: str) -> Any:
    """A compiled RE2 pattern. A bad one is an `EvaluationError`."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error as problem:
        detail = problem.args[0] if problem.args else "invalid"
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        raise EvaluationError(f"error parsing regexp: {text}") from None


def _matches(text: Any, pattern: Any) -> bool:
    if type(text) is not str or type(pattern) is not str:
        raise no_such_overload("matches") if type(text) is not str else no_such_overload()
    return compile_pattern(pattern).search(text) is not None


def _matches_constant(pattern: str) -> Callable[[Any], bool]:
    search = compile_pattern(pattern).search

    def run(text: Any) -> bool:
        if type(text) is not str:
            raise no_such_overload()
        return search(text) is not None

    return run


_FUNCTIONS = (
    Function("size", _size_overloads(), shared=operators.size),
    Function(
        "contains",
        (
            Overload(
                "contains_string",
                (_STRING, _STRING),
                _BOOL,
                _text(lambda text, part: part in text),
                member=True,
            ),
        ),
        guarded=False,
    ),
    Function(
        "endsWith",
        (Overload("ends_with_string", (_STRING, _STRING), _BOOL, _text(str.endswith), member=True),),
        guarded=False,
    ),
    Function(
        "startsWith",
        (Overload("starts_with_string", (_STRING, _STRING), _BOOL, _text(str.startswith), member=True),),
        guarded=False,
    ),
    Function(
        "matches",
        (
            Overload("matches", (_STRING, _STRING), _BOOL),
            Overload("matches_string", (_STRING, _STRING), _BOOL, member=True),
        ),
        shared=_matches,
        precompile=_matches_constant,
    ),
)

#: Operators, `size`, and functions on strings of the language definition, with its macros.
STANDARD = Library(
    name="standard",
    functions=_OPERATORS + _FUNCTIONS,
    macros=STANDARD_MACROS,
    types=(
        _BOOL,
        _BYTES,
        _DOUBLE,
        _DURATION,
        _INT,
        types.list_dyn,
        types.map_dyn,
        types.null,
        _STRING,
        _TIMESTAMP,
        types.type_,
        _UINT,
    ),
)


# -- optionals

_OPTIONAL = optional_of(_V)


def _is_zero(value: Any) -> bool:
    if value is None or value is False:
        return True
    kind = type(value)
    if kind is Duration:
        return bool(value.nanos == 0)
    if kind is Timestamp:
        return bool(value.seconds == Timestamp.MIN_SECONDS and value.nanos == 0)
    if kind is bool:
        return False
    if isinstance(value, int | float):
        return value == 0
    if isinstance(value, str | bytes | list | ListView | dict | MapView):
        return size_or_none(value) == 0
    return value is EMPTY


def _unwrap(values: Any) -> list[Any]:
    unwrapped: list[Any] = []
    for value in values:
        if type(value) is not Optional:
            raise EvaluationError("value is not optional")
        if value.has_value:
            unwrapped.append(value.value)
    return unwrapped


def _first(values: Any) -> Optional:
    return Optional(values[0]) if values else NONE


def _last(values: Any) -> Optional:
    if not values:
        return NONE
    return Optional(values[size_of_list(values) - 1])


#: `optional.of` and its kin, optional selections and indexes, `optMap`, `optFlatMap`, `first`, `last`.
OPTIONALS = Library(
    name="optionals",
    macros=OPTIONAL_MACROS,
    types=(Type(types.OPAQUE, "optional_type", (types.dyn,)),),
    functions=(
        Function("optional.of", (Overload("optional_of", (_V,), _OPTIONAL, Optional),)),
        Function(
            "optional.ofNonZeroValue",
            (
                Overload(
                    "optional_ofNonZeroValue",
                    (_V,),
                    _OPTIONAL,
                    lambda value: NONE if _is_zero(value) else Optional(value),
                ),
            ),
        ),
        Function("optional.none", (Overload("optional_none", (), _OPTIONAL, lambda: NONE),)),
        Function("value", (Overload("optional_value", (_OPTIONAL,), _V, Optional.get, member=True),)),
        Function(
            "hasValue",
            (Overload("optional_hasValue", (_OPTIONAL,), _BOOL, lambda value: value.has_value, member=True),),
        ),
        Function("or", (Overload("optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL, member=True),)),
        Function("orValue", (Overload("optional_orValue_value", (_OPTIONAL, _V), _V, member=True),)),
        Function("_?._", (Overload("select_optional_field", (types.dyn, _STRING), _OPTIONAL),)),
        Function(
            "_[?_]",
            (
                Overload("list_optindex_optional_int", (list_of(_V), _INT), _OPTIONAL),
                Overload("optional_list_optindex_optional_int", (optional_of(list_of(_V)), _INT), _OPTIONAL),
                Overload("map_optindex_optional_value", (map_of(_K, _V), _K), _OPTIONAL),
                Overload(
                    "optional_map_optindex_optional_value", (optional_of(map_of(_K, _V)), _K), _OPTIONAL
                ),
            ),
        ),
        Function("last", (Overload("list_last", (list_of(_V),), _OPTIONAL, _last, member=True),)),
        Function("first", (Overload("list_first", (list_of(_V),), _OPTIONAL, _first, member=True),)),
        Function(
            "optional.unwrap", (Overload("optional_unwrap", (list_of(_OPTIONAL),), list_of(_V), _unwrap),)
        ),
        Function(
            "unwrapOpt",
            (Overload("optional_unwrapOpt", (list_of(_OPTIONAL),), list_of(_V), _unwrap, member=True),),
        ),
    ),
)


# -- two-variable comprehensions


def _put(target: TypedMap, key: Any, value: Any) -> TypedMap:
    if find(target, key) is not MISSING:
        raise EvaluationError(f"insert failed: key {key} already exists")
    target.put(key, value)
    return target


def _put_all(target: TypedMap, entries: Any) -> TypedMap:
    for key, value in entries.items():
        _put(target, key, value)
    return target


#: `all`, `exists`, `existsOne`, `transformList`, `transformMap` and `transformMapEntry` over index or key and
#: value.
TWO_VARIABLES = Library(
    name="two-variable comprehensions",
    macros=TWO_VARIABLE_MACROS,
    functions=(
        Function(
            "cel.@mapInsert",
            (
                Overload("@mapInsert_map_key_value", (map_of(_K, _V), _K, _V), map_of(_K, _V), _put),
                Overload("@mapInsert_map_map", (map_of(_K, _V), map_of(_K, _V)), map_of(_K, _V), _put_all),
            ),
        ),
    ),
)
