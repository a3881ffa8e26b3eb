"""The locks layer."""
