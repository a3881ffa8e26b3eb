"""OCI archives of the images, made without a Docker daemon and kept in the per-user cache.

The test image is one static program of ours: pods of the tests run it, and it is the pause container of
their sandboxes. Operator and driver are Python applications: a base layer of Debian's Python, taken
apart from its packages and put together again as a file system that never exists on the host; a layer
of locked wheels; a layer of our own code, the only one that changes from day to day. They correspond to
the Dockerfiles, which start from a public base image instead.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e import build, debian, images, paths, versions
from e2e.errors import ClusterError
from e2e.locking import exclusive
from e2e.oci import ImageConfig, Layer, write_archive
from tools.bootstrap import environment, find_pip

ROOT = Path(__file__).parents[2]
#: This folder, in any revision of the repository.
IMAGES = Path("e2e/images")
#: Archives of one application that stay in the cache: revisions that are compared, and other clones.
KEPT = 4
# Changes when the way of building changes what comes out.
RECIPE = "1"

BASE_PACKAGES = ("python3", "libstdc++6")
# Not followed: only maintainer scripts need them, and none is run.
WITHOUT = frozenset({"debconf", "dpkg", "perl-base", "media-types", "mailcap"})
USR_MERGE = ("bin", "sbin", "lib", "lib64")
UNWANTED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/info")
APPLICATION = "app"
USERS = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n"
GROUPS = "root:x:0:\nnonroot:x:65532:\n"


@dataclass(frozen=True, slots=True)
class Application:
    """A Python program that becomes an image.

    `lock` is the file in this folder that has its dependencies; `sources` are folders of the repository, with
    where they go below the application's folder; `command` is the program's name on PATH, the entry point,
    and `module` what it runs.
    """

    image: str
    lock: str
    sources: tuple[tuple[str, str], ...]
    command: str
    module: str
    user: str


OPERATOR = Application(
    images.OPERATOR,
    "operator.lock",
    (
        ("operator/kubernetes_cel", "kubernetes_cel"),
        ("operator/sharing_affinity", "sharing_affinity"),
        ("crds", "sharing_affinity/_crds"),
    ),
    "sharing-affinity",
    "sharing_affinity",
    "65532:65532",
)
DRIVER = Application(
    images.DRIVER,
    "driver.lock",
    (
        ("operator/kubernetes_cel", "kubernetes_cel"),
        ("operator/sharing_affinity", "sharing_affinity"),
        ("driver/affinity_driver", "affinity_driver"),
    ),
    "affinity-driver",
    "affinity_driver",
    "",
)


def test_program() -> Path:
    """The test image's program, for running it outside of a container."""
    (folder,) = build.ensure(versions.TEST_PROGRAM)
    return folder / "test"


def test_archive() -> Path:
    """The archive of the test image."""
    program = test_program()
    archive = program.with_name("test.tar")
    if not archive.exists():
        layer = Layer()
        layer.file("test", program.read_bytes(), 0o755)
        config = ImageConfig(versions.go_architecture(), ["/test"], ["pause"])
        write_archive(archive, [images.TEST], [layer.content()], config)
    return archive


def application_archive(application: Application, root: Path = ROOT, image: str = "") -> Path:
    """The archive of the operator's or the driver's image; made anew when its code or its lock changed.

    `root` may be the tree of another revision, and `image` another name.
    """
    folder = paths.cache_dir() / "images"
    name = image or application.image
    lock = (root / IMAGES / application.lock).read_bytes()
    key = _key("application", debian.release(), name, lock, *_source_bytes(application, root))
    archive = folder / f"{application.command}-{key}.tar"
    with exclusive(paths.cache_dir() / "images.lock", "another process is making images"):
        if not archive.exists():
            base = _cached(f"base-{_key(debian.release())}", _base_layer)
            python = _python_of(base)
            wheels = _cached(
                f"{application.command}-wheels-{_key(debian.release(), lock)}",
                lambda: _wheels_layer(root / IMAGES / application.lock, python),
            )
            layers = [base.read_bytes(), wheels.read_bytes(), _code_layer(application, root)]
            config = ImageConfig(
                versions.go_architecture(),
                [f"/usr/local/bin/{application.command}"],
                user=application.user,
                environment={"PYTHONPATH": f"/{APPLICATION}", "PYTHONDONTWRITEBYTECODE": "1"},
            )
            write_archive(archive, [name], layers, config)
        archive.touch()
        made = [path for path in folder.glob(f"{application.command}-*.tar") if "-wheels-" not in path.name]
        for older in sorted(made, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            older.unlink()
    return archive


def all_archives() -> dict[str, Path]:
    """Every image by its name."""
    return {
        images.TEST: test_archive(),
        images.OPERATOR: application_archive(OPERATOR),
        images.DRIVER: application_archive(DRIVER),
    }


def _base_layer() -> bytes:
    apt = debian.apt_for(BASE_PACKAGES)
    packages = apt.closure(BASE_PACKAGES, WITHOUT)
    layer = Layer()
    for name in USR_MERGE:
        layer.symlink(name, f"usr/{name}")
    with tempfile.TemporaryDirectory() as folder:
        for archive in apt.download(packages, Path(folder)):
            with subprocess.Popen(
                ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
            ) as unpack:
                assert unpack.stdout is not None
                layer.merge(unpack.stdout, _place)
            if unpack.returncode:
                raise ClusterError(f"dpkg-deb cannot unpack {archive.name}")
    layer.file("etc/passwd", USERS.encode(), 0o644)
    layer.file("etc/group", GROUPS.encode(), 0o644)
    layer.folder("tmp", 0o1777)
    for name in ("proc", "sys", "dev", "run", "root"):
        layer.folder(name, 0o755)
    return layer.content()


def _place(name: str) -> str | None:
    """Where a package's file goes: top-level folders are links into usr; documentation stays out."""
    top, _, rest = name.partition("/")
    if top in USR_MERGE:
        if not rest:
            return None
        name = f"usr/{name}"
    return None if name.startswith(UNWANTED) else name


def _wheels_layer(lock: Path, python: str) -> bytes:
    """The locked wheels for the image's Python and C library, which need not be this host's."""
    platforms = [f"manylinux_2_{minor}_{os.uname().machine}" for minor in range(36, 4, -1)]
    platforms += [f"manylinux2014_{os.uname().machine}", "any"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*find_pip(), "install", "--quiet", "--target", folder, "--no-deps", "--require-hashes"]
        command += [
            "--only-binary=:all:",
            "--no-compile",
            "--implementation=cp",
            f"--python-version={python}",
        ]
        command += [f"--platform={platform}" for platform in platforms]
        run = subprocess.run(
            [*command, "-r", str(lock)], env=environment(), capture_output=True, text=True, timeout=900
        )
        if run.returncode:
            raise ClusterError(f"pip cannot fetch {lock.name}: {run.stderr.strip()}")
        shutil.rmtree(Path(folder) / "bin", ignore_errors=True)  # scripts with this host's interpreter
        layer = Layer()
        layer.tree(Path(folder), APPLICATION)
        return layer.content()


def _code_layer(application: Application, root: Path) -> bytes:
    layer = Layer()
    for source, target in application.sources:
        layer.tree(root / source, f"{APPLICATION}/{target}")
    layer.symlink("usr/local/bin/python3", "/usr/bin/python3")  # where the Dockerfiles' base has it
    script = root / IMAGES / application.command
    layer.file(f"usr/local/bin/{application.command}", script.read_bytes(), 0o755)
    return layer.content()


def _source_bytes(application: Application, root: Path) -> list[bytes]:
    found = [(root / IMAGES / application.command).read_bytes()]
    for source, target in application.sources:
        for path in sorted((root / source).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found += [f"{target}/{path.relative_to(root / source)}".encode(), path.read_bytes()]
    return found


def _cached(name: str, make: Callable[[], bytes]) -> Path:
    path = paths.cache_dir() / "images" / f"{name}.layer"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"making image layer {name}", flush=True)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(make())
        partial.replace(path)
    return path


def _python_of(base: Path) -> str:
    """The version of Python in a base layer, as "3.11"."""
    found = re.search(rb"usr/bin/python(3\.\d+)\x00", base.read_bytes())
    if found is None:
        raise ClusterError(f"no Python in {base}")
    return found[1].decode()


def _key(*parts: str | bytes) -> str:
    encoded = [part if isinstance(part, bytes) else part.encode() for part in (RECIPE, *parts)]
    digest = hashlib.sha256(json.dumps([hashlib.sha256(part).hexdigest() for part in encoded]).encode())
    return digest.hexdigest()[:12]


def write(target: Path, names: Sequence[str] = ()) -> list[Path]:
    """Copy archives of the named images (all by default) into a folder, as `test.tar`, `operator.tar`,
    `driver.tar`.
    """
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for image, archive in all_archives().items():
        name = image.rpartition("/")[2].partition(":")[0]
        if not names or name in names:
            written.append(Path(shutil.copy(archive, target / f"{name}.tar")))
    return written
