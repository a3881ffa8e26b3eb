"""Entry point of the ``affinity-driver`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
