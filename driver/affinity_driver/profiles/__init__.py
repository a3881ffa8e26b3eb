"""The kinds of hardware this driver plays: one module each, found by looking.

A new kind is a new module with a subclass of ``Profile``, here or anywhere else; no other file changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from .base import Profile, ProfileOptions


class ProfileError(ValueError):
    """There is no such profile; the text says what is wrong and what there is."""


def _profiles_in(module: ModuleType) -> dict[str, type[Profile]]:
    """The concrete profiles that a module defines, by name."""
    return {
        kind.name: kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Profile) and not inspect.isabstract(kind) and kind.__module__ == module.__name__
    }


def _discover() -> dict[str, type[Profile]]:
    """The profiles of all modules of this package."""
    found: dict[str, type[Profile]] = {}
    for info in pkgutil.iter_modules(__path__):
        found |= _profiles_in(importlib.import_module(f"{__name__}.{info.name}"))
    return found


PROFILES = _discover()


@cache
def find(name: str) -> type[Profile]:
    """The profile of this name, in this Python file (``./crypto.py``), or in this module (``acme.crypto``).

    Raises ProfileError.
    """
    if name in PROFILES:
        return PROFILES[name]
    found = _profiles_in(_load(name))
    if len(found) != 1:
        held = ", ".join(sorted(found)) or "none"
        raise ProfileError(f"{name}: one concrete subclass of Profile is needed there; it has {held}")
    (kind,) = found.values()
    return kind


def _load(name: str) -> ModuleType:
    path = Path(name)
    try:
        if path.suffix == ".py":
            spec = importlib.util.spec_from_file_location(f"profile_{path.stem}", path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules[spec.name] = module  # dataclasses in it look for their module there
                spec.loader.exec_module(module)
                return module
        elif "." in name:
            return importlib.import_module(name)
    except Exception as error:
        raise ProfileError(f"profile {name} cannot be loaded: {type(error).__name__}: {error}") from error
    known = ", ".join(sorted(PROFILES))
    raise ProfileError(f"no profile {name}; use {known}, a file ending in .py, or a module")


__all__ = ["PROFILES", "Profile", "ProfileError", "ProfileOptions", "find"]
