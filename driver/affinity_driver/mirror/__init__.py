"""Metadata for drivers that publish none: another process's ResourceSlices mirrored, and fenced by a rule."""
