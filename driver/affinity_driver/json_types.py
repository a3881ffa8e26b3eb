"""What JSON looks like to the type checker.

API objects stay plain dicts from the socket to the socket: a typed model drops every field that is newer than
itself, in both directions, and silently.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Any JSON value: null, bool, int, float, str, list or dict."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""
