"""The cluster tool's parts that need no cluster: cache keys, certificates, archives, processes, locks,
names.
"""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from e2e import (
    backends,
    build,
    controlplane,
    current,
    debian,
    hostprograms,
    images,
    kind,
    local,
    namespaces,
    node,
    oci,
    paths,
    pki,
    probe,
    processes,
    versions,
)
from e2e.cluster import wait_for
from e2e.controlplane import ControlPlane, Ports
from e2e.errors import ClusterError
from e2e.images import archives
from e2e.local import free_ports
from e2e.locking import exclusive
from e2e.options import Options

TOOL = Path(build.__file__).parent
ROOT = TOOL.parent


# -- places ---------------------------------------------------------------------------------------------


def test_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / "dra-sharing-affinity"


def test_cache_without_home_or_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert paths.cache_dir().is_dir()


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "-a", "a-", "a" * 21])
def test_bad_cluster_names_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster name"):
        paths.cluster_dir(name)


def test_a_long_clusters_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("E2E_CLUSTERS", str(tmp_path / ("long" * 12)))
    with pytest.raises(ClusterError, match="too long for Unix sockets"):
        paths.cluster_dir("x")


def test_sockets_of_the_longest_driver_name_fit() -> None:
    longest = Path("/" + "x" * 39)  # what cluster_dir allows
    registration = (
        node.folder(longest, "node-a") / "kubelet" / "plugins_registry" / "fpga.sharingaffinity.dev-reg.sock"
    )
    assert len(os.fsencode(registration)) <= 107


def test_a_folder_somebody_else_could_have_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ClusterError, match="another user"):
        paths.private_dir(tmp_path / "link")


# -- builds ---------------------------------------------------------------------------------------------


def test_every_pinned_module_says_what_it_builds() -> None:
    for component in (*versions.KUBERNETES.values(), versions.CONTAINERD, versions.CNI):
        text = (component.module / "go.mod").read_text()
        assert "\ntool (" in text
        assert (component.module / "go.sum").stat().st_size > 0


def test_pins_agree_with_the_versions_that_binaries_report() -> None:
    for component in versions.KUBERNETES.values():
        assert (
            f"k8s.io/kubernetes v{component.version} // indirect" in (component.module / "go.mod").read_text()
        )
    assert (
        f"containerd/v2 v{versions.CONTAINERD.version} // indirect"
        in (versions.CONTAINERD.module / "go.mod").read_text()
    )
    assert f"plugins v{versions.CNI.version} // indirect" in (versions.CNI.module / "go.mod").read_text()


def test_cache_key_changes_with_the_pins(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text("a")
    component = versions.Component("c", tmp_path, "1")
    before = build.output_dir(component)
    (tmp_path / "go.sum").write_text("b")
    assert build.output_dir(component) != before


def test_go_of_the_strictest_module_is_needed() -> None:
    assert versions.go_needed() >= (1, 26, 8)


def test_unknown_kubernetes_names_the_known() -> None:
    with pytest.raises(ClusterError, match=r"1\.37, 1\.36"):
        versions.kubernetes("1.35")


def test_nothing_is_tagged_latest() -> None:
    mention = ":" + "latest"
    for path in TOOL.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".go", ".toml", ".yaml", ".operator", ".driver"):
            assert mention not in path.read_text(), path


# -- certificates ---------------------------------------------------------------------------------------


def test_certificates_verify_in_both_directions(tmp_path: Path) -> None:
    made = pki.create(tmp_path / "pki", "https://127.0.0.1:1", controlplane.SERVICE_IP, ["127.0.0.1"])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made.ca))
    server.load_cert_chain(made.certificate("apiserver"), made.key("apiserver"))
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(made.ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_cert_chain(made.certificate("admin"), made.key("admin"))
    subject: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with server.wrap_socket(connection, server_side=True) as wrapped:
                subject.append((wrapped.getpeercert() or {}).get("subject"))
                wrapped.sendall(b"ok")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as raw,
            client.wrap_socket(raw, server_hostname="kubernetes.default.svc") as wrapped,
        ):
            assert wrapped.recv(2) == b"ok"
        thread.join(5)
    assert subject == [((("organizationName", "system:masters"),), (("commonName", "admin"),))]


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    made = pki.create(tmp_path / "pki", "https://127.0.0.1:1", controlplane.SERVICE_IP, ["127.0.0.1"])
    assert made.folder.stat().st_mode & 0o077 == 0
    assert made.key("admin").stat().st_mode & 0o077 == 0


# -- images ---------------------------------------------------------------------------------------------


def test_archives_repeat_byte_for_byte_and_are_complete(tmp_path: Path) -> None:
    made = oci.Layer()
    made.file("usr/bin/program", b"binary", 0o755)
    layer = made.content()
    config = oci.ImageConfig("amd64", ["/usr/bin/program"])
    archives = [tmp_path / name for name in ("a.tar", "b.tar")]
    for archive in archives:
        oci.write_archive(archive, ["localhost/x:1"], [layer], config)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        names = set(archive.getnames())
        index = json.loads(_content(archive, "index.json"))
        (entry,) = index["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"
        manifest = json.loads(_content(archive, _blob(entry["digest"])))
        assert {_blob(manifest["config"]["digest"]), _blob(manifest["layers"][0]["digest"])} < names


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


# -- processes and locks --------------------------------------------------------------------------------


def test_processes_are_found_by_mark_and_ended(tmp_path: Path) -> None:
    log = tmp_path / "log" / "x.log"
    stubborn = "\n".join(
        [
            "import signal, time",
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "print('on', flush=True)",
            "time.sleep(60)",
        ]
    )
    children = [
        processes.spawn(["sleep", "60"], processes.environment(tmp_path, "one"), tmp_path / "one.log"),
        processes.spawn([sys.executable, "-c", stubborn], processes.environment(tmp_path, "two"), log),
    ]
    while "on" not in log.read_text():
        time.sleep(0.01)
    assert {process.component for process in processes.find(tmp_path)} == {"one", "two"}
    assert processes.find(tmp_path / "other") == []
    assert processes.stop(tmp_path, processes.is_component("one"), signal.SIGTERM, 5) == []
    assert {process.component for process in processes.find(tmp_path)} == {"two"}
    assert processes.stop(tmp_path, lambda process: True, signal.SIGTERM, 0.2) == []
    assert [child.wait() for child in children] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = "\n".join(
        [
            "import pathlib",
            "from e2e.locking import exclusive",
            f"with exclusive(pathlib.Path({str(lock)!r}), ''):",
            "    print('held', flush=True)",
            "    input()",
        ]
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=TOOL.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    acquired = threading.Event()

    def take() -> None:
        with exclusive(lock, "waiting"):
            acquired.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert not acquired.wait(0.2)
    holder.kill()
    holder.communicate()
    assert acquired.wait(5)
    thread.join(5)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5


# -- command lines --------------------------------------------------------------------------------------


def plane(tmp_path: Path, *, real: bool, gates: str = "") -> ControlPlane:
    made = pki.create(tmp_path / "pki", "https://127.0.0.1:1", controlplane.SERVICE_IP, ["127.0.0.1"])
    return ControlPlane(Path("/b"), tmp_path, made, "127.0.0.1", Ports(1, 2, 3, 4, 5), real, gates)


def test_a_control_plane_alone_listens_on_loopback_only(tmp_path: Path) -> None:
    alone = plane(tmp_path, real=False)
    assert "--bind-address=127.0.0.1" in controlplane.apiserver(alone)
    assert not any("0.0.0.0" in argument for argument in controlplane.apiserver(alone))
    assert "--client-cert-auth" in controlplane.etcd(alone)


def test_gates_reach_every_component(tmp_path: Path) -> None:
    gated = plane(tmp_path, real=True, gates="A=true")
    for argv in (
        controlplane.apiserver(gated),
        controlplane.controller_manager(gated),
        controlplane.scheduler(gated),
    ):
        assert "--feature-gates=A=true" in argv
    spec = node.spec(0, "10.0.0.1", "x")
    assert "--feature-gates=A=true" in node.kubelet(tmp_path, spec, gated.pki, Path("/b"), "A=true")


def test_two_nodes_share_nothing(tmp_path: Path) -> None:
    first, second = (node.spec(index, f"10.0.0.{index}", "x") for index in range(2))
    for field in ("name", "address", "pod_cidr", "health_port", "cgroup"):
        assert getattr(first, field) != getattr(second, field)


def test_link_names_fit_and_differ() -> None:
    names = {namespaces.link_name(Path(f"/x/{name}")) for name in ("a", "b")}
    assert len(names) == 2
    assert all(len(name) <= 15 for name in names)


def test_unknown_backend_names_the_known() -> None:
    with pytest.raises(ClusterError, match="local, kind, current"):
        backends.attach("docker", "x")


@pytest.mark.parametrize("name", ["operator", "driver"])
def test_image_locks_are_parts_of_the_project_lock(name: str) -> None:
    """`make lock` writes all three; entries are compared with their hashes."""
    project = _lock_entries(ROOT / "requirements.lock")
    image = _lock_entries(TOOL / "images" / f"{name}.lock")
    assert image
    assert {entry: project.get(entry) for entry in image} == image


def _lock_entries(path: Path) -> dict[str, str]:
    entries = path.read_text().replace("\\\n", "").splitlines()
    return {entry.split()[0]: " ".join(entry.split()) for entry in entries}


@pytest.mark.parametrize("name", ["operator", "driver"])
def test_dockerfiles_and_archives_have_the_same_parts(name: str) -> None:
    application = {"operator": archives.OPERATOR, "driver": archives.DRIVER}[name]
    text = (TOOL / "images" / f"Dockerfile.{name}").read_text()
    for source, target in application.sources:
        assert f"COPY {source} /app/{target}\n" in text
    assert f"e2e/images/{application.lock}" in text
    assert f'ENTRYPOINT ["/usr/local/bin/{application.command}"]' in text
    assert (f"USER {application.user}" in text) == bool(application.user)


def test_manifests_use_the_images_that_are_made() -> None:
    found = set()
    for path in (ROOT / "manifests").rglob("*.yaml"):
        found |= set(re.findall(r"image: (\S+)", path.read_text()))
    assert {image for image in found if "sharing-affinity" in image} == {images.OPERATOR, images.DRIVER}


def test_merged_packages_follow_the_usr_merge() -> None:
    assert archives._place("lib/x86_64-linux-gnu/libc.so.6") == "usr/lib/x86_64-linux-gnu/libc.so.6"
    assert archives._place("lib") is None
    assert archives._place("usr/share/doc/x") is None
    assert archives._place("usr/bin/python3") == "usr/bin/python3"


# -- what a host lacks ----------------------------------------------------------------------------------


def test_missing_things_are_named_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [
        probe.Missing("control groups", "no controller pids"),
        probe.Missing("memory", "1 MiB available"),
    ]
    monkeypatch.setattr(probe, "missing", lambda: lacking)
    monkeypatch.setattr(build, "ensure", lambda *components: pytest.fail("built"))
    with pytest.raises(local.NodesImpossibleError, match=r"(?s)no controller pids.*1 MiB available"):
        local.up(Options(name="never", nodes=2))


@pytest.mark.parametrize(
    ("lacking", "kind_lacks", "choice"),
    [
        ([], None, ("local", 2)),
        ([probe.Missing("memory", "none")], None, ("kind", 2)),
        ([probe.Missing("memory", "none")], "no docker", ("local", 0)),
    ],
)
def test_choice_of_a_backend(
    monkeypatch: pytest.MonkeyPatch,
    lacking: list[probe.Missing],
    kind_lacks: str | None,
    choice: tuple[str, int],
) -> None:
    monkeypatch.setattr(probe, "missing", lambda: lacking)
    monkeypatch.setattr(kind, "missing", lambda: kind_lacks)
    backend, nodes, reasons = backends.choose()
    assert (backend, nodes) == choice
    assert bool(reasons) == bool(lacking)


def test_programs_that_cannot_be_had_come_with_the_line_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        hostprograms, "_on_system", lambda program: None if program == "runc" else f"/bin/{program}"
    )

    def refuse(packages: object) -> debian.Apt:
        raise ClusterError("no package lists: connection refused")

    monkeypatch.setattr(debian, "apt_for", refuse)
    with pytest.raises(ClusterError, match=r"(?s)connection refused.*apt-get install -y \S+ runc"):
        hostprograms.search_path()


def test_alternatives_of_a_dependency_are_not_all_taken() -> None:
    lines = ["p", "  Depends: liba", " |Depends: debconf", "  Depends: cdebconf", "  PreDepends: libb:any"]
    text = "\n".join([*lines, "  Depends: <virtual>"])
    assert debian._first_alternatives(text) == {"liba", "debconf", "libb"}


def test_only_open_nodes_of_a_users_cluster_are_used() -> None:
    def node(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": ready}]
        return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}

    nodes = [
        node("b"),
        node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}]),
        node("control-plane", taints=[{"key": "k", "effect": "NoSchedule"}]),
        node("cordoned", unschedulable=True),
        node("down", "False"),
    ]
    assert current.open_nodes(nodes) == ["a", "b"]


def test_waiting_takes_what_is_not_there_yet_for_not_yet() -> None:
    seen: list[dict[str, str]] = []

    def probe() -> str:
        seen.append({} if len(seen) < 2 else {"phase": "Running"})
        return seen[-1]["phase"]

    assert wait_for("the phase", probe, 5, 0) == "Running"
    with pytest.raises(ClusterError, match=r"timed out after 0 s: a pod \(IndexError"):
        wait_for("a pod", lambda: seen[99]["name"], 0)
