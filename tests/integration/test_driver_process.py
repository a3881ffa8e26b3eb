"""The command as people run it: flags, exit codes, signals, metrics, a slow device through its sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from harness.kubelet import KubeletClient
from harness.nic import allocate, create_claim, nic_claim, pool_objects

from affinity_driver import cli
from e2e import local
from e2e.cluster import Cluster, wait_for
from e2e.product import DRIVER_NAMESPACE, Product

pytestmark = pytest.mark.integration
FPGA = "fpga.sharingaffinity.dev"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`run` sets up logging for its process, which is ours when it is called here."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drv-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def node(control_plane: Cluster) -> Iterator[str]:
    Product(control_plane).install("driver-nic", "driver-fpga")
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.add_node(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


@contextmanager
def process(
    cluster: Cluster, root: Path, node: str, profile: str, *flags: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process; killed at the end if it still runs. Its log is ``root/log``."""
    kubeconfig = cluster.service_account_kubeconfig(DRIVER_NAMESPACE, f"affinity-driver-{profile}", node)
    argv = [
        *(
            sys.executable,
            "-m",
            "affinity_driver",
            "run",
            f"--profile={profile}",
            f"--kubeconfig={kubeconfig}",
        ),
        *(f"--kubelet-root-dir={root}", f"--cdi-dir={root / 'cdi'}", *flags),
    ]
    with (root / "log").open("ab") as log:
        made = subprocess.Popen(
            argv, env={**os.environ, "NODE_NAME": node, **variables}, stdout=log, stderr=log
        )
    try:
        wait_for("registration socket", lambda: list((root / "plugins_registry").glob("*.sock")))
        yield made
    finally:
        made.kill()
        made.wait()


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_tell_of_registration_and_of_lost_sockets(
    control_plane: Cluster, root: Path, node: str
) -> None:
    (port,) = local.free_ports(1)
    with process(control_plane, root, node, "nic", "--no-publish", f"--metrics-port={port}"):
        first = wait_for("its port", lambda: fetch(port, "readyz"))
        assert first == (503, "no kubelet has accepted it yet")
        kubelet = KubeletClient(root / "plugins_registry")
        kubelet.register(accept=False)
        kubelet.close()
        assert fetch(port, "readyz") == (503, "the kubelet refuses it: refused")
        kubelet.register()
        kubelet.close()
        assert fetch(port, "readyz") == (200, "ok")
        assert fetch(port, "healthz") == (200, "ok")
        (socket,) = (root / "plugins" / "nic.sharingaffinity.dev").glob("dra-*.sock")
        socket.unlink()
        code, text = fetch(port, "healthz")
        assert (code, text.startswith("no answer")) == (503, True)
        assert fetch(port, "elsewhere")[0] == 404


def test_sigterm_leaves_nothing_but_state(control_plane: Cluster, root: Path, node: str) -> None:
    (port,) = local.free_ports(1)
    with process(control_plane, root, node, "nic", f"--metrics-port={port}", "--log-format=json") as made:
        assert cli.main(["probe", f"--kubelet-root-dir={root}"]) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        for path, code in (("healthz", 200), ("readyz", 503)):
            assert fetch(port, path)[0] == code
        labels = 'driver="nic.sharingaffinity.dev",operation="prepare",outcome="ok"'
        assert f"affinity_driver_claims_total{{{labels}}} 0.0" in text
        # The alert about restarts asks for it.
        assert "process_start_time_seconds 1" in text
        made.send_signal(signal.SIGTERM)
        assert made.wait(60) == 0
    assert cli.main(["probe", f"--kubelet-root-dir={root}"]) == 1
    assert sorted(path.name for path in (root / "plugins" / "nic.sharingaffinity.dev").iterdir()) == [
        "checkpoint.json",
        "serialize.lock",
    ]
    assert list((root / "plugins_registry").iterdir()) == []
    assert cli.main(["status", f"--kubelet-root-dir={root}"]) == 0


def test_killed_process_is_cleaned_up_after_by_the_next(
    control_plane: Cluster, root: Path, node: str
) -> None:
    for _ in range(3):
        with process(control_plane, root, node, "nic", "--no-publish") as made:
            wait_for("one registration", lambda: len(list((root / "plugins_registry").iterdir())) == 1)
            made.send_signal(signal.SIGKILL)
            made.wait()
    names = [path.name for path in (root / "plugins" / "nic.sharingaffinity.dev").iterdir()]
    assert len([name for name in names if name.endswith(".sock")]) == 1


def test_two_drivers_live_side_by_side_on_a_node(control_plane: Cluster, root: Path, node: str) -> None:
    with process(control_plane, root, node, "nic"), process(control_plane, root, node, "fpga"):
        wait_for("two registrations", lambda: len(list((root / "plugins_registry").iterdir())) == 2)
        for profile in ("nic", "fpga"):
            assert cli.main(["probe", f"--profile={profile}", f"--kubelet-root-dir={root}"]) == 0


class TestUpgrade:
    """Two instances of one driver beside each other; the old one leaves."""

    def test_one_publishes_at_a_time_and_nothing_flips_back(
        self, control_plane: Cluster, root: Path, node: str
    ) -> None:
        generations: list[int] = []

        def published(devices: int) -> bool:
            slices, metadata = pool_objects(control_plane, node)
            assert slices or not generations, "the slices are gone"
            if not slices:  # metadata come first (H4)
                return False
            members = [*slices, *metadata]
            generations.extend(item["spec"]["pool"]["generation"] for item in slices)
            same = len({item["spec"]["pool"]["generation"] for item in members}) == 1
            return bool(metadata) and same and len(slices[0]["spec"]["devices"]) == devices

        flags = ("--publish-unregistered", "--fence-settle=0")
        with process(control_plane, root, node, "nic", *flags, POD_UID="old") as old:
            wait_for("two devices", lambda: published(2))
            first = generations[-1]
            with process(control_plane, root, node, "nic", "--devices=3", *flags, POD_UID="new"):
                log = root / "log"
                wait_for("it waits", lambda: b"another instance publishes" in log.read_bytes())
                end = time.monotonic() + 2
                while time.monotonic() < end:
                    assert published(2)
                    time.sleep(0.05)
                assert set(generations) == {first}
                old.send_signal(signal.SIGTERM)
                wait_for("three devices", lambda: published(3))
                assert old.wait(60) == 0
        assert generations == sorted(generations)
        assert generations[-1] == first + 1

    def test_the_old_one_serves_until_the_kubelet_has_let_go(
        self, control_plane: Cluster, namespace: str, root: Path, node: str
    ) -> None:
        registry = root / "plugins_registry"
        with process(control_plane, root, node, "nic", "--no-publish", POD_UID="old") as old:
            kubelet = KubeletClient(registry)
            kubelet.register()
            with process(control_plane, root, node, "nic", "--no-publish", POD_UID="new") as new:
                wait_for("two registrations", lambda: len(list(registry.iterdir())) == 2)
                for uid in ("old", "new"):
                    run = self.probe(root, uid, "--registered")
                    assert run.returncode == (0 if uid == "old" else 1), run.stderr
                    assert self.probe(root, uid).returncode == 0
                old.send_signal(signal.SIGTERM)
                wait_for("it has left the registry", lambda: len(list(registry.iterdir())) == 1)
                late = nic_claim(control_plane, namespace, node, "a")
                assert kubelet.prepare(late)[late["metadata"]["uid"]].error == ""
                kubelet.close()
                assert old.wait(60) == 0
                again = KubeletClient(registry)
                again.register()
                wait_for("noted", lambda: self.probe(root, "new", "--registered").returncode == 0)
                assert again.prepare(late)[late["metadata"]["uid"]].error == ""
                assert again.unprepare(late) == {late["metadata"]["uid"]: ""}
                again.close()
                started = time.monotonic()
                new.send_signal(signal.SIGTERM)
                assert new.wait(60) == 0
                assert time.monotonic() - started < 8, "nobody takes over, so nothing is waited for"
        left = {path.name for path in (root / "plugins" / "nic.sharingaffinity.dev").iterdir()}
        assert left == {"checkpoint.json", "hardware", "serialize.lock"}

    def probe(self, root: Path, uid: str, *flags: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "affinity_driver", "probe", f"--kubelet-root-dir={root}", *flags]
        return subprocess.run(
            argv, env={**os.environ, "POD_UID": uid}, capture_output=True, text=True, timeout=30, check=False
        )


class TestNames:
    def test_long_driver_names_and_deep_folders(self, control_plane: Cluster, root: Path, node: str) -> None:
        """A name of 63 characters, a socket of 107 bytes: the kubelet finds the shortened ones."""
        name = "n" * 43 + ".sharingaffinity.dev"
        deep = root / ("k" * (107 - len(f"{root}//plugins/{name}/dra-123456.sock")))
        assert len(str(deep)) > len("/var/lib/kubelet")
        flags = (f"--driver-name={name}", "--no-publish", f"--kubelet-root-dir={deep}")
        kubeconfig = control_plane.service_account_kubeconfig(DRIVER_NAMESPACE, "affinity-driver-nic", node)
        argv = [sys.executable, "-m", "affinity_driver", "run", f"--kubeconfig={kubeconfig}", *flags]
        argv += [f"--cdi-dir={root / 'cdi'}"]
        environment = {**os.environ, "NODE_NAME": node, "POD_UID": str(uuid.uuid4())}
        with (root / "log").open("ab") as log:
            made = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        try:
            kubelet = KubeletClient(deep / "plugins_registry")
            wait_for("its socket", kubelet.sockets)
            info = kubelet.register()
            assert info.name == name
            assert len(info.endpoint.encode()) == 107
            assert kubelet.prepare() == {}
            kubelet.close()
        finally:
            made.kill()
            made.wait()


class TestFpga:
    """Programming takes longer than the caller waits: it answers busy, and the retry gets the result."""

    def claim(
        self, cluster: Cluster, namespace: str, node: str, device: str, bitstream: str
    ) -> dict[str, Any]:
        parameters = {"apiVersion": f"{FPGA}/v1", "kind": "FPGAConfig", "bitstream": bitstream}
        config = {"opaque": {"driver": FPGA, "parameters": parameters}}
        name = f"c-{uuid.uuid4().hex[:6]}"
        return allocate(cluster, create_claim(cluster, namespace, name, [config]), node, device, driver=FPGA)

    def test_slow_programming(self, control_plane: Cluster, namespace: str, root: Path, node: str) -> None:
        with process(control_plane, root, node, "fpga", "--program-seconds=10", "--no-publish"):
            kubelet = KubeletClient(root / "plugins_registry")
            kubelet.register()
            slow = self.claim(control_plane, namespace, node, "fpga0", "x")
            same = self.claim(control_plane, namespace, node, "fpga0", "x")
            other = self.claim(control_plane, namespace, node, "fpga0", "y")
            uids = [body["metadata"]["uid"] for body in (slow, same, other)]
            assert "still in progress" in kubelet.prepare(slow, timeout=4)[uids[0]].error
            assert 'this claim needs bitstream="y"' in kubelet.prepare(other)[uids[2]].error
            started = time.monotonic()
            assert kubelet.prepare(same)[uids[1]].error == ""
            assert kubelet.prepare(slow)[uids[0]].error == ""
            assert time.monotonic() - started < 16, "the bitstream was loaded twice"
            kubelet.unprepare(slow, same)
            started = time.monotonic()
            again = self.claim(control_plane, namespace, node, "fpga0", "x")
            assert kubelet.prepare(again)[again["metadata"]["uid"]].error == ""
            assert time.monotonic() - started < 8, "a loaded bitstream was loaded again"
            kubelet.close()

    def test_unprepare_waits_for_the_prepare_it_undoes(
        self, control_plane: Cluster, namespace: str, root: Path, node: str
    ) -> None:
        with process(control_plane, root, node, "fpga", "--program-seconds=8", "--no-publish"):
            kubelet = KubeletClient(root / "plugins_registry")
            kubelet.register()
            claim = self.claim(control_plane, namespace, node, "fpga1", "x")
            uid = claim["metadata"]["uid"]
            assert "still in progress" in kubelet.prepare(claim, timeout=4)[uid].error
            assert kubelet.unprepare(claim) == {uid: ""}
            assert list((root / "cdi").iterdir()) == []
            kubelet.close()


class TestBadInput:
    def test_no_node_name(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.delenv("NODE_NAME", raising=False)
        assert cli.main(["run"]) == 2
        assert "--node-name" in capsys.readouterr().err

    def test_outside_a_cluster(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: Path
    ) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        assert cli.main(["run", "--node-name=n", f"--kubelet-root-dir={root}"]) == 3
        assert "not inside a cluster" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("{", "is not YAML"),
            ("{}", "lacks 'contexts'"),
            (
                "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],"
                " clusters: [{name: c, cluster: {server: 'https://x'}}],"
                " users: [{name: u, user: {exec: {}}}]}",
                "exec and auth-provider",
            ),
        ],
    )
    def test_bad_kubeconfig(
        self, capsys: pytest.CaptureFixture[str], root: Path, text: str, expected: str
    ) -> None:
        path = root / "kubeconfig"
        path.write_text(text)
        assert cli.main(["run", "--node-name=n", f"--kubeconfig={path}", f"--kubelet-root-dir={root}"]) == 3
        assert expected in capsys.readouterr().err

    def test_missing_kubeconfig(self, capsys: pytest.CaptureFixture[str], root: Path) -> None:
        assert cli.main(["run", "--node-name=n", f"--kubeconfig={root / 'absent'}"]) == 3
        assert "No such file" in capsys.readouterr().err

    def test_kubelet_root_too_deep_for_sockets(
        self, control_plane: Cluster, capsys: pytest.CaptureFixture[str], root: Path
    ) -> None:
        deep = root / ("x" * 90)
        arguments = [
            "--node-name=n",
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--kubelet-root-dir={deep}",
        ]
        assert cli.main(["run", *arguments]) == 2
        assert "too long for a socket" in capsys.readouterr().err

    def test_status_of_a_damaged_checkpoint(self, capsys: pytest.CaptureFixture[str], root: Path) -> None:
        folder = root / "plugins" / "nic.sharingaffinity.dev"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_bytes(b"\0")
        assert cli.main(["status", f"--kubelet-root-dir={root}"]) == 3
        assert "not readable" in capsys.readouterr().err
