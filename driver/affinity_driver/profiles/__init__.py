"""The kinds of hardware this driver plays: one module each, found by looking.

A new kind is a new module with a subclass of ``Profile``; no other file changes.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from .base import Profile, ProfileOptions


def _discover() -> dict[str, type[Profile]]:
    """The concrete profiles of all modules of this package, by name."""
    found: dict[str, type[Profile]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(kind, Profile)
                and not inspect.isabstract(kind)
                and kind.__module__ == module.__name__
            ):
                found[kind.name] = kind
    return found


PROFILES = _discover()

__all__ = ["PROFILES", "Profile", "ProfileOptions"]
