"""The certificates of a cluster, made in memory in milliseconds, with the names Kubernetes' bootstrap RBAC
expects.

One authority signs everything but the front proxy's client certificate: without an authority of its own for
that, controller-manager and scheduler complain for ever about a missing `requestheader-client-ca-file`.
Keys are P-256. The folder is made anew for each `up`, because addresses are part of the certificates.
"""

import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)
CONTEXT = "dra-e2e"


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that can sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Pki:
    """The folder with all keys, certificates and kubeconfigs of one cluster."""

    folder: Path
    authority: Authority

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"


def create(folder: Path, url: str, service_ip: str, addresses: Sequence[str]) -> Pki:
    """Make the control plane's part: authorities, API server, its clients, admin. Returns what signs the
    nodes' part.

    `url` is what kubeconfigs point to; `addresses` are the API server's addresses for its serving
    certificate.
    """
    folder.mkdir(mode=0o700)
    authority = _authority("dra-e2e-ca")
    front = _authority("dra-e2e-front-proxy-ca")
    pki = Pki(folder, authority)
    _write(pki.ca, _pem(authority.certificate))
    _write(pki.certificate("front-proxy-ca"), _pem(front.certificate))
    service_account_key = ec.generate_private_key(ec.SECP256R1())
    _write(pki.key("service-account"), _private(service_account_key))
    _write(folder / "service-account.pub", _public(service_account_key))
    local = ["localhost", "127.0.0.1", *addresses]
    names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    issue(pki, "apiserver", "kube-apiserver", hosts=[*local, *names, service_ip])
    # Without a group: its rights on kubelets come from a ClusterRoleBinding to system:kubelet-api-admin.
    issue(pki, "apiserver-kubelet-client", "kube-apiserver-kubelet-client")
    issue(pki, "front-proxy-client", "front-proxy-client", authority=front)
    issue(pki, "etcd", "etcd", hosts=local)
    issue(pki, "apiserver-etcd-client", "apiserver-etcd-client")
    issue(pki, "admin", "admin", group="system:masters", url=url)
    issue(pki, "controller-manager", "system:kube-controller-manager", hosts=local, url=url)
    issue(pki, "scheduler", "system:kube-scheduler", hosts=local, url=url)
    issue(pki, "proxy", "system:kube-proxy", url=url)
    return pki


def issue_node(pki: Pki, name: str, address: str, url: str) -> None:
    """A kubelet's certificate for both directions. It needs the node's own address, or logs and exec fail
    on TLS.
    """
    hosts = [name, address, "localhost", "127.0.0.1"]
    issue(pki, name, f"system:node:{name}", group="system:nodes", hosts=hosts, url=url)


def issue(
    pki: Pki,
    name: str,
    user: str,
    *,
    group: str | None = None,
    hosts: Sequence[str] = (),
    authority: Authority | None = None,
    url: str | None = None,
) -> None:
    """Write NAME.key and NAME.crt (client and server certificate in one) and, with `url`, NAME.kubeconfig."""
    signer = authority or pki.authority
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group is not None:
        subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _builder(x509.Name(subject), signer.certificate.subject, key).add_extension(
        usage, critical=False
    )
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = builder.add_extension(authority_key, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    _write(pki.key(name), _private(key))
    _write(pki.certificate(name), _pem(builder.sign(signer.key, hashes.SHA256())))
    if url is not None:
        user_files = {"client-certificate": str(pki.certificate(name)), "client-key": str(pki.key(name))}
        write_kubeconfig(pki.kubeconfig(name), url, {"certificate-authority": str(pki.ca)}, user_files)


def write_kubeconfig(
    path: Path, url: str, authority: Mapping[str, str], user: Mapping[str, str], namespace: str | None = None
) -> None:
    """A kubeconfig of one context; `user` is its user entry (certificate files or a token).

    `authority` is the part of the cluster entry that says whom to trust.
    """
    context = {"cluster": CONTEXT, "user": CONTEXT} | ({"namespace": namespace} if namespace else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": url, **authority}}],
        "users": [{"name": CONTEXT, "user": dict(user)}],
        "contexts": [{"name": CONTEXT, "context": context}],
        "current-context": CONTEXT,
    }
    _write(path, yaml.safe_dump(config).encode())


def _authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    # Python 3.13 and later verify strictly: key usage and key identifiers must be there.
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
