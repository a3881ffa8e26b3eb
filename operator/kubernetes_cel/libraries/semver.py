"""`semver("1.2.3-beta.1+build")`: semantic versions by precedence (build metadata does not count)."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from kubernetes_cel import costs, types
from kubernetes_cel.costs import NOMINAL
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import EvaluationError, no_such_overload
from kubernetes_cel.types import Type
from kubernetes_cel.values import MAX_UINT

SEMVER_TYPE = types.struct("kubernetes.Semver")

_NUMBER = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_DIGITS = re.compile(r"[0-9]+\Z")
_WORD = re.compile(r"[0-9A-Za-z-]+\Z")


class Semver:
    """A version. `pre` holds ints and strings."""

    __slots__ = ("build", "major", "minor", "patch", "pre")
    cel_type: ClassVar[Type] = SEMVER_TYPE

    def __init__(
        self, major: int, minor: int, patch: int, pre: tuple[int | str, ...], build: tuple[str, ...]
    ) -> None:
        self.major = major
        self.minor = minor
        self.patch = patch
        self.pre = pre
        self.build = build

    def compare(self, other: Semver) -> int:
        """-1, 0 or 1 by precedence."""
        mine = (self.major, self.minor, self.patch)
        theirs = (other.major, other.minor, other.patch)
        if mine != theirs:
            return 1 if mine > theirs else -1
        if not self.pre or not other.pre:
            return bool(other.pre) - bool(self.pre)
        for a, b in zip(self.pre, other.pre, strict=False):
            if a != b:
                return _compare_parts(a, b)
        return (len(self.pre) > len(other.pre)) - (len(self.pre) < len(other.pre))

    def cel_equal(self, other: Any) -> bool:
        """Equal precedence; anything else cannot be compared."""
        if type(other) is not Semver:
            raise no_such_overload()
        return self.compare(other) == 0

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        if self.build:
            text += "+" + ".".join(self.build)
        return text

    def __repr__(self) -> str:
        return f"Semver({self})"


def _compare_parts(a: int | str, b: int | str) -> int:
    """Numbers before words."""
    if isinstance(a, int):
        return -1 if isinstance(b, str) or a < b else 1
    if isinstance(b, int):
        return 1
    return -1 if a < b else 1


def _number(text: str, what: str) -> int:
    if not _NUMBER.match(text) or len(text) > 20 or int(text) > MAX_UINT:
        raise EvaluationError(f'invalid {what} number "{text}"')
    return int(text)


def parse_semver(text: str, normalize: bool = False) -> Semver:
    """`semver(text)`; with `normalize`, short versions, a leading v and leading zeros are taken as well."""
    if normalize:
        text = _normalized(text)
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise EvaluationError("No Major.Minor.Patch elements found" if text else "Version string empty")
    major, minor = _number(parts[0], "major"), _number(parts[1], "minor")
    rest, plus, built = parts[2].partition("+")
    patch, dash, released = rest.partition("-")
    patch_number = _number(patch, "patch")
    pre: list[int | str] = []
    for part in released.split(".") if dash else ():
        if _DIGITS.match(part):
            pre.append(_number(part, "prerelease"))
        elif _WORD.match(part):
            pre.append(part)
        else:
            raise EvaluationError(f'invalid prerelease "{part}"')
    build = built.split(".") if plus else []
    for part in build:
        if not _WORD.match(part):
            raise EvaluationError(f'invalid build metadata "{part}"')
    return Semver(major, minor, patch_number, tuple(pre), tuple(build))


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped and stripped[0] in "0123456789" else "0" + stripped
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise EvaluationError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        parse_semver(text, normalize)
    except EvaluationError:
        return False
    return True


def _as_int(value: int) -> int:
    """Upstream puts an unsigned number into an int; beyond int64 it turns negative."""
    return value - 2**64 if value >= 2**63 else value


def _method(name: str, id_: str, other: bool, result: Type, impl: Any) -> Function:
    args = (SEMVER_TYPE, SEMVER_TYPE) if other else (SEMVER_TYPE,)
    return Function(name, (Overload(id_, args, result, impl, member=True),), cost=NOMINAL)


_S, _B, _I = types.string, types.bool_, types.int_

LIBRARY = Library(
    "kubernetes.Semver",
    functions=(
        Function(
            "semver",
            (
                Overload("string_to_semver", (_S,), SEMVER_TYPE, parse_semver),
                Overload("string_bool_to_semver", (_S, _B), SEMVER_TYPE, parse_semver),
            ),
            cost=costs.PARSE_ARGUMENT,
        ),
        Function(
            "isSemver",
            (
                Overload("is_semver_string", (_S,), _B, _is_semver),
                Overload("is_semver_string_bool", (_S, _B), _B, _is_semver),
            ),
            cost=costs.PARSE_ARGUMENT,
        ),
        _method("isGreaterThan", "semver_is_greater_than", True, _B, lambda a, b: a.compare(b) == 1),
        _method("isLessThan", "semver_is_less_than", True, _B, lambda a, b: a.compare(b) == -1),
        _method("compareTo", "semver_compare_to", True, _I, lambda a, b: a.compare(b)),
        _method("major", "semver_major", False, _I, lambda a: _as_int(a.major)),
        _method("minor", "semver_minor", False, _I, lambda a: _as_int(a.minor)),
        _method("patch", "semver_patch", False, _I, lambda a: _as_int(a.patch)),
    ),
)
