"""Clusters for tests and demos, and the end-to-end scenarios."""
