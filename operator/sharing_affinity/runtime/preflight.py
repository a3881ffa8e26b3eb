"""Before anything else: can this server carry the product, and may we do what we must?

Feature gates cannot be asked for without special rights, but their effect can be seen: a server whose gate
is off silently drops the fields that belong to it. A claim is created with ``dryRun=All`` in the operator's
own namespace and compared with what comes back; nothing is stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import structlog

from sharing_affinity.api import names
from sharing_affinity.runtime.client import ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import FEEDS

FLOOR: Final = (1, 36)

#: Field of the probe that its gate's absence removes, by gate.
_PROBED: Final = {
    "DRAConsumableCapacity": ("spec", "devices", "requests", 0, "exactly", "capacity"),
    "DRADeviceTaints": ("spec", "devices", "requests", 0, "exactly", "tolerations"),
}

_NEEDED: Final = (
    *(
        ("list", *kind.group_version.rpartition("/")[::2], kind.plural, "")
        for kind in FEEDS
        if not kind.optional
    ),
    ("patch", "resource.k8s.io", "v1", "resourceclaims", ""),
    ("update", "resource.k8s.io", "v1", "resourceclaims", ""),
    ("update", "resource.k8s.io", "v1", "resourceclaims", "status"),
    ("update", "resource.k8s.io", "v1", "resourceclaims", "binding"),
    ("patch", names.GROUP, names.VERSION, names.SLICE_PLURAL, "status"),
    ("patch", names.GROUP, names.VERSION, names.POOL_PLURAL, "status"),
)


_PAUSES: Final = (0.2, 0.5, 1.0, 2.0)

log = structlog.get_logger("preflight")


class UnfitServerError(Exception):
    """The server cannot carry the product, or we lack permissions; one problem per line."""


async def check(client: Client, namespace: str) -> str:
    """Return the server's version, or raise `UnfitServerError` naming everything that is in the way.

    Nothing is changed by it, so a request whose answer got lost is simply made again, a few times: one cut
    connection must not end a replica that starts. A server that cannot be reached at all is told at once.
    """
    for pause in _PAUSES:
        try:
            return await _check(client, namespace)
        except NoAnswerError as error:
            if not error.sent:
                raise
            log.warning("asking the API server again", problem=str(error))
        await asyncio.sleep(pause)
    return await _check(client, namespace)


async def _check(client: Client, namespace: str) -> str:
    version = await client.request("GET", "/version")
    problems = [*version_problems(version)]
    if not problems:
        problems += await _gates(client, namespace)
        problems += await _permissions(client)
    if problems:
        raise UnfitServerError("\n".join(problems))
    return str(version.get("gitVersion", ""))


def version_problems(version: Mapping[str, Any]) -> list[str]:
    """What is wrong with the answer of ``/version``."""
    numbers = [re.match(r"\d+", str(version.get(part, ""))) for part in ("major", "minor")]
    if None in numbers:
        return []  # A build without a version; the gates tell.
    found = tuple(int(number[0]) for number in numbers if number is not None)
    if found < FLOOR:
        return [
            f"the API server is Kubernetes {found[0]}.{found[1]}; {FLOOR[0]}.{FLOOR[1]} or newer is needed "
            "(DRAConsumableCapacity on by default)"
        ]
    return []


def probe(namespace: str) -> dict[str, Any]:
    """The claim that is created dry."""
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"generateName": "gate-probe-", "namespace": namespace},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "probe",
                        "exactly": {
                            "deviceClassName": "gate-probe.sharingaffinity.dev",
                            "capacity": {"requests": {"probe": "1"}},
                            "tolerations": [
                                {
                                    "key": "sharingaffinity.dev/gate-probe",
                                    "operator": "Exists",
                                    "effect": "NoSchedule",
                                }
                            ],
                        },
                    }
                ]
            }
        },
    }


def dropped_gates(answer: Any) -> list[str]:
    """Gates whose fields are missing from the server's answer to the probe."""
    off = []
    for gate, path in _PROBED.items():
        here = answer
        for step in path:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                off.append(gate)
                break
    return off


async def _gates(client: Client, namespace: str) -> list[str]:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    try:
        answer = await client.request("POST", path, params={"dryRun": "All"}, body=probe(namespace))
    except ApiError as error:
        return [f"feature gates cannot be checked: {error}"]
    return [
        f"feature gate {gate} is off in the API server: it drops fields this operator lives on"
        for gate in dropped_gates(answer)
    ]


async def _permissions(client: Client) -> list[str]:
    async def missing(verb: str, group: str, version: str, resource: str, subresource: str) -> str | None:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "version": version,
                    "resource": resource,
                    "subresource": subresource,
                }
            },
        }
        answer = await client.request(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review
        )
        if answer["status"].get("allowed"):
            return None
        what = f"{resource}/{subresource}" if subresource else resource
        return f"missing permission: {verb} {what}{'.' + group if group else ''} in the whole cluster"

    answers = await asyncio.gather(*(missing(*needed) for needed in _NEEDED))
    return [answer for answer in answers if answer is not None]
