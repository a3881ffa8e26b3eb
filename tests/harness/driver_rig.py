"""A driver's state machine on folders of a test, with the NIC profile; no API server, no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from affinity_driver.cdi import CdiDirectory
from affinity_driver.disk import Disk
from affinity_driver.hardware import MockDevices
from affinity_driver.profiles import PROFILES, Profile, ProfileOptions
from affinity_driver.publish.desired import Device
from affinity_driver.state.device_state import DeviceState, PreparedDevice
from affinity_driver.state.model import Phase, PreparedClaim, Share


@dataclass
class Rig:
    """One "process" of a driver; ``restart`` gives the next one on the same folders."""

    root: Path
    disk: Disk
    boot: str
    profile: Profile
    state: DeviceState
    devices: Mapping[str, Device]

    @classmethod
    def make(
        cls,
        root: Path,
        disk: Disk | None = None,
        boot: str = "boot-1",
        profile: str = "nic",
        options: ProfileOptions | None = None,
        start: bool = True,
    ) -> Rig:
        disk = disk or Disk()
        kind = PROFILES[profile]
        directory = root / "plugin"
        directory.mkdir(parents=True, exist_ok=True)
        options = options or ProfileOptions()
        hardware = MockDevices(
            directory / "hardware", boot, options.program_seconds or 0.0, kind.survives_reboot, disk
        )
        made = kind(options, hardware)
        cdi = CdiDirectory(root / "cdi", kind.driver, kind.name, disk)
        state = DeviceState(directory, made, cdi, boot, disk)
        devices = {device.name: device for device in made.devices()}
        rig = cls(root, disk, boot, made, state, devices)
        if start:
            state.start(frozenset(devices))
        return rig

    def restart(self, disk: Disk | None = None, boot: str | None = None) -> Rig:
        return Rig.make(self.root, disk, boot or self.boot, self.profile.name, self.profile.options)

    def prepare(self, claim: PreparedClaim) -> tuple[PreparedDevice, ...]:
        return self.state.prepare(claim, self.devices)

    def cdi_files(self) -> set[str]:
        """UIDs of the claims with a CDI file; every other file in the folder fails the test."""
        files = list((self.root / "cdi").glob("*")) if (self.root / "cdi").exists() else []
        assert all(path.name.endswith(".json") and "_" in path.name for path in files), files
        return {path.stem.rpartition("_")[2] for path in files}

    def programmed(self, device: str) -> dict[str, str]:
        return self.profile.hardware.values(device)


def nic_claim(uid: str, subnet: str = "a", *devices: str, mtu: int | None = None) -> PreparedClaim:
    """A resolved claim with one share of each device (eth1 by default)."""
    settings = {"subnet": subnet} | ({"mtu": mtu} if mtu else {})
    shares = tuple(
        Share(
            f"r{number}",
            "node-a",
            device,
            f"share-{uid}-{number}",
            {"subnet": subnet},
            settings,
            {"slots": "1"},
        )
        for number, device in enumerate(devices or ("eth1",))
    )
    return PreparedClaim(uid, "default", f"claim-{uid}", Phase.STARTED, shares)
