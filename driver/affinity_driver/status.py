"""``status`` and ``probe``: looking at a driver from beside it, without the API server.

``status`` reads the checkpoint and the hardware; it names the claims that hold a device, which a rejection
never does.
``probe`` does what the kubelet would: GetInfo through the registration socket, an empty prepare through the
plugin's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from sharing_affinity.api import keys

from .disk import Disk
from .hardware import MockDevices
from .json_types import JsonObject
from .kubeletplugin.sockets import REGISTERED, LiveInstance, live_instances
from .proto import dra_v1_pb2 as dra
from .proto import pluginregistration_v1_pb2 as registration
from .state.checkpoint import CheckpointError, CheckpointFile
from .state.model import NodeState


def describe(state: NodeState, hardware: MockDevices | None = None) -> JsonObject:
    """The prepared claims by device, as JSON; with ``hardware`` also what it is set up for and its faults."""
    devices: JsonObject = {}
    for claim in sorted(state.claims.values(), key=lambda claim: (claim.namespace, claim.name, claim.uid)):
        for share in claim.shares:
            devices.setdefault(share.device, []).append(
                {
                    "namespace": claim.namespace,
                    "claim": claim.name,
                    "uid": claim.uid,
                    "request": share.request,
                    "shareID": share.share_id,
                    "keys": dict(share.keys),
                    "adminAccess": share.admin,
                    "phase": claim.phase.value,
                }
            )
    found: JsonObject = {
        "bootID": state.boot_id,
        "devices": {name: devices[name] for name in sorted(devices)},
    }
    if hardware is not None:
        found["hardware"] = {
            name: {
                "lock": _lock(state, name),
                "programmed": hardware.values(name),
                "fault": hardware.fault(name),
            }
            for name in sorted(set(devices) | hardware.known())
        }
    return found


def _lock(state: NodeState, device: str) -> JsonObject | None:
    """The keys its holders agree on; None where it has none."""
    holders = state.holders(device)
    return dict(holders[0][1].keys) if holders else None


def show(directory: Path, output: str, hardware: MockDevices) -> int:
    """Print what is prepared; exit code 0, or 3 where the checkpoint cannot be read."""
    try:
        state = CheckpointFile(directory / "checkpoint.json", Disk()).load() or NodeState("")
    except (OSError, CheckpointError) as error:
        print(f"affinity-driver: {directory / 'checkpoint.json'}: {error}", file=sys.stderr)
        return 3
    found = describe(state, hardware)
    if output == "json":
        print(json.dumps(found, indent=2))
        return 0
    _table(
        ("DEVICE", "LOCK", "HOLDERS", "PROGRAMMED", "FAULT"),
        [
            (
                device,
                _pairs(seen["lock"]),
                str(len(state.holders(device))),
                _pairs(seen["programmed"]),
                seen["fault"] or "-",
            )
            for device, seen in found["hardware"].items()
        ],
    )
    print()
    _table(
        ("DEVICE", "KEYS", "CLAIM", "REQUEST", "SHARE", "PHASE"),
        [
            (
                device,
                _pairs(share["keys"]),
                f"{share['namespace']}/{share['claim']}",
                share["request"],
                share["shareID"] or "-",
                share["phase"],
            )
            for device, shares in found["devices"].items()
            for share in shares
        ],
    )
    return 0


def _pairs(values: Mapping[str, str] | None) -> str:
    return keys.render(tuple((values or {}).items())) or "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def probe(directory: Path, timeout: float, name: str | None = None, registered: bool = False) -> int:
    """Call the driver through its sockets; exit code 0 when it answers, 1 when not.

    Of several instances of an upgrade only the one of that name counts, where given: an instance must not be
    restarted for another's trouble. With ``registered``, the kubelet must have accepted it too.
    """
    instances = live_instances(directory, name)
    if not instances:
        print(f"affinity-driver: no running instance in {directory}", file=sys.stderr)
        return 1
    for instance in instances:
        try:
            info = call(instance, timeout)
        except grpc.RpcError as error:
            print(f"affinity-driver: {instance.endpoint}: {error}", file=sys.stderr)
            return 1
        if registered and instance.registration != REGISTERED:
            print(
                f"affinity-driver: not registered: {instance.registration or 'no word yet'}", file=sys.stderr
            )
            return 1
        print(f"{info.name} answers at {info.endpoint}")
    return 0


def call(instance: LiveInstance, timeout: float) -> registration.PluginInfo:
    """GetInfo and an empty prepare, as the kubelet would. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{instance.registrar}") as channel:
        info: registration.PluginInfo = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=registration.InfoRequest.SerializeToString,
            response_deserializer=registration.PluginInfo.FromString,
        )(registration.InfoRequest(), timeout=timeout)
    with grpc.insecure_channel(f"unix:{instance.endpoint}") as channel:
        channel.unary_unary(
            f"/{dra.DESCRIPTOR.services_by_name['DRAPlugin'].full_name}/NodePrepareResources",
            request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodePrepareResourcesResponse.FromString,
        )(dra.NodePrepareResourcesRequest(), timeout=timeout)
    return info
