"""A real node: its folders, the configuration and command lines of its containerd and kubelet, and of
kube-proxy.

Two nodes share one network namespace, so everything that could collide is set apart: addresses, health
ports, sockets, runc's state, cgroup roots, CNI and CDI folders. Sockets of containerd and its shims
live in the cluster's private `/run`, where paths are short: a shim's socket is its folder plus 65
characters, and 107 bytes is all there is.
"""

import json
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import NodePaths
from e2e.controlplane import POD_CIDR
from e2e.images import TEST
from e2e.pki import Pki
from e2e.state import NodeSpec

NAMES = ("node-a", "node-b")
# kubelet gets a mount namespace of its own, below the cluster's: the device-plugin folder, whose path
# is compiled in, is private to the node, and the boot id it reads can change. Its root is a shared
# mount, so that volumes mounted in there reach containerd.
KUBELET_SCRIPT = """
node=$1; shift
mount --make-private /
mount --bind "$node/boot-id" /proc/sys/kernel/random/boot_id
mount --bind "$node/device-plugins" /var/lib/kubelet/device-plugins
exec "$@"
"""

CONTAINERD = """\
version = 3
root = "{node}/containerd/root"
state = "{node}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{run}/containerd.sock"
[ttrpc]
  address = "{run}/containerd.sock.ttrpc"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "{run}/s"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{node}/cdi"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{node}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{node}/runc"
"""


def spec(index: int, address: str, cluster: str) -> NodeSpec:
    """The node number `index` (from 0) of a cluster."""
    name = NAMES[index]
    return NodeSpec(name, address, f"10.244.{index + 1}.0/24", 10240 + index, f"dra-e2e-{cluster}-{name}")


def folder(cluster: Path, name: str) -> Path:
    return cluster / name


def socket(name: str) -> str:
    """containerd's socket, a path in the cluster's mount namespace."""
    return f"{_run(name)}/containerd.sock"


def paths(cluster: Path, node: NodeSpec) -> NodePaths:
    base = folder(cluster, node.name)
    root = base / "kubelet"
    return NodePaths(node.name, node.address, root, root / "plugins", root / "plugins_registry", base / "cdi")


def write_files(cluster: Path, node: NodeSpec, pki: Pki, cni: Path) -> None:
    """Everything that containerd and kubelet read. Their folders are made as well."""
    base = folder(cluster, node.name)
    for name in ("cdi", "cni", "podlogs", "kubelet/plugins", "volumeplugins", "device-plugins"):
        (base / name).mkdir(parents=True, exist_ok=True)
    new_boot_id(cluster, node.name)
    # A name server that never answers: pods need no DNS, and must not depend on the host's.
    (base / "resolv.conf").write_text("nameserver 192.0.2.53\n")
    (base / "containerd.toml").write_text(
        CONTAINERD.format(node=base, run=_run(node.name), pause=TEST, cni=cni)
    )
    (base / "cni" / "10-pods.conflist").write_text(json.dumps(_network(base, node), indent=1))
    (base / "kubelet.json").write_text(json.dumps(_kubelet_configuration(base, node, pki), indent=1))


def new_boot_id(cluster: Path, name: str) -> None:
    """Written in place: the file may be bind-mounted over the kernel's."""
    (folder(cluster, name) / "boot-id").write_text(f"{uuid.uuid4()}\n")


def mounts(cluster: Path, name: str) -> str:
    """Shell lines, for the cluster's mount namespace, that make the node's folders ready for its daemons."""
    root = folder(cluster, name) / "kubelet"
    return f"mkdir -p {_run(name)}/s\nmount --bind {root} {root}\nmount --make-shared {root}\n"


def unmounts(cluster: Path, name: str, mounted: Sequence[str], volatile: Sequence[Path]) -> str:
    """Shell lines that lose what a power cut loses: what is mounted for the node, and its `volatile` folders.

    `mounted` are the mount points of the cluster's mount namespace.
    """
    below = (f"{folder(cluster, name)}/", f"{_run(name)}/")
    lines = [f"umount -l {shlex.quote(path)}" for path in reversed(mounted) if path.startswith(below)]
    return "\n".join([*lines, f"rm -rf {shlex.join(map(str, volatile))} {_run(name)}"])


def containerd(cluster: Path, name: str, binaries: Path) -> list[str]:
    return [str(binaries / "containerd"), f"--config={folder(cluster, name) / 'containerd.toml'}"]


def kubelet(cluster: Path, node: NodeSpec, pki: Pki, binaries: Path, feature_gates: str) -> list[str]:
    base = folder(cluster, node.name)
    argv = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-euc", KUBELET_SCRIPT, "sh", str(base)]
    argv += [
        str(binaries / "kubelet"),
        f"--config={base / 'kubelet.json'}",
        f"--kubeconfig={pki.kubeconfig(node.name)}",
        f"--root-dir={base / 'kubelet'}",
        f"--cert-dir={base / 'kubelet' / 'pki'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "-v=2",
    ]
    return [*argv, f"--feature-gates={feature_gates}"] if feature_gates else argv


def proxy(cluster: Path, node: NodeSpec, pki: Pki, binaries: Path) -> list[str]:
    """One kube-proxy serves both nodes, which share their network namespace. Writes its configuration."""
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("proxy"))},
        "clusterCIDR": POD_CIDR,
        # Zero everywhere: no sysctl is written.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "0s", "syncPeriod": "30s"},
    }
    path = cluster / "proxy.json"
    path.write_text(json.dumps(configuration, indent=1))
    return [str(binaries / "kube-proxy"), f"--config={path}"]


def _run(name: str) -> str:
    return f"/run/{name}"


def _network(base: Path, node: NodeSpec) -> dict[str, object]:
    ranges = [[{"subnet": node.pod_cidr}]]
    ipam = {"type": "host-local", "dataDir": str(base / "ipam"), "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "ptp", "ipMasq": False, "mtu": 1400, "ipam": {**ipam, "ranges": ranges}}
    return {"cniVersion": "1.0.0", "name": f"pods-{node.name}", "plugins": [plugin]}


def _kubelet_configuration(base: Path, node: NodeSpec, pki: Pki) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki.certificate(node.name)),
        "tlsPrivateKeyFile": str(pki.key(node.name)),
        "address": node.address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzPort": node.health_port,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{socket(node.name)}",
        "podLogsDir": str(base / "podlogs"),
        "volumePluginDir": str(base / "volumeplugins"),
        "resolvConf": str(base / "resolv.conf"),
        "makeIPTablesUtilChains": False,
        # The host's disk is not the cluster's own: never evict for it, never delete the images that
        # were loaded.
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 20,
        "registerNode": True,
        "shutdownGracePeriod": "0s",
    }
