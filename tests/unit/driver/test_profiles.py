"""What the profiles publish, understand and tell containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from harness.driver_rig import Rig

from affinity_driver.claims.errors import ConfigError, IncompatibleError
from affinity_driver.cli import main
from affinity_driver.profiles import PROFILES, Profile, ProfileError, ProfileOptions, find
from affinity_driver.publish.desired import Pool
from affinity_driver.publish.validate import problems
from affinity_driver.state.model import Phase, PreparedClaim, Share


@pytest.fixture(params=sorted(PROFILES))
def profile(request: pytest.FixtureRequest, tmp_path: Path) -> Profile:
    return Rig.make(tmp_path, profile=request.param, options=ProfileOptions(pkey=True)).profile


def test_published_pool_is_valid(profile: Profile) -> None:
    for options in (
        ProfileOptions(),
        ProfileOptions(devices=200, slots=1),
        ProfileOptions(devices=1, slots=1000),
    ):
        other = type(profile)(options, profile.hardware)
        pool = Pool(
            profile.driver, "node-a", "node-a", "uid", tuple(other.devices()), tuple(other.extractors())
        )
        assert problems(pool) == []


def test_every_share_has_an_environment(profile: Profile) -> None:
    for admin in (False, True):
        share = Share("r", "p", "dev-1", None, {}, {}, admin=admin)
        assert profile.environment(share)


def test_device_names_are_stable(profile: Profile) -> None:
    assert [device.name for device in profile.devices()] == [device.name for device in profile.devices()]


@pytest.mark.parametrize(
    "parameters", [None, 1, "x", [], {}, {"apiVersion": 1, "kind": []}, {"kind": "Other"}]
)
def test_foreign_parameters_are_refused_with_what_is_known(profile: Profile, parameters: Any) -> None:
    with pytest.raises(ConfigError, match="parameters: "):
        profile.decode(parameters)


class TestNic:
    def decode(self, **parameters: Any) -> dict[str, Any]:
        made = PROFILES["nic"](ProfileOptions(), None)  # type: ignore[arg-type]
        return made.decode({"kind": "NICConfig", **parameters})

    def test_both_versions_give_the_same_settings(self) -> None:
        new = self.decode(apiVersion="nic.sharingaffinity.dev/v1", subnet="a", mtu=1500)
        old = self.decode(apiVersion="nic.sharingaffinity.dev/v1beta1", subnetID="a", mtu=1500)
        assert new == old == {"subnet": "a", "mtu": 1500}

    @pytest.mark.parametrize(("version", "field"), [("v1", "subnetID"), ("v1beta1", "subnet")])
    def test_a_field_of_the_other_version_is_unknown(self, version: str, field: str) -> None:
        with pytest.raises(ConfigError, match=f"parameters.{field}: unknown field"):
            self.decode(apiVersion=f"nic.sharingaffinity.dev/{version}", **{field: "a"})


class TestFpga:
    @staticmethod
    def claim(uid: str, bitstream: str, device: str = "fpga0") -> PreparedClaim:
        keys = {"bitstream": bitstream}
        return PreparedClaim(uid, "ns", uid, Phase.STARTED, (Share("r", "n", device, uid, keys, keys),))

    def test_bitstream_is_required_for_nothing_but_the_key(self) -> None:
        made = PROFILES["fpga"](ProfileOptions(), None)  # type: ignore[arg-type]
        config = {"apiVersion": "fpga.sharingaffinity.dev/v1", "kind": "FPGAConfig"}
        assert made.decode(config) == {}
        with pytest.raises(ConfigError, match="unknown field; FPGAConfig has bitstream"):
            made.decode({**config, "bitstrem": "x"})

    def test_bitstream_stays_loaded_and_is_not_loaded_twice(self, tmp_path: Path) -> None:
        rig = Rig.make(tmp_path, profile="fpga")
        times: list[float] = []
        rig.profile.hardware._sleep = times.append
        rig.prepare(self.claim("1", "a"))
        rig.prepare(self.claim("2", "a"))
        rig.state.unprepare("1")
        rig.state.unprepare("2")
        assert rig.programmed("fpga0") == {"bitstream": "a"}
        rig.prepare(self.claim("3", "a"))
        assert len(times) == 1
        with pytest.raises(IncompatibleError):
            rig.prepare(self.claim("4", "b"))
        rig.state.unprepare("3")
        rig.prepare(self.claim("4", "b"))
        assert len(times) == 2

    def test_bitstream_survives_restart_and_reboot(self, tmp_path: Path) -> None:
        rig = Rig.make(tmp_path, profile="fpga")
        rig.prepare(self.claim("1", "a"))
        rig.state.unprepare("1")
        assert rig.restart(boot="boot-2").programmed("fpga0") == {"bitstream": "a"}

    def test_interrupted_programming_leaves_nothing_loaded(self, tmp_path: Path) -> None:
        rig = Rig.make(tmp_path, profile="fpga")
        rig.prepare(self.claim("1", "a"))
        rig.state.unprepare("1")

        def power_off(seconds: float) -> None:
            raise KeyboardInterrupt

        rig.profile.hardware._sleep = power_off
        with pytest.raises(KeyboardInterrupt):
            rig.prepare(self.claim("2", "b"))
        assert rig.restart().programmed("fpga0") == {}


class TestFinding:
    BODY = """
from dataclasses import dataclass
from affinity_driver.profiles.nic import NicProfile

@dataclass
class Note:
    text: "str"

class Mine(NicProfile):
    name = "mine"
"""

    def test_a_file_outside_of_the_package_is_a_profile(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_text(self.BODY)
        kind = find(str(path))
        assert (kind.name, kind.driver) == ("mine", "nic.sharingaffinity.dev")
        assert find(str(path)) is kind

    def test_a_module_is_a_profile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "acme").mkdir()
        (tmp_path / "acme" / "mine.py").write_text(self.BODY)
        monkeypatch.syspath_prepend(str(tmp_path))
        assert find("acme.mine").name == "mine"

    @pytest.mark.parametrize(
        ("name", "content", "problem"),
        [
            ("none", None, "no profile none; use fpga, nic, a file ending in .py, or a module"),
            ("missing.py", None, "cannot be loaded: FileNotFoundError"),
            ("no.such.module", None, "cannot be loaded: ModuleNotFoundError"),
            ("bad.py", "def", "cannot be loaded: SyntaxError"),
            ("empty.py", "", "one concrete subclass of Profile is needed there; it has none"),
            ("two.py", BODY + BODY.replace("Mine", "More").replace('"mine"', '"more"'), "it has mine, more"),
        ],
    )
    def test_what_is_no_profile_is_told(
        self, tmp_path: Path, name: str, content: str | None, problem: str
    ) -> None:
        path = str(tmp_path / name) if name.endswith(".py") else name
        if content is not None:
            Path(path).write_text(content)
        with pytest.raises(ProfileError, match=re.escape(problem)):
            find(path)
        assert main(["status", "--profile", "nic", "--kubelet-root-dir", str(tmp_path)]) == 0
        with pytest.raises(SystemExit) as ended:
            main(["status", "--profile", path])
        assert ended.value.code == 2
