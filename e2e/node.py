"""A real node: its folders, the configuration and command lines of its containerd and kubelet, and of
kube-proxy.

A node has a mount namespace of its own in which everything is at its usual path. What the nodes of a
cluster share is one network namespace and the host's control groups, so addresses, health ports, pod
ranges and group names are set apart.
"""

import json
import socket
import uuid
from pathlib import Path

from e2e.cluster import NodePaths
from e2e.controlplane import POD_CIDR
from e2e.images import TEST
from e2e.pki import Pki
from e2e.state import NodeSpec

NAMES = ("node-a", "node-b")
# A node's mount namespace. Overlays of the parents make folders that the host need not have, and leave
# the rest of them visible. Mounts are shared below it, as on a machine, so that volumes reach pods that
# ask for propagation.
MACHINE = """
node=$1
mount -t tmpfs -o mode=0755 private /run
for path in var/lib var/log; do
  mkdir -p "$node/private/$path/upper" "$node/private/$path/work"
  layers="lowerdir=/$path,upperdir=$node/private/$path/upper,workdir=$node/private/$path/work"
  mount -t overlay -o "$layers" private "/$path"
done
mkdir -p /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /run/cdi /run/containerd/s
mount --bind "$node/kubelet" /var/lib/kubelet
mount --bind "$node/cdi" /run/cdi
mount --bind "$node/boot-id" /proc/sys/kernel/random/boot_id
mount --make-rshared /
exec sleep infinity
"""
SOCKET = "/run/containerd/containerd.sock"

CONTAINERD = """\
version = 3
root = "{node}/containerd/root"
state = "{node}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "/run/containerd/s"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = ["/run/cdi"]
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


def machine(name: str) -> str:
    """The component that holds a node's mount namespace."""
    return f"machine-{name}"


def paths(cluster: Path, node: NodeSpec) -> NodePaths:
    base = folder(cluster, node.name)
    root = base / "kubelet"
    return NodePaths(node.name, node.address, root, root / "plugins", root / "plugins_registry", base / "cdi")


def write_files(cluster: Path, node: NodeSpec, pki: Pki, cni: Path) -> None:
    """Everything that containerd and kubelet read. Their folders are made as well."""
    base = folder(cluster, node.name)
    for name in ("cdi", "cni", "kubelet/plugins", "volumeplugins", "private"):
        (base / name).mkdir(parents=True, exist_ok=True)
    new_boot_id(cluster, node.name)
    # A name server that never answers: pods need no DNS, and must not depend on the host's.
    (base / "resolv.conf").write_text("nameserver 192.0.2.53\n")
    (base / "containerd.toml").write_text(CONTAINERD.format(node=base, socket=SOCKET, pause=TEST, cni=cni))
    (base / "cni" / "10-pods.conflist").write_text(json.dumps(_network(base, node), indent=1))
    (base / "kubelet.json").write_text(json.dumps(_kubelet_configuration(base, node, pki), indent=1))


def new_boot_id(cluster: Path, name: str) -> None:
    """Written in place: the file may be bind-mounted over the kernel's."""
    (folder(cluster, name) / "boot-id").write_text(f"{uuid.uuid4()}\n")


def daemons(name: str) -> tuple[str, str]:
    """The components that run in the node's mount namespace, in the order in which they start."""
    return f"containerd-{name}", f"kubelet-{name}"


def hold(cluster: Path, name: str) -> list[str]:
    """The command that makes the node's mount namespace and keeps it."""
    base = str(folder(cluster, name))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-euc", MACHINE, "machine", base]


def ready(pid: int) -> bool:
    """Whether the holder with this pid has made all its mounts: it's a shell until then."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"


def answers(path: Path) -> bool:
    """Whether somebody listens on a Unix socket; a file alone may be left over. kubelet ends at once
    without containerd.
    """
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def containerd(cluster: Path, name: str, binaries: Path) -> list[str]:
    return [str(binaries / "containerd"), f"--config={folder(cluster, name) / 'containerd.toml'}"]


def kubelet(cluster: Path, node: NodeSpec, pki: Pki, binaries: Path, feature_gates: str) -> list[str]:
    base = folder(cluster, node.name)
    argv = [
        str(binaries / "kubelet"),
        f"--config={base / 'kubelet.json'}",
        f"--kubeconfig={pki.kubeconfig(node.name)}",
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
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
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
