"""Generate the ``_pb2`` modules and their stubs from the vendored protos.

Development only: needs grpcio-tools, which the driver itself does not. Run it as
``python -m affinity_driver.proto.generate`` after changing a proto, and commit the result.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def generate(target: Path) -> list[Path]:
    """Write the generated files below ``target``, laid out as the package is; return the paths written."""
    root = HERE.parents[1]
    protos = [str(path.relative_to(root)) for path in sorted(HERE.glob("*.proto"))]
    outputs = [f"--python_out={target}", f"--pyi_out={target}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, *protos], check=True)
    return sorted((target / HERE.relative_to(root)).glob("*_pb2.py*"))


if __name__ == "__main__":
    for written in generate(HERE.parents[1]):
        print(written)
