"""The ``sharing-affinity`` command.

Every module of this package whose name does not start with an underscore is one subcommand. It has

* ``add_parser(subparsers)``: adds its argparse parser (help, arguments) and returns nothing;
* ``run(args) -> int``: does the work and returns the exit code;
* perhaps ``arrange(argv) -> argv``: brings its arguments into an order that argparse understands.

The command's name is the module's name with ``-`` for ``_``. Nothing else has to be registered. Modules
import heavy things (kubernetes, kopf, rich) inside ``run``, so that ``--help`` and ``eval`` start fast.

Exit codes everywhere: 0 good, 1 findings or not placed, 2 bad input, 3 no access to the cluster.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

GOOD, FINDINGS, BAD_INPUT, NO_ACCESS = 0, 1, 2, 3


class Subcommand(Protocol):
    """What a module of this package offers."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class CommandError(Exception):
    """Ends a subcommand with one line on stderr and an exit code; for mistakes of the caller, not for
    bugs."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


def subcommands() -> Iterator[tuple[str, Subcommand]]:
    """All subcommands, by name."""
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{__name__}.{info.name}")
            yield info.name.replace("_", "-"), cast(Subcommand, module)


def make_parser() -> tuple[argparse.ArgumentParser, dict[str, Subcommand]]:
    """The parser of the whole command line, and the subcommands it knows."""
    parser = argparse.ArgumentParser(
        prog="sharing-affinity",
        description="Sharing affinity for Kubernetes Dynamic Resource Allocation (KEP-5981), stock clusters.",
    )
    subparsers: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    known: dict[str, Subcommand] = {}
    for name, module in subcommands():
        module.add_parser(subparsers)
        known[name] = module
    return parser, known


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code (0 good, 1 findings, 2 bad input, 3 no access)."""
    parser, known = make_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    arrange = getattr(known.get(words[0]), "arrange", None) if words else None
    args = parser.parse_args([words[0], *arrange(words[1:])] if arrange is not None else words)
    code = GOOD
    try:
        code = known[args.command].run(args)
        sys.stdout.flush()
    except CommandError as error:
        print(f"sharing-affinity {args.command}: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        # The reader (head, less) has gone: not an error of ours, and what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
