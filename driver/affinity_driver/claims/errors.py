"""Why a claim cannot be prepared, in words for the pod's owner.

The text becomes the pod's event ``FailedPrepareDynamicResources`` behind two prefixes of the kubelet, so it
is one short sentence. It never names another tenant's claim: who holds a device goes to the log and to
``affinity-driver status``.
"""

from __future__ import annotations


class PrepareError(Exception):
    """This claim cannot be prepared now. ``outcome`` is the label it is counted under."""

    outcome = "error"


class ClaimChangedError(PrepareError):
    """The claim in the API server is not what the kubelet asked for: gone, replaced, or not allocated."""

    outcome = "claim"


class ConfigError(PrepareError):
    """The claim's opaque config is not what the driver understands; ``path`` points into it."""

    outcome = "config"


class IncompatibleError(PrepareError):
    """The device is in use with other affinity keys, or otherwise taken. ``holders`` are their claim UIDs."""

    outcome = "incompatible"

    def __init__(self, message: str, key: str | None = None, holders: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.key = key
        self.holders = holders


class BusyError(PrepareError):
    """It takes longer than the caller waits; the work goes on and a retry picks up its result."""

    outcome = "busy"


class HardwareError(PrepareError):
    """The device refused."""

    outcome = "hardware"
