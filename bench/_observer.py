"""Sees when pods were bound and claims allocated, from a process of its own.

A watch of the benchmark's own is part of the load, so there are only two, and the one of pods selects those
that have a node. A server whose cores are all busy ends watches that cannot be served at once (a young
watch cache gives each watcher room for ten events); they are resumed where they stopped, as every informer
does, and how often is told.

Arguments: kubeconfig, namespace, resourceVersions of pods and claims to start from, number of pods. Says
``watching`` when both watches stand, then one line of JSON: ``bound`` and ``allocated`` by name, in seconds
of the monotonic clock (one clock for all processes of a machine), and ``resumed``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from sharing_affinity.runtime.client import Client, Login, NoAnswerError


class Seen:
    """When each object of one kind first was what is waited for."""

    def __init__(self, client: Client, path: str, selector: str, done: Callable[[Any], Any]) -> None:
        self.times: dict[str, float] = {}
        self.resumed = -1
        self.open = asyncio.Event()
        self._client, self._path, self._selector, self._done = client, path, selector, done

    async def follow(self, version: str, total: int) -> None:
        """Return when ``total`` objects have been seen."""
        while len(self.times) < total:
            self.resumed += 1
            params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
            if self._selector:
                params["fieldSelector"] = self._selector
            try:
                async with aclosing(self._client.watch(self._path, params, silence=600)) as stream:
                    async for event in stream:
                        self.open.set()
                        if event is None:
                            continue
                        found = event["object"]
                        if event["type"] == "ERROR":
                            raise RuntimeError(
                                f"watch of {self._path} from {version}: {found.get('message')}"
                            )
                        version = found["metadata"]["resourceVersion"]
                        if event["type"] != "DELETED" and self._done(found):
                            self.times.setdefault(found["metadata"]["name"], time.monotonic())
                            if len(self.times) >= total:
                                return
            except NoAnswerError:
                continue


async def main(kubeconfig: str, namespace: str, pods_from: str, claims_from: str, total: int) -> None:
    """Observe until ``total`` pods are bound and as many claims allocated."""
    async with Client(Login(kubeconfig)) as client:
        pods = Seen(client, f"/api/v1/namespaces/{namespace}/pods", "spec.nodeName!=", lambda pod: True)
        claims = Seen(
            client,
            f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims",
            "",
            lambda claim: (claim.get("status") or {}).get("allocation"),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.follow(pods_from, total))
            group.create_task(claims.follow(claims_from, total))
            await pods.open.wait()
            await claims.open.wait()
            print("watching", flush=True)
        answer = {
            "bound": pods.times,
            "allocated": claims.times,
            "resumed": pods.resumed + claims.resumed,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
