"""Entry point of the ``affinity-driver`` command."""

import sys

from affinity_driver.cli import main

if __name__ == "__main__":
    sys.exit(main())
