"""`python -m e2e build|up|down|status|images|load`: clusters for tests and demos."""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from e2e import backends, build, interrupts, local, node, paths, processes, versions
from e2e.errors import ClusterError
from e2e.images import archives
from e2e.options import Options


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run it; returns the exit code (0 good, 1 something failed, 130
    interrupted).
    """
    args = _parser().parse_args(argv)
    interrupts.end_in_order()
    try:
        code: int = args.run(args)
    except ClusterError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    building = commands.add_parser("build", help="build the cluster's binaries into the cache")
    building.add_argument(
        "--kubernetes", choices=[*versions.KUBERNETES, "all"], default=versions.DEFAULT_MINOR
    )
    building.add_argument(
        "--tools", action="store_true", help="helm and Prometheus as well: chart, alerts, dashboard"
    )
    building.set_defaults(run=_build)
    starting = commands.add_parser("up", help="start a cluster")
    _common(starting)
    starting.add_argument("--kubernetes", choices=list(versions.KUBERNETES), default=versions.DEFAULT_MINOR)
    starting.add_argument(
        "--nodes",
        type=int,
        choices=[0, 1, 2],
        help="real nodes, 0 for a control plane alone (default: 2, or hand-made ones where none can run)",
    )
    starting.add_argument("--feature-gates", default="", metavar="A=true,B=false")
    starting.add_argument("--runtime-config", default="", help="the API server's flag of that name")
    starting.set_defaults(run=_up)
    stopping = commands.add_parser("down", help="take a cluster down")
    _common(stopping)
    stopping.set_defaults(run=_down)
    status = commands.add_parser("status", help="components and memory")
    _common(status)
    status.set_defaults(run=_status)
    making = commands.add_parser("images", help="make the images as OCI archives, without Docker")
    making.add_argument("image", nargs="*", choices=["test", "operator", "driver", []], help="all by default")
    making.add_argument("--output", type=Path, default=Path("dist/images"), metavar="FOLDER")
    making.set_defaults(run=_images)
    loading = commands.add_parser("load", help="import OCI archives on every node")
    _common(loading)
    loading.add_argument("archive", type=Path, nargs="+")
    loading.set_defaults(run=_load)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="clusters with different names run side by side")
    parser.add_argument("--backend", choices=backends.NAMES, default="local")


def _build(args: argparse.Namespace) -> int:
    minors = list(versions.KUBERNETES) if args.kubernetes == "all" else [args.kubernetes]
    for folder in build.ensure(*map(versions.kubernetes, minors)):
        print(folder)
    if args.tools:
        for folder in build.ensure(*versions.TOOLS):
            print(folder)
    return 0


def _up(args: argparse.Namespace) -> int:
    start = time.monotonic()
    options = Options(
        name=args.name,
        kubernetes=args.kubernetes,
        nodes=2 if args.nodes is None else args.nodes,
        feature_gates=args.feature_gates,
        runtime_config=args.runtime_config,
    )
    try:
        cluster = backends.up(args.backend, options)
    except local.NodesImpossibleError as error:
        if args.nodes is not None:
            raise
        print("no real nodes on this host; a control plane with hand-made nodes instead. Missing:")
        for reason in error.missing:
            print(f"  - {reason}")
        cluster = local.up(dataclasses.replace(options, nodes=0))
        for name in node.NAMES:
            cluster.add_node(name)
    seconds = time.monotonic() - start
    print(f"cluster {cluster.name} (Kubernetes {cluster.kubernetes}) is up after {seconds:.1f} s")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _down(args: argparse.Namespace) -> int:
    backends.down(args.backend, args.name)
    print(f"cluster {args.name} is down, nothing of it is left")
    return 0


def _status(args: argparse.Namespace) -> int:
    cluster = backends.attach(args.backend, args.name)
    total = 0
    for process in sorted(processes.find(paths.cluster_dir(args.name)), key=lambda p: (p.component, p.pid)):
        memory = process.memory() // 1024
        total += memory
        print(f"{process.component:24} {process.program:24} pid {process.pid:<8} {memory:5} MiB")
    print(f"{'':62}{total:5} MiB")
    print(f"Kubernetes {cluster.kubernetes} at {cluster.url}, kubeconfig {cluster.kubeconfig}")
    return 0


def _images(args: argparse.Namespace) -> int:
    for path in archives.write(args.output, args.image):
        print(f"{path} ({path.stat().st_size >> 20} MiB)")
    return 0


def _load(args: argparse.Namespace) -> int:
    cluster = backends.attach(args.backend, args.name)
    for archive in args.archive:
        cluster.load(archive.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main())
