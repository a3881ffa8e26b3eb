"""The hardware that is not there.

``MockDevices`` stands for the device's own memory: it knows for every device the values it is programmed
with, keeps them while the driver is down, forgets them when the machine reboots (except what is flashed),
and takes its time to program. Everything else in this package would be the same with real hardware: this
module and a profile are all that an author replaces.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .disk import Disk


class MockDevices:
    """Programmable values per device, one file each below ``directory``.

    ``seconds`` is how long programming takes. Calls for one device must not overlap (``DeviceState`` has a
    lock for each); calls for different devices may.
    """

    def __init__(
        self,
        directory: Path,
        boot_id: str,
        seconds: float = 0.0,
        survives_reboot: bool = False,
        disk: Disk | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._seconds = seconds
        self._survives_reboot = survives_reboot
        self._disk = disk or Disk()
        self._sleep = sleep

    def values(self, device: str) -> dict[str, str]:
        """What the device is programmed with; empty when it is not."""
        data = self._disk.read(self._file(device))
        try:
            registers = json.loads(data or b"{}")
            if not self._survives_reboot and registers["boot"] != self._boot_id:
                return {}
            return {str(key): str(value) for key, value in registers["values"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}

    def known(self) -> set[str]:
        """The devices that are programmed or broken."""
        files = self._directory.glob("*") if self._directory.is_dir() else ()
        return {path.stem for path in files if path.suffix in (".json", ".fault")}

    def program(self, device: str, values: Mapping[str, str]) -> bool:
        """Program the device and return when it is done; False when it already was so."""
        if self.values(device) == dict(values):
            return False
        # A device in the middle of programming holds nothing usable: an interrupted one must be done again.
        self.reset(device)
        self._sleep(self._seconds)
        self._directory.mkdir(parents=True, exist_ok=True)
        registers = {"boot": self._boot_id, "values": dict(values)}
        self._disk.write(self._file(device), json.dumps(registers, sort_keys=True).encode())
        return True

    def reset(self, device: str) -> None:
        """Make the device blank."""
        self._disk.sweep_temporaries(self._directory, f"{device}.json.")
        self._disk.remove(self._file(device))

    def fault(self, device: str) -> str:
        """What is wrong with the device, "" when nothing is. A file ``DEVICE.fault`` breaks a mock one."""
        data = self._disk.read(self._directory / f"{device}.fault")
        if data is None:
            return ""
        return data.decode(errors="replace").strip() or "broken"

    def _file(self, device: str) -> Path:
        return self._directory / f"{device}.json"


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The id of this boot of the machine: a new one means that all devices and containers started over."""
    return path.read_text().strip()
