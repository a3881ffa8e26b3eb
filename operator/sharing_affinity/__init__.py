"""Sharing affinity (KEP-5981) for stock Kubernetes."""
