"""What really happened to the claims, in the server's own order, and whether it was ever wrong.

A `History` watches the claims of a namespace directly on the API server, beside any proxy. `violations`
replays it: at no point may a device hold two key maps, or more than its capacity.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

Json = dict[str, Any]
Device = tuple[str, str, str]
Keys = tuple[tuple[str, str], ...]


class History:
    """``with History(admin_kubeconfig, namespace) as history: ...``"""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        if "client-certificate" in user:
            self._context.load_cert_chain(user["client-certificate"], user["client-key"])
        self._path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._closing = False
        self._connection: http.client.HTTPSConnection | None = None
        self._thread = threading.Thread(target=self._watch, name="history", daemon=True)
        #: (resourceVersion, type, claim) in order; the objects of the first list come as ADDED.
        self.events: list[tuple[int, str, Json]] = []
        self.problem = ""

    def __enter__(self) -> History:
        listed = self._get(self._path)
        for item in listed["items"]:
            self.events.append((int(item["metadata"]["resourceVersion"]), "ADDED", item))
        self._version = listed["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.close()
        self._thread.join(5)

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._address.hostname or "", self._address.port
        return http.client.HTTPSConnection(host, port, context=self._context, timeout=3600)

    def _get(self, path: str) -> Json:
        connection = self._connect()
        connection.request("GET", path)
        found: Json = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def _watch(self) -> None:
        try:
            self._connection = self._connect()
            self._connection.request(
                "GET", f"{self._path}?watch=1&timeoutSeconds=3600&resourceVersion={self._version}"
            )
            for line in self._connection.getresponse():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RuntimeError(str(event["object"]))
                version = int(event["object"]["metadata"]["resourceVersion"])
                self.events.append((version, event["type"], event["object"]))
        except (OSError, ValueError, RuntimeError, http.client.HTTPException, AttributeError) as error:
            if not self._closing:
                self.problem = str(error)

    def violations(self, driver: str, capacity: int, keys: Callable[[Json, Json], Keys]) -> list[str]:
        """Every moment at which a device of ``driver`` was wrong. ``keys(claim, result)``: the key map by
        which the result was allocated; ``capacity``: slots of each device."""
        if self.problem:
            return [f"the history is not complete: {self.problem}"]
        found: list[str] = []
        holding: dict[str, list[tuple[Device, Keys, int]]] = {}
        last = 0
        for version, kind, claim in self.events:
            if version < last and kind != "ADDED":
                found.append(f"events out of order at {version}")
            last = max(last, version)
            uid = claim["metadata"]["uid"]
            holding.pop(uid, None)
            if kind == "DELETED":
                continue
            allocation = (claim.get("status") or {}).get("allocation") or {}
            entries = [
                (
                    (result["driver"], result["pool"], result["device"]),
                    keys(claim, result),
                    int((result.get("consumedCapacity") or {}).get("slots", 0)),
                )
                for result in (allocation.get("devices") or {}).get("results") or []
                if result["driver"] == driver
            ]
            if entries:
                holding[uid] = entries
            found += _check(version, holding, capacity)
        return found


def _check(
    version: int, holding: Mapping[str, Iterable[tuple[Device, Keys, int]]], capacity: int
) -> list[str]:
    maps: dict[Device, set[Keys]] = defaultdict(set)
    used: dict[Device, int] = defaultdict(int)
    for entries in holding.values():
        for device, key_map, slots in entries:
            maps[device].add(key_map)
            used[device] += slots
    found = [
        f"at {version}: {'/'.join(device)} holds {sorted(found)}"
        for device, found in maps.items()
        if len(found) > 1
    ]
    found += [
        f"at {version}: {'/'.join(d)} has {n} of {capacity} slots used"
        for d, n in used.items()
        if n > capacity
    ]
    return found


def subnet_of(claim: Json, result: Json) -> Keys:
    """The subnet by which a result of the tests' NIC driver was allocated, from the allocation's own
    configs."""
    request = result["request"].partition("/")[0]
    for config in claim["status"]["allocation"]["devices"].get("config") or []:
        opaque = config.get("opaque") or {}
        if opaque.get("driver") == result["driver"] and (
            not config.get("requests") or request in config["requests"]
        ):
            subnet = opaque["parameters"].get("subnet")
            if subnet:
                return (("subnet", subnet),)
    return ()
