"""``status`` and ``probe``: looking at a driver from beside it, without the API server.

``status`` reads the checkpoint; it names the claims that hold a device, which a rejection never does.
``probe`` does what the kubelet would: GetInfo through the registration socket, an empty prepare through the
plugin's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc

from .disk import Disk
from .json_types import JsonObject
from .kubeletplugin.sockets import live_sockets
from .proto import dra_v1_pb2 as dra
from .proto import pluginregistration_v1_pb2 as registration
from .state.checkpoint import CheckpointError, CheckpointFile
from .state.model import NodeState


def describe(state: NodeState) -> JsonObject:
    """The prepared claims by device, as JSON."""
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
    return {"bootID": state.boot_id, "devices": {name: devices[name] for name in sorted(devices)}}


def show(directory: Path, output: str) -> int:
    """Print what is prepared; exit code 0, or 3 where the checkpoint cannot be read."""
    try:
        state = CheckpointFile(directory / "checkpoint.json", Disk()).load() or NodeState("")
    except (OSError, CheckpointError) as error:
        print(f"affinity-driver: {directory / 'checkpoint.json'}: {error}", file=sys.stderr)
        return 3
    found = describe(state)
    if output == "json":
        print(json.dumps(found, indent=2))
        return 0
    rows = [("DEVICE", "KEYS", "CLAIM", "REQUEST", "SHARE", "PHASE")]
    for device, shares in found["devices"].items():
        for share in shares:
            keys = ",".join(f"{key}={value}" for key, value in share["keys"].items()) or "-"
            claim = f"{share['namespace']}/{share['claim']}"
            rows.append((device, keys, claim, share["request"], share["shareID"] or "-", share["phase"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def probe(directory: Path, timeout: float) -> int:
    """Call the driver through its sockets; exit code 0 when it answers, 1 when not."""
    sockets = live_sockets(directory)
    if not sockets:
        print(f"affinity-driver: no running instance in {directory}", file=sys.stderr)
        return 1
    for endpoint, registrar in sockets:
        try:
            with grpc.insecure_channel(f"unix:{registrar}") as channel:
                info = channel.unary_unary(
                    "/pluginregistration.Registration/GetInfo",
                    request_serializer=registration.InfoRequest.SerializeToString,
                    response_deserializer=registration.PluginInfo.FromString,
                )(registration.InfoRequest(), timeout=timeout)
            with grpc.insecure_channel(f"unix:{endpoint}") as channel:
                channel.unary_unary(
                    f"/{dra.DESCRIPTOR.services_by_name['DRAPlugin'].full_name}/NodePrepareResources",
                    request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
                    response_deserializer=dra.NodePrepareResourcesResponse.FromString,
                )(dra.NodePrepareResourcesRequest(), timeout=timeout)
        except grpc.RpcError as error:
            print(f"affinity-driver: {endpoint}: {error}", file=sys.stderr)
            return 1
        print(f"{info.name} answers at {info.endpoint}")
    return 0
