"""The command as people run it: flags, exit codes, signals, metrics, a slow device through its sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from harness.kubelet import KubeletClient
from harness.nic import allocate, create_claim

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
    cluster: Cluster, root: Path, node: str, profile: str, *flags: str
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
        made = subprocess.Popen(argv, env={**os.environ, "NODE_NAME": node}, stdout=log, stderr=log)
    try:
        wait_for("registration socket", lambda: list((root / "plugins_registry").glob("*.sock")), 30)
        yield made
    finally:
        made.kill()
        made.wait()


def test_sigterm_leaves_nothing_but_state(control_plane: Cluster, root: Path, node: str) -> None:
    (port,) = local.free_ports(1)
    with process(control_plane, root, node, "nic", f"--metrics-port={port}", "--log-format=json") as made:
        assert cli.main(["probe", f"--kubelet-root-dir={root}"]) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        labels = 'driver="nic.sharingaffinity.dev",operation="prepare",outcome="ok"'
        assert f"affinity_driver_claims_total{{{labels}}} 0.0" in text
        made.send_signal(signal.SIGTERM)
        assert made.wait(20) == 0
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
            wait_for("one registration", lambda: len(list((root / "plugins_registry").iterdir())) == 1, 20)
            made.send_signal(signal.SIGKILL)
            made.wait()
    names = [path.name for path in (root / "plugins" / "nic.sharingaffinity.dev").iterdir()]
    assert len([name for name in names if name.endswith(".sock")]) == 1


def test_two_drivers_live_side_by_side_on_a_node(control_plane: Cluster, root: Path, node: str) -> None:
    with process(control_plane, root, node, "nic"), process(control_plane, root, node, "fpga"):
        wait_for("two registrations", lambda: len(list((root / "plugins_registry").iterdir())) == 2, 20)
        for profile in ("nic", "fpga"):
            assert cli.main(["probe", f"--profile={profile}", f"--kubelet-root-dir={root}"]) == 0


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
        with process(control_plane, root, node, "fpga", "--program-seconds=4", "--no-publish"):
            kubelet = KubeletClient(root / "plugins_registry")
            kubelet.register()
            slow = self.claim(control_plane, namespace, node, "fpga0", "x")
            same = self.claim(control_plane, namespace, node, "fpga0", "x")
            other = self.claim(control_plane, namespace, node, "fpga0", "y")
            uids = [body["metadata"]["uid"] for body in (slow, same, other)]
            assert "still in progress" in kubelet.prepare(slow, timeout=2)[uids[0]].error
            assert 'this claim needs bitstream="y"' in kubelet.prepare(other)[uids[2]].error
            started = time.monotonic()
            assert kubelet.prepare(same)[uids[1]].error == ""
            assert kubelet.prepare(slow)[uids[0]].error == ""
            assert time.monotonic() - started < 4, "the bitstream was loaded twice"
            kubelet.unprepare(slow, same)
            started = time.monotonic()
            again = self.claim(control_plane, namespace, node, "fpga0", "x")
            assert kubelet.prepare(again)[again["metadata"]["uid"]].error == ""
            assert time.monotonic() - started < 3, "a loaded bitstream was loaded again"
            kubelet.close()

    def test_unprepare_waits_for_the_prepare_it_undoes(
        self, control_plane: Cluster, namespace: str, root: Path, node: str
    ) -> None:
        with process(control_plane, root, node, "fpga", "--program-seconds=3", "--no-publish"):
            kubelet = KubeletClient(root / "plugins_registry")
            kubelet.register()
            claim = self.claim(control_plane, namespace, node, "fpga1", "x")
            uid = claim["metadata"]["uid"]
            assert "still in progress" in kubelet.prepare(claim, timeout=1.5)[uid].error
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
