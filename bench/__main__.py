"""`python -m bench [NAME] [arguments]`: every module here with a `main(argv) -> int` is a benchmark."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from e2e import interrupts


def main(argv: list[str]) -> int:
    """Run one benchmark, or list them."""
    found = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name[0] != "_"
    )
    if not argv or argv[0] not in found:
        for name in found:
            doc = importlib.import_module(f"bench.{name}").__doc__ or ""
            print(f"{name:12} {doc.strip().splitlines()[0]}")
        return 0 if not argv else 2
    interrupts.end_in_order()
    try:
        return int(importlib.import_module(f"bench.{argv[0]}").main(argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
