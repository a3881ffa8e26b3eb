"""Kubernetes CEL for Python."""
