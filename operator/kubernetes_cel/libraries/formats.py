"""`format.dns1123Label().validate("x")`: Kubernetes' named formats, with the API server's own complaints.

`validate` gives an optional list of complaints, none when the text is fine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from kubernetes_cel import costs, types
from kubernetes_cel.costs import NOMINAL
from kubernetes_cel.declarations import Function, Library, Overload
from kubernetes_cel.errors import no_such_overload
from kubernetes_cel.libraries.time import is_date
from kubernetes_cel.libraries.urls import check_url
from kubernetes_cel.types import Type
from kubernetes_cel.values import NONE, Optional

FORMAT_TYPE = types.struct("kubernetes.NamedFormat")

_MAX_REGEX = 128


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _too_long(most: int, unit: str = "characters") -> str:
    """Upstream counts bytes always, and says so where it has moved the check to a newer package."""
    return f"must be no more than {most} {unit}"


def _wrong(problem: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{problem} (e.g. {shown}regex used for validation is '{pattern}')"


class _Rule:
    """A pattern with its complaint."""

    def __init__(self, pattern: str, problem: str, *examples: str) -> None:
        self._regex = re.compile(f"(?:{pattern})\\Z", re.ASCII)
        self.complaint = _wrong(problem, pattern, *examples)

    def fits(self, text: str) -> bool:
        return self._regex.match(text) is not None


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LOWER = "must consist of lower case alphanumeric characters"
_ENDS = "must start and end with an alphanumeric character"
_DNS_LABEL = _Rule(_LABEL, f"a lowercase RFC 1123 label {_LOWER} or '-', and {_ENDS}", "my-name", "123-abc")
_SUBDOMAIN = _Rule(
    rf"{_LABEL}(\.{_LABEL})*",
    f"a lowercase RFC 1123 subdomain {_LOWER}, '-' or '.', and {_ENDS}",
    "example.com",
)
_DNS_1035 = _Rule(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    f"a DNS-1035 label {_LOWER} or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    "my-name",
    "abc-123",
)
_NAME = f"must consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
_LABEL_KEY = _Rule(_KEY, _NAME, "MyName", "my.name", "123-abc")
_LABEL_VALUE = _Rule(
    f"({_KEY})?",
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
    + _ENDS,
    "MyValue",
    "my_value",
    "12345",
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\Z")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\Z")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[^\n][0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})\Z")


def _dns_label(text: str) -> list[str]:
    complaints = [_too_long(63)] if _bytes(text) > 63 else []
    if not _DNS_LABEL.fits(text):
        complaints.append("must not contain dots" if _SUBDOMAIN.fits(text) else _DNS_LABEL.complaint)
    return complaints


def _subdomain(text: str, unit: str = "characters") -> list[str]:
    complaints = [_too_long(253, unit)] if _bytes(text) > 253 else []
    return complaints if _SUBDOMAIN.fits(text) else [*complaints, _SUBDOMAIN.complaint]


def _dns_1035(text: str) -> list[str]:
    complaints = [_too_long(63)] if _bytes(text) > 63 else []
    return complaints if _DNS_1035.fits(text) else [*complaints, _DNS_1035.complaint]


def _label_value(text: str) -> list[str]:
    complaints = [_too_long(63, "bytes")] if _bytes(text) > 63 else []
    return complaints if _LABEL_VALUE.fits(text) else [*complaints, _LABEL_VALUE.complaint]


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return [
            f"a valid label key {_LABEL_KEY.complaint} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        ]
    complaints: list[str] = []
    name = parts[-1]
    if len(parts) == 2:
        problems = _subdomain(parts[0], "bytes") if parts[0] else ["must be non-empty"]
        complaints += [f"prefix part {problem}" for problem in problems]
    if not name:
        complaints.append("name part must be non-empty")
    elif _bytes(name) > 63:
        complaints.append(f"name part {_too_long(63, 'bytes')}")
    if not _LABEL_KEY.fits(name):
        complaints.append(f"name part {_LABEL_KEY.complaint}")
    return complaints


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The same for a prefix of a name, which may end with a dash."""

    def masked(text: str) -> list[str]:
        if text.endswith("-") and len(text) > 1:
            data = text.encode("utf-8", "surrogatepass")[:-2] + b"a"
            text = data.decode("utf-8", "replace")
        return check(text)

    return masked


def _uri(text: str) -> list[str]:
    problem = check_url(text)
    return [] if problem is None else [f'parse "{text}": {problem}']


def _is_datetime(text: str) -> bool:
    if _bytes(text) < 4:
        return False
    parts = text.lower().split("t")
    if len(parts) < 2 or not is_date(parts[0]):
        return False
    match = _TIME.match(parts[1])
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _or(test: Callable[[str], Any], complaint: str) -> Callable[[str], list[str]]:
    return lambda text: [] if test(text) else [complaint]


class Format:
    """A named format; `regex_size` is what it costs by."""

    __slots__ = ("check", "name", "regex_size")
    cel_type: ClassVar[Type] = FORMAT_TYPE

    def __init__(self, name: str, check: Callable[[str], list[str]], regex_size: int) -> None:
        self.name = name
        self.check = check
        self.regex_size = regex_size

    def cel_equal(self, other: Any) -> bool:
        """The same format; anything else cannot be compared."""
        if type(other) is not Format:
            raise no_such_overload()
        return self.name == other.name

    def __repr__(self) -> str:
        return f"Format({self.name})"


#: By the name of the function that gives them.
FORMATS: dict[str, Format] = {
    "dns1123Label": Format("DNS1123Label", _dns_label, 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", _subdomain, 60),
    "dns1035Label": Format("DNS1035Label", _dns_1035, 30),
    "qualifiedName": Format("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", _prefix(_dns_label), 30),
    "dns1123SubdomainPrefix": Format("DNS1123SubdomainPrefix", _prefix(_subdomain), 60),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", _prefix(_dns_1035), 30),
    "labelValue": Format("LabelValue", _label_value, 40),
    "uri": Format("URI", _uri, 1103),
    "uuid": Format("uuid", _or(_UUID.match, "does not match the UUID format"), 70),
    "byte": Format("byte", _or(_BASE64.match, "invalid base64"), 84),
    "date": Format("date", _or(is_date, "invalid date"), 71),
    "datetime": Format("datetime", _or(_is_datetime, "invalid datetime"), 71),
}


def _named(name: str) -> Optional:
    found = FORMATS.get(name)
    return NONE if found is None else Optional(found)


def _validate(wanted: Format, text: str) -> Optional:
    complaints = wanted.check(text)
    return Optional(complaints) if complaints else NONE


def _regex_size(value: Any) -> int | None:
    return value.regex_size if type(value) is Format else None


def _constant(value: Format) -> Callable[[], Format]:
    return lambda: value


LIBRARY = Library(
    "kubernetes.format",
    functions=(
        Function(
            "format.named",
            (Overload("format-named", (types.string,), types.optional_of(FORMAT_TYPE), _named),),
            cost=NOMINAL,
        ),
        Function(
            "validate",
            (
                Overload(
                    "format-validate",
                    (FORMAT_TYPE, types.string),
                    types.optional_of(types.list_of(types.string)),
                    _validate,
                    member=True,
                ),
            ),
            cost=costs.validate(_MAX_REGEX, _regex_size),
        ),
        *(
            Function(f"format.{name}", (Overload(f"format.{name}", (), FORMAT_TYPE, _constant(value)),))
            for name, value in FORMATS.items()
        ),
    ),
)
