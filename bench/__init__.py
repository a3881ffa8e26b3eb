"""Benchmarks. `python -m bench` lists them, `python -m bench NAME` runs one; each prints what it compares
with.
"""
