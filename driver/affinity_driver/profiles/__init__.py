"""The kinds of hardware this driver plays. A new kind is one module here and its line in ``PROFILES``."""

from __future__ import annotations

from .base import Profile, ProfileOptions
from .fpga import FpgaProfile
from .nic import NicProfile

PROFILES: dict[str, type[Profile]] = {"fpga": FpgaProfile, "nic": NicProfile}

__all__ = ["PROFILES", "FpgaProfile", "NicProfile", "Profile", "ProfileOptions"]
