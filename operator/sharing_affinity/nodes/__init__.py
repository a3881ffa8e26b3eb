"""The nodes layer."""
