"""`make lock`: resolve requirements.lock from pyproject.toml, for every platform, with hashes.

uv does it, in an environment of its own under `.cache`, since pip cannot resolve for platforms other than
its own. Without arguments the present pins stay where they still fit; `ARGS=--upgrade` takes the newest of
everything.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.bootstrap import environment, find_pip

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".cache" / "uv"
PIN = "uv==0.13.9"
OPTIONS = ["--all-extras", "--group", "dev", "--universal", "--python-version", "3.11", "--generate-hashes"]
QUIET = ["--no-header", "--no-annotate", "--quiet"]


def main() -> int:
    if not (UV / "bin" / "uv").exists():
        pip = [*find_pip(), "install", "--quiet", "--only-binary", ":all:", "--target", str(UV), PIN]
        subprocess.run(pip, env=environment(), check=True, timeout=600)
    command = [str(UV / "bin" / "uv"), "pip", "compile", "pyproject.toml", *OPTIONS, *QUIET]
    command += ["--output-file", "requirements.lock", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=900).returncode


if __name__ == "__main__":
    sys.exit(main())
