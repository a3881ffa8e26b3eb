"""The pools layer."""
