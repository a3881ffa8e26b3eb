"""The api layer."""
