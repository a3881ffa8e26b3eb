"""The node's side: folders, sockets, running instances, checkpoint and CDI files. Needs no API server."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc

from affinity_driver.cdi import CdiDirectory
from affinity_driver.disk import Disk
from affinity_driver.hardware import boot_id
from affinity_driver.kubeletplugin.sockets import (
    LiveInstance,
    SocketPathError,
    live_instances,
    plugin_socket,
    registration_socket,
)
from affinity_driver.state.checkpoint import CheckpointError, CheckpointFile
from affinity_driver.state.model import NodeState, Phase
from affinity_driver.status import call

from .findings import Finding, ok, unsure, wrong

POD_UID = "0" * 36
"""As long as a pod's UID, which names the sockets."""
AS_ROOT = "run the doctor as root, in the driver's pod or on the node"


def look(kubelet_root: Path, driver: str, cdi: CdiDirectory) -> Iterator[Finding]:
    """All findings about the node."""
    registry, directory = kubelet_root / "plugins_registry", kubelet_root / "plugins" / driver
    yield _folder("kubelet folders", registry, "is --kubelet-root-dir the kubelet's --root-dir, and mounted?")
    yield _folder("plugin folder", directory, "the driver makes it at its first start; is plugins/ mounted?")
    yield _names(registry, directory, driver)
    try:
        instances = live_instances(directory) if directory.is_dir() else []
    except OSError as error:
        yield wrong("driver", f"its instances cannot be looked for: {error}", AS_ROOT)
    else:
        yield from _instances(instances, driver)
        yield from _stale(registry, directory, driver, instances)
    yield _folder(
        "CDI directory",
        cdi.path,
        "mount the runtime's CDI directory writable, or name another with --cdi-dir (a runtime reads "
        "/etc/cdi and /var/run/cdi unless told otherwise)",
    )
    yield from _state(directory, cdi)


def _folder(check: str, folder: Path, remedy: str) -> Finding:
    """Whether files can be made in a folder, found out by making one: root passes every other question."""
    trial = folder / f".affinity-driver-doctor-{os.getpid()}"
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        return wrong(check, f"{folder} cannot be written to: {error.strerror}", remedy)
    return ok(check, f"{folder} can be written to")


def _names(registry: Path, directory: Path, driver: str) -> Finding:
    try:
        registration_socket(registry, driver, POD_UID)
        plugin_socket(directory, POD_UID)
    except SocketPathError as error:
        return wrong("socket names", str(error), "use a shorter --kubelet-root-dir or driver name")
    return ok("socket names", "fit the 107 bytes that a socket's path may have")


def _instances(instances: list[LiveInstance], driver: str) -> Iterator[Finding]:
    if not instances:
        yield wrong(
            "driver", f"no instance of {driver} runs on this node", "start it; its log says why it ended"
        )
    for instance in instances:
        try:
            call(instance, timeout=5)
        except grpc.RpcError as error:
            yield wrong(
                "driver",
                f"the instance at {instance.endpoint} does not answer: {error.code().name}",
                "restart it, and send its log to its authors",
            )
            continue
        yield ok("driver", f"answers at {instance.endpoint}")
        if instance.registration == "registered":
            yield ok("registration", "the kubelet has accepted the driver")
        elif instance.registration:
            yield wrong(
                "registration",
                f"the kubelet refuses the driver: {instance.registration}",
                "another driver of this name, or a kubelet older than 1.34; the kubelet's log says more",
            )
        else:
            yield wrong(
                "registration",
                f"no kubelet has asked at {instance.registrar} yet",
                "does the kubelet run, and is this folder its own plugins_registry (the same path inside and "
                "outside of the pod)?",
            )


def _stale(registry: Path, directory: Path, driver: str, instances: list[LiveInstance]) -> Iterator[Finding]:
    """Sockets that nobody serves: the kubelet calls those in its registry for ever."""
    served = {path for instance in instances for path in (instance.endpoint, instance.registrar)}
    found = [*directory.glob("*.sock"), *registry.glob(f"{driver}-*.sock")]
    stale = [path for path in sorted(found) if path not in served and _is_dead(path)]
    if stale:
        yield wrong(
            "sockets",
            f"nobody serves {', '.join(map(str, stale))}",
            "delete them; a driver that starts removes those of instances it knows were killed",
        )
    else:
        yield ok("sockets", "no stale ones")


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False


def _state(directory: Path, cdi: CdiDirectory) -> Iterator[Finding]:
    path = directory / "checkpoint.json"
    try:
        state = CheckpointFile(path, Disk()).load() or NodeState(boot_id())
    except OSError as error:
        yield wrong("checkpoint", f"cannot be read: {error}", AS_ROOT)
        return
    except CheckpointError as error:
        yield wrong(
            "checkpoint",
            f"{path}: {error}",
            "restart the driver: it sets the file aside and takes the prepared claims from their CDI files",
        )
        return
    aside = len(list(directory.glob("checkpoint.json.bad.*")))
    if aside:
        yield unsure(
            "checkpoint",
            f"{len(state.claims)} claims; {aside} earlier files were set aside",
            f"send {path}.bad.* to the driver's authors, then delete them",
        )
    else:
        yield ok("checkpoint", f"{len(state.claims)} claims")
    try:
        files = cdi.claims()
    except OSError:
        return  # told above
    done = {uid for uid, claim in state.claims.items() if claim.phase is Phase.COMPLETED}
    missing, unknown = done - files, files - state.claims.keys()
    if missing or unknown:
        yield wrong(
            "CDI files",
            f"{len(missing)} prepared claims have none, {len(unknown)} belong to no prepared claim",
            "restart the driver, or prepare any claim: it brings them in line",
        )
    else:
        yield ok("CDI files", f"{len(files)}, as the checkpoint says")
    if state.boot_id != boot_id():
        yield unsure(
            "boot",
            "the checkpoint is of an earlier boot",
            "start the driver; claims are set up again on request",
        )
