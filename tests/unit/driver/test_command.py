"""The command where it cannot do what it was told: exit codes, and nothing left behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOWHERE: dict[str, Any] = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
}


def test_a_taken_metrics_port_leaves_no_socket_for_the_kubelet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        (root / "kubeconfig").write_text(json.dumps(NOWHERE))
        argv = ["run", "--node-name=n", f"--kubeconfig={root / 'kubeconfig'}", f"--kubelet-root-dir={root}"]
        argv += [f"--cdi-dir={root / 'cdi'}", f"--metrics-port={taken.getsockname()[1]}"]
        ended = subprocess.run(
            [sys.executable, "-m", "affinity_driver", *argv],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 3, ended.stderr
        assert "cannot start: [Errno 98] Address already in use" in ended.stderr
        assert not list(root.rglob("*.sock"))
