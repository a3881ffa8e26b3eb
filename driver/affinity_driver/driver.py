"""One running driver, put together: read claims, keep state, serve the kubelet, publish the pool.

The order of starting matters. State is brought in line before anything is served; the DRAPlugin listens
before the registration socket appears, since the kubelet dials it at once; slices are published when the
kubelet has accepted us, so that no device is offered that could not be prepared. Stopping is the reverse,
and what is published stays.

Two instances run side by side during an upgrade. The kubelet calls either; all state is read, judged and
written under locks that both respect. Only one publishes: the new one waits until the old one has stopped.
One that stops while another runs goes on serving for a while after it has left the kubelet's registry, for
calls that are on their way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import structlog

from sharing_affinity.api import Extractor

from . import status
from .cdi import CdiDirectory
from .claims.errors import BusyError, IncompatibleError, PrepareError
from .claims.read import read_claim
from .claims.resolve import Resolver
from .disk import Disk
from .events import DriverEvents
from .hardware import MockDevices, boot_id
from .kube import Api, ApiError
from .kubeletplugin.health import SERVICES, HealthService
from .kubeletplugin.registrar import Registrar
from .kubeletplugin.server import UnixServer
from .kubeletplugin.service import SERVICE_V1, ClaimRef, DRAPlugin
from .kubeletplugin.sockets import (
    REGISTERED,
    Instance,
    LiveInstance,
    live_instances,
    plugin_socket,
    registration_socket,
)
from .metrics import Metrics
from .profiles import ProfileOptions, find
from .publish.controller import Publisher, PublisherOptions
from .publish.desired import Device, Fence, Pool
from .state.device_state import LOCK_FILE, DeviceState, PreparedDevice
from .state.lock import KeyedLocks
from .state.model import NodeState, PreparedClaim
from .state.sweep import Sweeper
from .statuswriter import StatusWriter

STATUS_GRACE = 3.0
"""Seconds that a stop waits for statuses to be written."""
BATON_POLL = 0.2
HANDOVER = 3.0
"""Seconds in which the kubelet surely notices that a registration socket is gone (it looks once a second)."""
THREADS = 256
"""gRPC calls in progress: one per pod that is starting or ending on the node, far more than a node has."""


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """All that can be chosen on the command line. Folders are as the kubelet sees them.

    ``profile`` is what ``profiles.find`` takes.
    """

    profile: str
    node: str
    kubelet_root: Path
    cdi: Path
    driver: str | None = None
    instance: str = "driver"
    fence: Fence = Fence.TAINT
    affinity: bool = True
    publish: bool = True
    wait_for_kubelet: bool = True
    profile_options: ProfileOptions = field(default_factory=ProfileOptions)
    publisher: PublisherOptions = field(default_factory=PublisherOptions)
    grace: float = 10.0
    sweep_seconds: float = 600.0


class _Watchers:
    """``PublishObserver`` and ``StatusObserver``: numbers go to the metrics, problems to events."""

    def __init__(self, metrics: Metrics, events: DriverEvents) -> None:
        self.published = metrics.published
        self.publish_failed = metrics.publish_failed
        self.dropped_fields = metrics.dropped_fields
        self.status = metrics.status
        self.problem = events.warn
        self.claim_problem = events.warn_claim


class Driver:
    """A driver for one kind of hardware on one node."""

    def __init__(self, options: DriverOptions, api: Api, disk: Disk | None = None) -> None:
        self.options = options
        disk = disk or Disk()
        kind = find(options.profile)
        self.name = options.driver or kind.driver
        self.directory = options.kubelet_root / "plugins" / self.name
        boot = boot_id()
        seconds = options.profile_options.program_seconds
        hardware = MockDevices(
            self.directory / "hardware",
            boot,
            kind.program_seconds if seconds is None else seconds,
            kind.survives_reboot,
            disk,
        )
        self.profile = kind(options.profile_options, hardware)
        self._api = api
        self._cdi = CdiDirectory(options.cdi, self.name, kind.name, disk)
        self.state = DeviceState(self.directory, self.profile, self._cdi, boot, disk)
        self._resolver = Resolver(self.name, options.node, self.profile)
        keys = [extractor.name for extractor in self.profile.extractors()]
        self.metrics = Metrics(self.name, keys)
        self._events = DriverEvents(api, options.node, self.name)
        watchers = _Watchers(self.metrics, self._events)
        self._publisher = Publisher(api, self._pool, watchers, options.publisher)
        self._status = StatusWriter(
            api, self.name, options.node, self.state.snapshot, self.profile.report, watchers
        )
        self._publishing = threading.Event()
        self._baton = KeyedLocks(self.directory / LOCK_FILE, "publish")
        self._baton_held: int | None = None
        self._stopping = threading.Event()
        self._beginning = threading.Lock()
        self._sweeper = Sweeper(api, self.name, self.state.snapshot, self._sweep_away, options.sweep_seconds)
        registry = options.kubelet_root / "plugins_registry"
        self.endpoint = plugin_socket(self.directory, options.instance)
        self.registration = registration_socket(registry, self.name, options.instance)
        self._instance = Instance(self.directory, options.instance, [self.endpoint, self.registration])
        self.registrar = Registrar(
            self.name, self.endpoint, [SERVICE_V1, *SERVICES], self._registered, self._refused
        )
        self.plugin = DRAPlugin(self, self.metrics)
        self._health = HealthService(options.node, self._faults, self._publisher.wake)
        self._servers: list[UnixServer] = []
        self._log = structlog.get_logger("affinity_driver")

    def start(self) -> None:
        """Start everything. Raises OSError or RuntimeError where folders or sockets cannot be had."""
        for folder in (self.directory, self.registration.parent, self.options.cdi):
            folder.mkdir(parents=True, exist_ok=True)
        swept = self._instance.claim()
        if swept:
            self._log.info("removed sockets of killed instances", sockets=[str(path) for path in swept])
        prepared = self.state.start(frozenset(self.devices()))
        self._count(prepared)
        if self.state.recovered:
            self._warn(
                "CheckpointSetAside",
                f"driver {self.name}: the checkpoint in {self.directory} cannot be read and was set aside; "
                "prepared claims were recovered from CDI files",
            )
        plugin = UnixServer(self.endpoint, [*self.plugin.handlers(), *self._health.handlers()], THREADS)
        registrar = UnixServer(self.registration, self.registrar.handlers(), 4)
        for server in (plugin, registrar):
            server.start()
            self._servers.append(server)
        self._log.info(
            "serving", driver=self.name, node=self.options.node, registration=str(self.registration)
        )
        threading.Thread(target=self._resolver.warm_up, name="warm-up", daemon=True).start()
        self._health.start()
        self._sweeper.start()
        self._status.start(prepared)
        if not self.options.wait_for_kubelet:
            self._publish()

    def stop(self) -> None:
        """Stop: no new calls, work in progress finished, sockets removed; slices and prepared claims stay."""
        # Publishing has begun by now, or never will: the kubelet may have accepted us this moment.
        with self._beginning:
            self._stopping.set()
        self._publisher.stop()
        self._sweeper.stop()
        self._publisher.join(self.options.grace)
        if self._baton_held is not None:
            os.close(self._baton_held)
        # The registrar first: from then on the kubelet looks for somebody else.
        *plugin, registrar = self._servers
        registrar.stop(self.options.grace)
        if len(live_instances(self.directory)) > 1:
            self._log.info("another instance takes over", seconds=HANDOVER)
            time.sleep(HANDOVER)
        self._health.close()
        for server in plugin:
            server.stop(self.options.grace)
        if not self.plugin.drain(self.options.grace):
            self._log.warning("work in progress is left to the next start")
        self._status.stop(STATUS_GRACE)
        self._instance.release()

    def unhealthy(self) -> str:
        """Why it should be restarted, "" when it answers at its own sockets."""
        try:
            status.call(LiveInstance(self.endpoint, self.registration, ""), timeout=5)
        except grpc.RpcError as error:
            return f"no answer at the driver's own sockets: {error.code().name}"
        return ""

    def unready(self) -> str:
        """Why it cannot replace another instance, "" when the kubelet has accepted it."""
        if self.registrar.problem:
            return f"the kubelet refuses it: {self.registrar.problem}"
        return "" if self.registrar.registered.is_set() else "no kubelet has accepted it yet"

    def devices(self) -> dict[str, Device]:
        """The pool's devices by name."""
        return {device.name: device for device in self.profile.devices()}

    def _published(self) -> Sequence[Extractor]:
        """The extractors to judge claims by; none for the profile's own. Raises PrepareError."""
        try:
            return self._publisher.extractors() if self.options.publish else ()
        except ApiError as error:
            raise PrepareError(f"the published extractors cannot be read: {error}") from error

    def _faults(self) -> dict[str, str]:
        return {name: self.profile.fault(name) for name in self.devices()}

    def _offered(self) -> tuple[Device, ...]:
        """The devices to publish, those with a fault tainted: health alone keeps no pod away."""
        unhealthy = {"key": f"{self.name}/unhealthy", "effect": "NoSchedule"}
        faults = self._faults()
        return tuple(
            replace(device, taints=(*device.taints, unhealthy)) if faults[name] else device
            for name, device in self.devices().items()
        )

    def prepare(self, claim: ClaimRef, seconds: float) -> Sequence[PreparedDevice]:
        """See ``kubeletplugin.service.Plugin``."""
        body = read_claim(self._api, claim.namespace, claim.name, claim.uid, seconds)
        devices = self.devices()
        known = self.state.snapshot().claims.get(claim.uid)
        wanted = self._resolver.resolve(body, frozenset(devices), self._published, known)
        try:
            prepared = self.state.prepare(wanted, devices)
        except PrepareError as error:
            if isinstance(error, IncompatibleError):
                self.metrics.rejected(error.key)
            self._status.refused(wanted, error)
            raise
        self._recount()
        self._status.changed(claim.namespace, claim.name, claim.uid)
        return prepared

    def unprepare(self, claim: ClaimRef) -> None:
        """See ``kubeletplugin.service.Plugin``."""
        try:
            self.state.unprepare(claim.uid)
        finally:
            self._recount()
        self._status.changed(claim.namespace, claim.name, claim.uid)

    def _sweep_away(self, claim: PreparedClaim) -> None:
        self.state.unprepare(claim.uid, seen=claim)
        self._recount()

    def _recount(self) -> None:
        with suppress(BusyError):  # a number for people is not worth another's error
            self._count(self.state.snapshot())

    def _count(self, state: NodeState) -> None:
        self.metrics.prepared(state, self.state.recovered)

    def _registered(self) -> None:
        self._instance.tell(REGISTERED)
        self._publish()

    def _refused(self, error: str) -> None:
        self._instance.tell(error or "refused")
        self._warn("RegistrationRefused", f"the kubelet refuses driver {self.name}: {error}")

    def _warn(self, reason: str, message: str) -> None:
        """An event from where nothing may block."""
        threading.Thread(target=self._events.warn, args=(reason, message), name="event", daemon=True).start()

    def _publish(self) -> None:
        """Start publishing, once; later registrations (the kubelet restarted and wiped) ask for a pass at
        once.
        """
        if not self.options.publish:
            return
        if self._publishing.is_set():
            self._publisher.wake()
            return
        self._publishing.set()
        threading.Thread(target=self._publish_alone, name="baton", daemon=True).start()

    def _publish_alone(self) -> None:
        """Publish once no other instance does."""
        told = False
        while (baton := self._baton.take("slices")) is None:
            if not told:
                self._log.info("another instance publishes, waiting for its end")
                told = True
            if self._stopping.wait(BATON_POLL):
                return
        with self._beginning:
            if self._stopping.is_set():
                os.close(baton)
                return
            self._baton_held = baton
            self._publisher.start()

    def _pool(self) -> Pool:
        """What to publish now. Raises ApiError while the Node cannot be read.

        The Node is read each time: one that was deleted and registered anew has another uid, and slices of
        an owner that is gone are collected as fast as they are written.
        """
        node = self._api.get(f"/api/v1/nodes/{self.options.node}")
        return Pool(
            driver=self.name,
            name=self.options.node,
            node=self.options.node,
            node_uid=node["metadata"]["uid"],
            devices=self._offered(),
            extractors=tuple(self.profile.extractors()) if self.options.affinity else (),
            fence=self.options.fence if self.options.affinity else Fence.NONE,
        )


def instance_name() -> str:
    """This process's name among instances: the pod's UID, else something no other process has."""
    return os.environ.get("POD_UID") or f"{os.getpid()}-{time.monotonic_ns():x}"
