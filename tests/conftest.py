"""Fixtures for all tests: the clusters of `e2e.fixtures`, which start only when a test asks for one."""

pytest_plugins = ["e2e.fixtures"]
