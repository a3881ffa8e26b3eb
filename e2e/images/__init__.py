"""The images that clusters run, made without a Docker daemon.

`test` is ours alone: one static program that pods of the tests run and that also serves as their pause
container. Nothing is tagged `latest`, whose default pull policy would ask a registry that does not
exist.
"""

from pathlib import Path

from e2e import build, versions
from e2e.oci import ImageConfig, layer_of_files, write_archive

TEST = "localhost/sharing-affinity/test:1"


def test_program() -> Path:
    """The test image's program, for running it outside of a container."""
    (folder,) = build.ensure(versions.TEST_PROGRAM)
    return folder / "test"


def test_archive() -> Path:
    """The OCI archive of the test image, built into the cache when it is not there."""
    (folder,) = build.ensure(versions.TEST_PROGRAM)
    archive = folder / "test.tar"
    if not archive.exists():
        config = ImageConfig(versions.go_architecture(), ["/test"], ["pause"])
        write_archive(archive, [TEST], [layer_of_files({"test": folder / "test"})], config)
    return archive
