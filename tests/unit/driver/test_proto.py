"""The committed protobuf modules are what the vendored protos generate."""

from pathlib import Path

import pytest

from affinity_driver.proto import dra_v1_pb2, pluginregistration_v1_pb2
from affinity_driver.proto.generate import HERE, generate


def test_committed_modules_equal_generated_ones(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generated = generate(tmp_path)
    committed = sorted(HERE.glob("*_pb2.py*"))
    assert [path.name for path in generated] == [path.name for path in committed]
    for new, old in zip(generated, committed, strict=True):
        assert new.read_text() == old.read_text(), f"{old.name}: run python -m affinity_driver.proto.generate"


def test_every_proto_is_named_in_the_notice() -> None:
    notice = (HERE / "NOTICE").read_text()
    for proto in HERE.glob("*.proto"):
        assert proto.name in notice


def test_service_names_are_upstreams() -> None:
    """The kubelet dials these names; they are not the version strings of the registration."""
    assert (
        dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    )
    registration = pluginregistration_v1_pb2.DESCRIPTOR.services_by_name["Registration"]
    assert registration.full_name == "pluginregistration.Registration"
