"""The certificate the API server meets, and the authority it is told to trust. Pure: times come in.

Each renewal makes a new authority, which signs one certificate and whose key is then forgotten: there is no
key that could sign another. Authorities of the renewal before stay in the bundle, so that servers that still
show the old certificate stay trusted while the new one spreads.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Clocks of API servers may be behind ours.
SKEW: Final = datetime.timedelta(hours=1)
#: The new authority and its predecessor.
AUTHORITIES: Final = 2


@dataclass(frozen=True, slots=True)
class Material:
    """PEM: the serving certificate, its key, and the authorities to trust, newest first."""

    certificate: bytes
    key: bytes
    authorities: bytes

    @property
    def expires(self) -> datetime.datetime:
        """When the serving certificate ends. Raises ValueError when it cannot be read."""
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc


def make(
    hosts: Sequence[str],
    now: datetime.datetime,
    lifetime: datetime.timedelta,
    before: Material | None = None,
) -> Material:
    """A new authority and a certificate for ``hosts`` (names or addresses), beside the authorities of
    ``before`` that have not ended."""
    signer = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"sharing-affinity-webhook-ca {now:%Y-%m-%dT%H:%M:%SZ}")]
    )
    authority = (
        _builder(issuer, issuer, signer, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sharing-affinity-webhook")])
    serving = (
        _builder(subject, issuer, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_name, hosts))), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    kept = [found for found in _read_all(before) if found.not_valid_after_utc > now][: AUTHORITIES - 1]
    return Material(
        certificate=_pem([serving]),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        authorities=_pem([authority, *kept]),
    )


def due(
    material: Material | None,
    hosts: Sequence[str],
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> str:
    """Why a new certificate is needed; empty while the present one is good.

    The last third of its life is for renewing.
    """
    if material is None:
        return "there is none"
    try:
        certificate = x509.load_pem_x509_certificate(material.certificate)
        key = serialization.load_pem_private_key(material.key, None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        authorities = x509.load_pem_x509_certificates(material.authorities)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        return f"the stored one cannot be read: {error}"
    if key.public_key() != certificate.public_key():
        return "the stored key belongs to another certificate"
    if missing := [host for host in hosts if _name(host) not in names]:
        return f"the stored one is not for {missing[0]}"
    if not any(_signed(certificate, authority) for authority in authorities):
        return "the authority that signed the stored one is not among those stored"
    if certificate.not_valid_before_utc > now:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S}"
        return f"the stored one begins {begins} UTC: the clock was ahead that made it"
    if certificate.not_valid_after_utc - lifetime / 3 <= now:
        return f"the stored one ends {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"
    return ""


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # what a wrong signature raises depends on the kind of key
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read_all(material: Material | None) -> list[x509.Certificate]:
    if material is None or not material.authorities:
        return []
    try:
        return x509.load_pem_x509_certificates(material.authorities)
    except ValueError:
        return []


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)
