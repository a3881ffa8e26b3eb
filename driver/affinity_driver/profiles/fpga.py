"""An FPGA that several pods share while they want the same bitstream.

What differs from a NIC: programming takes seconds, in which a prepare waits or answers busy while other
devices go on; and a bitstream stays loaded when its last user is gone, so that the next user of the same
one does not wait at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from affinity_driver.json_types import Json, JsonObject
from affinity_driver.publish.desired import Device
from affinity_driver.state.model import Share
from sharing_affinity.api import Extractor

from .base import Field, Profile, decode_fields, text

V1 = "fpga.sharingaffinity.dev/v1"
KIND = "FPGAConfig"

_SCHEMAS: Mapping[tuple[str, str], Mapping[str, Field]] = {(V1, KIND): {"bitstream": Field(text(253))}}
_BITSTREAM = (
    f'has(object.apiVersion) && has(object.kind) && object.apiVersion == "{V1}" && object.kind == "{KIND}"'
    ' && has(object.bitstream) ? object.bitstream : ""'
)


class FpgaProfile(Profile):
    """Shared accelerators with one bitstream at a time."""

    name: ClassVar[str] = "fpga"
    driver: ClassVar[str] = "fpga.sharingaffinity.dev"
    default_slots: ClassVar[int] = 4
    program_seconds: ClassVar[float] = 3.0
    survives_reboot: ClassVar[bool] = True

    def devices(self) -> Sequence[Device]:
        """``fpga0`` to ``fpgaN-1``."""
        return [self._device(number) for number in range(self.options.devices)]

    def extractors(self) -> Sequence[Extractor]:
        """``bitstream``."""
        return [Extractor("bitstream", _BITSTREAM)]

    def decode(self, parameters: Json) -> JsonObject:
        """The config's fields."""
        _, settings = decode_fields(parameters, _SCHEMAS)
        return settings

    def configure(self, device: str, keys: Mapping[str, str]) -> None:
        """Load the bitstream unless it is loaded; takes the programming time."""
        self.hardware.program(device, keys)

    def release(self, device: str) -> None:
        """Nothing: the bitstream stays for the next user."""

    def environment(self, share: Share) -> Mapping[str, str]:
        """``FPGA_DEVICE``, ``FPGA_BITSTREAM``, ``FPGA_SHARE_ID``, and each once more with the device in its
        name.
        """
        device = share.device.upper().replace("-", "_")
        values = {"BITSTREAM": share.keys.get("bitstream", ""), "SHARE_ID": share.share_id or ""}
        environment = {"FPGA_DEVICE": share.device}
        for name, value in values.items():
            environment[f"FPGA_{name}"] = value
            environment[f"FPGA_{device}_{name}"] = value
        return environment

    def _device(self, number: int) -> Device:
        attributes: JsonObject = {
            "model": {"string": "mock-u250"},
            "pciAddress": {"string": f"0000:5e:{number:02x}.0"},
            "numaNode": {"int": number % 2},
        }
        return Device(f"fpga{number}", attributes, {"slots": self.slot_capacity()})
