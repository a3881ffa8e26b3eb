"""Making and renewing certificates: pure, with times handed in."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from sharing_affinity.webhook.certificates import SKEW, Material, due, make
from sharing_affinity.webhook.keeper import data, read

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
LIFETIME = datetime.timedelta(days=90)
HOSTS = ("webhook.system.svc", "127.0.0.1")


def verify(material: Material, authorities: bytes, when: datetime.datetime) -> None:
    """As a TLS client does it; raises when it would hang up."""
    store = Store(x509.load_pem_x509_certificates(authorities))
    verifier = PolicyBuilder().store(store).time(when).build_server_verifier(x509.DNSName(HOSTS[0]))
    verifier.verify(x509.load_pem_x509_certificate(material.certificate), [])


def test_a_client_accepts_it_for_its_life_and_no_longer() -> None:
    made = make(HOSTS, NOW, LIFETIME)
    verify(made, made.authorities, NOW - SKEW)
    verify(made, made.authorities, NOW + LIFETIME)
    with pytest.raises(VerificationError):
        verify(made, made.authorities, NOW + LIFETIME + datetime.timedelta(seconds=1))
    with pytest.raises(VerificationError):
        verify(made, make(HOSTS, NOW, LIFETIME).authorities, NOW)


def test_the_old_certificate_stays_trusted_beside_the_new() -> None:
    old = make(HOSTS, NOW, LIFETIME)
    later = NOW + LIFETIME * 0.7
    new = make(HOSTS, later, LIFETIME, old)
    verify(old, new.authorities, later)
    verify(new, new.authorities, later)
    assert not due(new, HOSTS, later, LIFETIME)
    third = make(HOSTS, later, LIFETIME, new)
    with pytest.raises(VerificationError):
        verify(old, third.authorities, later)
    after = make(HOSTS, NOW + 3 * LIFETIME, LIFETIME, new)
    assert len(x509.load_pem_x509_certificates(after.authorities)) == 1


@pytest.mark.parametrize(("days", "wanted"), [(0, False), (59, False), (61, True), (91, True)])
def test_renewed_in_the_last_third(days: int, wanted: bool) -> None:
    made = make(HOSTS, NOW, LIFETIME)
    assert bool(due(made, HOSTS, NOW + datetime.timedelta(days=days), LIFETIME)) is wanted


def test_one_that_a_clock_ahead_has_made_is_made_again() -> None:
    ahead = make(HOSTS, NOW + datetime.timedelta(days=30), LIFETIME)
    with pytest.raises(VerificationError):
        verify(ahead, ahead.authorities, NOW)
    assert "begins" in due(ahead, HOSTS, NOW, LIFETIME)
    new = make(HOSTS, NOW, LIFETIME, ahead)
    verify(new, new.authorities, NOW)
    assert not due(new, HOSTS, NOW - SKEW, LIFETIME)


def test_what_is_stored_is_not_believed() -> None:
    made, other = make(HOSTS, NOW, LIFETIME), make(HOSTS, NOW, LIFETIME)
    assert due(None, HOSTS, NOW, LIFETIME) == "there is none"
    assert "cannot be read" in due(Material(b"x", made.key, made.authorities), HOSTS, NOW, LIFETIME)
    assert "cannot be read" in due(Material(made.certificate, made.key, b"x"), HOSTS, NOW, LIFETIME)
    assert "another" in due(Material(made.certificate, other.key, made.authorities), HOSTS, NOW, LIFETIME)
    assert "authority" in due(Material(made.certificate, made.key, other.authorities), HOSTS, NOW, LIFETIME)
    assert "not for elsewhere" in due(made, (*HOSTS, "elsewhere"), NOW, LIFETIME)
    assert make(HOSTS, NOW, LIFETIME, Material(b"x", b"x", b"x")).authorities


def test_through_a_secret_and_back() -> None:
    made = make(HOSTS, NOW, LIFETIME)
    assert read({"data": data(made)}) == made
    assert read({}) is None
    assert read({"data": {**data(made), "tls.key": ""}}) is None
    assert read({"data": {**data(made), "tls.key": "%"}}) is None
