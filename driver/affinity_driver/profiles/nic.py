"""A NIC that up to 16 pods share, all of one subnet (and, with ``--pkey``, one InfiniBand partition).

The opaque config comes in two versions whose field names differ: ``v1`` says ``subnet``, ``v1beta1`` said
``subnetID``. The extractor guards on version and kind, so both may be used side by side while workloads
move; this is the pattern for evolving a schema without touching the affinity key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

from affinity_driver.claims.report import DeviceReport
from affinity_driver.json_types import Json, JsonObject
from affinity_driver.publish.desired import Device
from affinity_driver.state.model import Share
from sharing_affinity.api import Extractor

from .base import Field, Profile, decode_fields, integer, text

V1 = "nic.sharingaffinity.dev/v1"
V1BETA1 = "nic.sharingaffinity.dev/v1beta1"
KIND = "NICConfig"

_COMMON = {"pkey": Field(text(64)), "mtu": Field(integer(576, 9216)), "vlan": Field(integer(1, 4094))}
_SCHEMAS: Mapping[tuple[str, str], Mapping[str, Field]] = {
    (V1, KIND): {"subnet": Field(text(253)), **_COMMON},
    (V1BETA1, KIND): {"subnetID": Field(text(253)), **_COMMON},
}

_IS_OURS = f'has(object.apiVersion) && has(object.kind) && object.kind == "{KIND}"'
_SUBNET = (
    f"{_IS_OURS} ? "
    f'(object.apiVersion == "{V1}" && has(object.subnet) ? object.subnet : '
    f'(object.apiVersion == "{V1BETA1}" && has(object.subnetID) ? object.subnetID : "")) : ""'
)
_PKEY = f'{_IS_OURS} && has(object.pkey) ? object.pkey : ""'


class NicProfile(Profile):
    """Shared network cards, in the manner of SR-IOV virtual functions."""

    name: ClassVar[str] = "nic"
    driver: ClassVar[str] = "nic.sharingaffinity.dev"

    def devices(self) -> Sequence[Device]:
        """``eth1`` to ``ethN``, each with as many slots as pods may share it."""
        return [self._device(number) for number in range(1, self.options.devices + 1)]

    def extractors(self) -> Sequence[Extractor]:
        """``subnet``, and ``pkey`` where asked for."""
        subnet = Extractor("subnet", _SUBNET)
        return [Extractor("pkey", _PKEY), subnet] if self.options.pkey else [subnet]

    def decode(self, parameters: Json) -> JsonObject:
        """Settings with v1's field names, whichever version was written."""
        _, settings = decode_fields(parameters, _SCHEMAS)
        if "subnetID" in settings:
            settings["subnet"] = settings.pop("subnetID")
        return settings

    def configure(self, device: str, keys: Mapping[str, str]) -> None:
        """Put the card into the subnet."""
        self.hardware.program(device, keys)

    def release(self, device: str) -> None:
        """A card without users belongs to no subnet."""
        self.hardware.reset(device)

    def report(self, share: Share) -> DeviceReport:
        """Data as of the base class, and the interface with the address of this share."""
        network = {"interfaceName": share.device, "hardwareAddress": _mac(share)}
        return DeviceReport(super().report(share).data, network)

    def environment(self, share: Share) -> Mapping[str, str]:
        """``NIC_DEVICE``, ``NIC_SUBNET``, ``NIC_SHARE_ID``, ``NIC_MAC`` and what else the config set.

        For containers with several cards every variable also exists with the device in its name
        (``NIC_ETH1_SUBNET``), since the short names can only tell of one of them.
        """
        values = {
            "SUBNET": share.keys.get("subnet", ""),
            "SHARE_ID": share.share_id or "",
            "MAC": _mac(share),
        }
        if "pkey" in share.keys or "pkey" in share.settings:
            values["PKEY"] = share.keys.get("pkey") or share.settings["pkey"]
        values |= {
            name.upper(): str(share.settings[name]) for name in ("mtu", "vlan") if name in share.settings
        }
        device = share.device.upper().replace("-", "_")
        environment = {"NIC_DEVICE": share.device}
        for name, value in values.items():
            environment[f"NIC_{name}"] = value
            environment[f"NIC_{device}_{name}"] = value
        return environment

    def _device(self, number: int) -> Device:
        return Device(
            name=f"eth{number}",
            attributes={
                "interface": {"string": f"eth{number}"},
                "physicalFunction": {"string": f"pf{(number - 1) // 2}"},
                "pciAddress": {"string": f"0000:3b:{number // 8:02x}.{number % 8}"},
                "numaNode": {"int": (number - 1) % 2},
                "linkSpeedGbps": {"int": 100},
                "rdma": {"bool": True},
            },
            capacity={"slots": self.slot_capacity()},
        )


def _mac(share: Share) -> str:
    """A locally administered address of the share's own, as a virtual function would have."""
    digest = hashlib.sha256(f"{share.pool}/{share.device}/{share.share_id}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
