"""`make lock`: resolve requirements.lock and the images' locks from pyproject.toml, for every platform, with
hashes.

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
OPTIONS = ["--universal", "--python-version", "3.11", "--generate-hashes"]
QUIET = ["--no-header", "--no-annotate", "--quiet"]
# What images install: parts of the whole, at the same versions.
IMAGES = ("operator", "driver")


def main() -> int:
    if not (UV / "bin" / "uv").exists():
        pip = [*find_pip(), "install", "--quiet", "--only-binary", ":all:", "--target", str(UV), PIN]
        subprocess.run(pip, env=environment(), check=True, timeout=600)
    compile_ = [str(UV / "bin" / "uv"), "pip", "compile", "pyproject.toml", *OPTIONS, *QUIET]
    command = [
        *compile_,
        "--all-extras",
        "--group",
        "dev",
        "--group",
        "docs",
        "--output-file",
        "requirements.lock",
        *sys.argv[1:],
    ]
    code = subprocess.run(command, cwd=ROOT, check=False, timeout=900).returncode
    for name in IMAGES if code == 0 else ():
        lock = f"e2e/images/{name}.lock"
        # Made anew each time: an older pin in the file must not win over requirements.lock.
        (ROOT / lock).unlink(missing_ok=True)
        command = [*compile_, "--extra", name, "--constraint", "requirements.lock", "--output-file", lock]
        code = code or subprocess.run(command, cwd=ROOT, check=False, timeout=900).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
