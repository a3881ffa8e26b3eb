"""Programs of this repository for its own development: set-up, tests, lock file. Not part of any package."""
