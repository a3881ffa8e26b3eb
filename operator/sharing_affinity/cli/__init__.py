"""The ``sharing-affinity`` command."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code (0 good, 1 findings, 2 bad input, 3 no access)."""
    raise NotImplementedError
