"""Command lines of etcd, API server, controller-manager and scheduler.

etcd skips fsync (a test cluster outlives no power cut) but not client certificates: on loopback every user
of the host could otherwise read and write the cluster's data.
"""

from dataclasses import dataclass
from pathlib import Path

from e2e.pki import Pki

SERVICE_CIDR = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"
POD_CIDR = "10.244.0.0/16"

# All controllers take five seconds to start; these are what claims, tokens, namespaces and device taints
# need.
FEW_CONTROLLERS = (
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "resourceclaim-controller",
    "device-taint-eviction-controller",
    "namespace-controller",
    "garbage-collector-controller",
)


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of the control plane's servers."""

    api: int
    etcd: int
    etcd_peer: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """All that the command lines depend on.

    `address` is the API server's: loopback for a control plane alone, the veth's inside for real nodes.
    `feature_gates` is "A=true,B=false" for every component; `runtime_config` is the API server's flag;
    `controllers` None means all.
    """

    binaries: Path
    folder: Path
    pki: Pki
    address: str
    ports: Ports
    real_nodes: bool
    feature_gates: str = ""
    runtime_config: str = ""
    controllers: tuple[str, ...] | None = None
    scheduler_qps: int = 1000

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.ports.api}"


def etcd(plane: ControlPlane) -> list[str]:
    pki = plane.pki
    client = f"https://127.0.0.1:{plane.ports.etcd}"
    peer = f"http://127.0.0.1:{plane.ports.etcd_peer}"  # a single member: no peer ever calls
    return [
        str(plane.binaries / "etcd"),
        f"--data-dir={plane.folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={pki.ca}",
        f"--cert-file={pki.certificate('etcd')}",
        f"--key-file={pki.key('etcd')}",
    ]


def apiserver(plane: ControlPlane) -> list[str]:
    pki = plane.pki
    argv = [
        str(plane.binaries / "kube-apiserver"),
        f"--etcd-servers=https://127.0.0.1:{plane.ports.etcd}",
        f"--etcd-cafile={pki.ca}",
        f"--etcd-certfile={pki.certificate('apiserver-etcd-client')}",
        f"--etcd-keyfile={pki.key('apiserver-etcd-client')}",
        f"--secure-port={plane.ports.api}",
        f"--tls-cert-file={pki.certificate('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--client-ca-file={pki.ca}",
        f"--kubelet-certificate-authority={pki.ca}",
        f"--kubelet-client-certificate={pki.certificate('apiserver-kubelet-client')}",
        f"--kubelet-client-key={pki.key('apiserver-kubelet-client')}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--requestheader-client-ca-file={pki.certificate('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki.certificate('front-proxy-client')}",
        f"--proxy-client-key-file={pki.key('front-proxy-client')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki.folder / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki.key('service-account')}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        *_gates(plane),
    ]
    if plane.real_nodes:
        argv += ["--bind-address=0.0.0.0", f"--advertise-address={plane.address}"]
    else:
        # Loopback may be no endpoint of the `kubernetes` Service, and hand-made nodes get no not-ready taint.
        argv += [f"--bind-address={plane.address}", f"--advertise-address={plane.address}"]
        argv += ["--endpoint-reconciler-type=none", "--disable-admission-plugins=TaintNodesByCondition"]
    if plane.runtime_config:
        argv.append(f"--runtime-config={plane.runtime_config}")
    return argv


def controller_manager(plane: ControlPlane) -> list[str]:
    return [
        str(plane.binaries / "kube-controller-manager"),
        *_client(plane, "controller-manager", plane.ports.controller_manager),
        f"--controllers={','.join(plane.controllers or ('*',))}",
        "--use-service-account-credentials=true",
        # The default of 20 requests per second is what everybody who deletes pods with claims waits for.
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        f"--service-account-private-key-file={plane.pki.key('service-account')}",
        f"--root-ca-file={plane.pki.ca}",
    ]


def scheduler(plane: ControlPlane) -> list[str]:
    return [
        str(plane.binaries / "kube-scheduler"),
        *_client(plane, "scheduler", plane.ports.scheduler),
        # Raised: the default, 50 and a burst of 100, would be what benchmarks measure.
        f"--kube-api-qps={plane.scheduler_qps}",
        f"--kube-api-burst={max(100, plane.scheduler_qps)}",
        "-v=2",
    ]


def _client(plane: ControlPlane, name: str, port: int) -> list[str]:
    kubeconfig = plane.pki.kubeconfig(name)
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={plane.pki.certificate(name)}",
        f"--tls-private-key-file={plane.pki.key(name)}",
        "--leader-elect=false",
        *_gates(plane),
    ]


def _gates(plane: ControlPlane) -> list[str]:
    return [f"--feature-gates={plane.feature_gates}"] if plane.feature_gates else []
