"""Quantities, selectors and records as values."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from harness import objects as o
from hypothesis import given
from hypothesis import strategies as st

from sharing_affinity.api import BadObject, Record, RecordedResult, parse_claim, quantity
from sharing_affinity.api import record as records
from sharing_affinity.api.keys import render, shorten
from sharing_affinity.api.selectors import NodeSelector, Requirement, Term


@pytest.mark.parametrize(
    ("text", "amount", "canonical"),
    [
        ("0", 0, "0"),
        ("-0", 0, "0"),
        ("16", 16, "16"),
        ("+5", 5, "5"),
        ("-5", -5, "-5"),
        ("1k", 1000, "1k"),
        ("1000", 1000, "1k"),
        ("1024", 1024, "1024"),
        ("1Ki", 1024, "1Ki"),
        ("1024Ki", 2**20, "1Mi"),
        ("1.5Gi", 3 * 2**29, "1536Mi"),
        ("0.5Ki", 512, "512"),
        ("500m", Fraction(1, 2), "500m"),
        ("0.5", Fraction(1, 2), "500m"),
        (".5", Fraction(1, 2), "500m"),
        ("5.", 5, "5"),
        ("1e3", 1000, "1e3"),
        ("1E3", 1000, "1e3"),
        ("1e-3", Fraction(1, 1000), "1e-3"),
        ("100n", Fraction(1, 10**7), "100n"),
        ("0.1n", Fraction(1, 10**9), "1n"),
        ("12E", 12 * 10**18, "12E"),
        ("9223372036854775808", 2**63, "9223372036854775808"),
        ("99999Ei", 99999 * 2**60, "99999Ei"),
    ],
)
def test_quantities(text: str, amount: Fraction | int, canonical: str) -> None:
    found = quantity.parse(text)
    assert found.amount == amount
    assert str(found) == canonical


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1KiB", "1ki", "0x10", "1e", "e3", "--1", "1.2.3", "१", "1e999", "9" * 300]
)
def test_not_quantities(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse(text)


@given(
    st.integers(-(2**70), 2**70),
    st.sampled_from([quantity.DECIMAL_SI, quantity.BINARY_SI, quantity.DECIMAL_EXPONENT]),
)
def test_canonical_text_reads_back(nano: int, form: str) -> None:
    assert quantity.parse(str(quantity.Quantity(nano, form))).nano == nano


@given(st.integers(-(10**12), 10**12))
def test_rounding_goes_away_from_zero(nano: int) -> None:
    found = quantity.Quantity(nano)
    assert abs(found.value) >= abs(found.amount) > abs(found.value) - 1
    assert abs(found.milli) >= abs(found.amount * 1000) > abs(found.milli) - 1


LABELS = {"zone": "z1", "cores": "8"}


@pytest.mark.parametrize(
    ("operator", "key", "values", "matches"),
    [
        ("In", "zone", ("z1", "z2"), True),
        ("In", "zone", ("z2",), False),
        ("In", "none", ("",), False),
        ("NotIn", "zone", ("z1",), False),
        ("NotIn", "none", ("z1",), True),
        ("Exists", "zone", (), True),
        ("DoesNotExist", "zone", (), False),
        ("Gt", "cores", ("7",), True),
        ("Gt", "cores", ("8",), False),
        ("Lt", "cores", ("9",), True),
        ("Lt", "zone", ("9",), False),
        ("Gt", "cores", (), False),
        ("Future", "zone", ("z1",), False),
    ],
)
def test_requirements(operator: str, key: str, values: tuple[str, ...], matches: bool) -> None:
    assert Requirement(key, operator, values).matches(LABELS) == matches


def test_node_selectors() -> None:
    zone = Requirement("zone", "In", ("z1",))
    name = Requirement("metadata.name", "In", ("n",))
    assert not NodeSelector(()).matches("n", LABELS)
    assert not NodeSelector((Term((), ()),)).matches("n", LABELS)
    assert NodeSelector((Term((), ()), Term((zone,), (name,)))).matches("n", LABELS)
    assert not NodeSelector((Term((zone,), (name,)),)).matches("m", LABELS)
    assert NodeSelector((Term((), (name,)),)).single_node() == "n"
    assert NodeSelector((Term((zone,), (name,)),)).single_node() is None
    assert not NodeSelector((Term((), (Requirement("metadata.uid", "In", ("n",)),)),)).matches("n", LABELS)


RESULT = RecordedResult("nic", "d", "p", "eth1", "s", (("subnet", "A"),))
RECORD = Record("a1", "2026-01-01T00:00:00Z", (RESULT, RecordedResult("m", "d", "p", "eth2", "", ())))


def test_records_read_back() -> None:
    assert records.decode(records.encode(RECORD)) == RECORD
    assert records.encode(RECORD.with_attempt("a1")) == records.encode(RECORD)


def test_a_record_counts_only_for_its_allocation() -> None:
    identities = [r.identity for r in RECORD.results]
    assert records.matches(RECORD, RECORD.timestamp, identities)
    assert records.matches(RECORD, RECORD.timestamp, identities[::-1])
    assert not records.matches(RECORD, "2026-01-01T00:00:01Z", identities)
    assert not records.matches(RECORD, RECORD.timestamp, identities[:1])
    assert not records.matches(RECORD, RECORD.timestamp, [*identities[:1], ("m", "d", "p", "eth3", "")])


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i))
)
def test_what_is_no_record_is_none(value: object) -> None:
    found = records.decode(json.dumps(value))
    assert found is None or isinstance(value, dict)
    assert records.decode(str(value)[:20] + "{") is None


def test_values_for_people_are_short_and_on_one_line() -> None:
    assert render((("a", "1"), ("b", "2"))) == "a=1,b=2"
    assert shorten("x" * 100, 10) == "x" * 9 + "…"
    assert "\n" not in shorten("a\nb\x1b[31m")


def test_equal_specs_are_read_once_and_refused_by_the_name_of_each() -> None:
    one, other = parse_claim(o.claim("one", "A")), parse_claim(o.claim("other", "A"))
    assert one.requests is other.requests
    assert one.configs is other.configs
    assert parse_claim(o.claim("third", "B")).configs != one.configs
    twice = [o.request("nic"), o.request("nic")]
    for name in ("x", "y", "x"):
        with pytest.raises(BadObject, match="used twice") as refused:
            parse_claim(o.claim(name, requests=twice))
        assert (refused.value.name, refused.value.path) == (name, "spec.devices.requests")


def test_what_json_writes_alike_is_told_apart() -> None:
    def capacity(requests: dict[object, object]) -> dict[str, object]:
        return o.claim("claim", requests=[o.request(capacity={"requests": requests})])

    assert parse_claim(capacity({"1": 1})).requests != parse_claim(capacity({"1": 2})).requests
    # A YAML file may have a number as a key; JSON would have made text of it.
    with pytest.raises(BadObject):
        parse_claim(capacity({1: 1}))
