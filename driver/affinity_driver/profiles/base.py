"""What a kind of hardware has to say for itself: the interface a driver author implements.

Everything device-specific is behind these methods. The rest of the package calls them in this order:
``devices`` and ``extractors`` to publish; ``decode`` for each config of a claim; ``configure`` for each
device of it (calls for one device never overlap); ``environment`` for its containers and ``report``
for the claim's status; ``release`` when the last user of a device is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from affinity_driver.claims.errors import ConfigError
from affinity_driver.claims.report import DeviceReport
from affinity_driver.hardware import MockDevices
from affinity_driver.json_types import Json, JsonObject
from affinity_driver.publish.desired import Device
from affinity_driver.state.model import Share
from sharing_affinity.api import Extractor


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Command line choices that profiles understand; None leaves the profile its own default."""

    devices: int = 2
    slots: int | None = None
    pkey: bool = False
    program_seconds: float | None = None


class Profile(ABC):
    """One kind of hardware."""

    name: ClassVar[str]
    """As in ``--profile``; also the class of the CDI kind."""
    driver: ClassVar[str]
    """The DRA driver's name unless another is asked for."""
    default_slots: ClassVar[int] = 16
    """How many shares a device has unless told otherwise."""
    program_seconds: ClassVar[float] = 0.0
    """How long the mock takes to program a device unless told otherwise."""
    survives_reboot: ClassVar[bool] = False
    """Whether a device keeps its programming over a reboot."""

    def __init__(self, options: ProfileOptions, hardware: MockDevices) -> None:
        self.options = options
        self.hardware = hardware

    def slot_capacity(self) -> JsonObject:
        """The capacity ``slots``: whole ones, one per claim by default; without a default one claim takes
        all.
        """
        slots = self.options.slots or self.default_slots
        # The API server wants room for one step above the minimum.
        whole = {"min": "1", "step": "1"} if slots > 1 else {"min": "1"}
        return {"value": str(slots), "requestPolicy": {"default": "1", "validRange": whole}}

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices of this node."""

    @abstractmethod
    def extractors(self) -> Sequence[Extractor]:
        """The affinity keys on which all users of one device must agree."""

    @abstractmethod
    def decode(self, parameters: Json) -> JsonObject:
        """One opaque config as settings: strict about names and types. Raises ConfigError with the path."""

    @abstractmethod
    def configure(self, device: str, keys: Mapping[str, str]) -> None:
        """Bring the device into the state ``keys`` ask for; quick when it is in it. Raises HardwareError."""

    @abstractmethod
    def release(self, device: str) -> None:
        """The last user is gone. Raises HardwareError."""

    def fault(self, device: str) -> str:
        """What is wrong with the device, "" when it is healthy. Asked every few seconds."""
        return self.hardware.fault(device)

    def report(self, share: Share) -> DeviceReport:
        """What ``status.devices`` of the claim says of a prepared share: what it is set up for."""
        return DeviceReport({"keys": dict(share.keys), "settings": share.settings})

    @abstractmethod
    def environment(self, share: Share) -> Mapping[str, str]:
        """The variables that tell a container about its share of a device; at least one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an opaque config: its check returns the normalised value or raises ValueError saying what
    is right.
    """

    check: Callable[[Json], Json]
    required: bool = False


def decode_fields(
    parameters: Json, kinds: Mapping[tuple[str, str], Mapping[str, Field]]
) -> tuple[str, JsonObject]:
    """Decode one object against the schemas of its (apiVersion, kind): apiVersion and settings.

    Unknown fields, wrong types and missing fields are refused, each with its path and what would be right.
    """
    if not isinstance(parameters, dict):
        raise ConfigError(f"parameters: an object is needed, not {_type(parameters)}")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    fields = kinds.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if fields is None:
        known = " or ".join(f"{kind} of {version}" for version, kind in kinds)
        raise ConfigError(f"parameters: apiVersion {version!r} with kind {kind!r} is unknown; use {known}")
    unknown = sorted(parameters.keys() - fields.keys() - {"apiVersion", "kind"})
    if unknown:
        raise ConfigError(f"parameters.{unknown[0]}: unknown field; {kind} has {_listed(fields)}")
    settings: JsonObject = {}
    for name, field in fields.items():
        if name not in parameters:
            if field.required:
                raise ConfigError(f"parameters.{name}: required")
            continue
        try:
            settings[name] = field.check(parameters[name])
        except ValueError as error:
            raise ConfigError(f"parameters.{name}: {error}") from error
    return str(version), settings


def text(limit: int) -> Callable[[Json], str]:
    """A check for a printable, non-empty string of at most ``limit`` characters."""

    def check(value: Json) -> str:
        if not isinstance(value, str):
            raise ValueError(f"a string is needed, not {_type(value)}")
        if not 1 <= len(value) <= limit:
            raise ValueError(f"1 to {limit} characters are allowed, not {len(value)}")
        if not value.isprintable():
            raise ValueError("only printable characters are allowed")
        return value

    return check


def integer(lowest: int, highest: int) -> Callable[[Json], int]:
    """A check for a whole number within bounds."""

    def check(value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"a whole number is needed, not {_type(value)}")
        if not lowest <= value <= highest:
            raise ValueError(f"{lowest} to {highest} are allowed, not {value}")
        return value

    return check


def _type(value: Json) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no fields"
