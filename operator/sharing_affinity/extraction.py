"""The extraction layer."""
