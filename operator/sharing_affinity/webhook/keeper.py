"""Keeps the certificate in a Secret all replicas share, and the API server trusting its authority.

Order of a renewal: first the configuration trusts the new authority beside the old, then, after a moment for
every API server to hear of it, the Secret changes hands, and each replica shows what it finds there. Two
replicas that renew at once are told apart by the Secret's resourceVersion: the loser takes the winner's.

The Secret and the configuration are shipped empty; the right to change these two by name is all this needs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from sharing_affinity.runtime.client import ApiError, Client, NoAnswerError
from sharing_affinity.runtime.kinds import Kind
from sharing_affinity.webhook import certificates
from sharing_affinity.webhook.certificates import Material

SECRETS: Final = Kind("Secret", "v1", "secrets", namespaced=True)
CONFIGURATIONS: Final = Kind(
    "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"
)
STRATEGIC: Final = "application/strategic-merge-patch+json"

log = structlog.get_logger("certificates")


class Keeper:
    """`once` makes everything as it should be, `run` does so for ever; ``show`` gets each new
    certificate."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        hosts: Sequence[str],
        lifetime: datetime.timedelta,
        show: Callable[[Material], None],
        wall: Callable[[], datetime.datetime],
        settle: float = 2.0,
    ) -> None:
        self._client = client
        self._secret = SECRETS.item(namespace, secret)
        self._configuration = CONFIGURATIONS.item("", configuration)
        self._hosts, self._lifetime = hosts, lifetime
        self._show, self._wall, self._settle = show, wall, settle
        self._shown: Material | None = None
        self._untold = True

    async def run(self, period: float) -> None:
        """Look every ``period`` seconds. What cannot be reached now is tried again then."""
        while True:
            await asyncio.sleep(period)
            try:
                await self.once()
            except (ApiError, NoAnswerError) as error:
                log.warning("not looked after", problem=str(error))

    async def once(self) -> None:
        """Renew if due, show what the Secret holds, have it trusted. Raises `ApiError`, `NoAnswerError`."""
        material = await self._current()
        if material != self._shown:
            self._show(material)
            self._shown = material
            log.info("serving", expires=material.expires.isoformat())
        await self._trust(material.authorities)

    async def _current(self) -> Material:
        for _ in range(5):
            stored = await self._client.request("GET", self._secret)
            found = read(stored)
            why = certificates.due(found, self._hosts, self._wall(), self._lifetime)
            if found is not None and not why:
                return found
            log.info("a new certificate is needed", because=why)
            made = certificates.make(self._hosts, self._wall(), self._lifetime, found)
            await self._trust(made.authorities)
            await asyncio.sleep(self._settle)
            try:
                await self._client.request("PUT", self._secret, body={**stored, "data": data(made)})
            except ApiError as error:
                if error.status != 409:
                    raise
                continue  # another replica was quicker
            return made
        raise ApiError(409, "Conflict", "the Secret of the certificate changes all the time")

    async def _trust(self, authorities: bytes) -> None:
        """Put the bundle into every webhook of the configuration."""
        try:
            found = await self._client.request("GET", self._configuration)
        except ApiError as error:
            if error.status != 404:
                raise
            if self._untold:
                log.warning(
                    "not asked by the API server: there is no configuration", path=self._configuration
                )
                self._untold = False
            return
        bundle = base64.b64encode(authorities).decode()
        stale = [
            {"name": webhook["name"], "clientConfig": {"caBundle": bundle}}
            for webhook in found.get("webhooks") or []
            if webhook["clientConfig"].get("caBundle") != bundle
        ]
        if stale:
            await self._client.request(
                "PATCH",
                self._configuration,
                params={"fieldManager": "sharing-affinity-webhook"},
                body={"webhooks": stale},
                content_type=STRATEGIC,
            )


def read(secret: Mapping[str, Any]) -> Material | None:
    """What a Secret holds, None when it is (partly) empty."""
    content = secret.get("data") or {}
    try:
        values = [
            base64.b64decode(content.get(name) or "", validate=True)
            for name in ("tls.crt", "tls.key", "ca.crt")
        ]
    except (binascii.Error, ValueError):
        return None
    return Material(*values) if all(values) else None


def data(material: Material) -> dict[str, str]:
    """The Secret's ``data``."""
    parts = {"tls.crt": material.certificate, "tls.key": material.key, "ca.crt": material.authorities}
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}
