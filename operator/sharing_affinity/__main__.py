"""Entry point of the ``sharing-affinity`` command."""

import sys

from sharing_affinity.cli import main

if __name__ == "__main__":
    sys.exit(main())
