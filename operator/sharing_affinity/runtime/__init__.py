"""The runtime layer."""
