"""Admission on a real API server: up, down, with an expired certificate, renewed, two at once."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from harness import operator, webhook
from harness.operator import eventually
from harness.webhook import CONFIGURATION, SECRET, SLICES, refuses, serving, slice_of

from e2e.cluster import Cluster
from e2e.errors import ApiError

GOOD = 'object.kind == "NICConfig" ? object.subnet : ""'
Json = dict[str, Any]


@pytest.fixture
def account(control_plane: Cluster) -> Iterator[Path]:
    operator.install(control_plane)
    yield webhook.install(control_plane)
    webhook.remove(control_plane)
    control_plane.request("DELETE", SLICES)


def create(cluster: Cluster, body: Json) -> Json:
    stored: Json = cluster.request("POST", SLICES, body)
    return stored


def refused(cluster: Cluster, body: Json) -> ApiError:
    with pytest.raises(ApiError) as raised:
        create(cluster, body)
    assert raised.value.status == 422
    return raised.value


def test_slices_are_judged(control_plane: Cluster, account: Path) -> None:
    with serving(control_plane, account):
        stored = create(control_plane, slice_of("one", {"subnet": GOOD}, name="one-a"))

        error = refused(control_plane, slice_of("two", {"good": GOOD, "bad": "object.("}, name="two-a"))
        assert 'admission webhook "slices.webhook.sharingaffinity.dev" denied the request: ' in str(error)
        expected = (
            'SharingAffinitySlice.sharingaffinity.dev "two-a" is invalid: '
            'spec.sharingAffinity[1].expression: Invalid value: "object.(": compilation failed: '
            "ERROR: <input>:1:8: "
        )
        assert expected in str(error)

        error = refused(control_plane, slice_of("two", {"n": "1 + 1"}))
        assert 'spec.sharingAffinity[0].expression: Invalid value: "1 + 1": compilation failed: ' in str(
            error
        )
        assert "must evaluate to string or the unknown type, not int" in str(error)

        loops = "object.a.map(x, object.b.map(y, object.c.exists(z, z == x))).size() > 0 ? 'a' : ''"
        error = refused(control_plane, slice_of("two", {"costly": loops}))
        assert "spec.sharingAffinity[0].expression: Forbidden: too complex, exceeds cost limit" in str(error)
        assert "the budget of a pool is 1000000" in str(error)

        clash = slice_of("one", {"vlan": GOOD, "subnet": GOOD}, name="one-b")
        expected = (
            'spec.sharingAffinity[1].name: Duplicate value: "subnet": pool one: '
            "sharing-affinity key subnet is declared twice (slices one-a and one-b)"
        )
        # The first slice reaches the webhook by a watch.
        eventually("the clash to be noticed", lambda: expected in attempt(control_plane, clash))
        # In another generation of the pool it is no clash.
        clash["spec"]["pool"]["generation"] = 2
        create(control_plane, clash)

        # A change of the spec is judged, of the rest is not.
        stored["metadata"]["labels"] = {"a": "b"}
        stored = control_plane.request("PUT", f"{SLICES}/one-a", stored)
        stored["spec"]["sharingAffinity"][0]["expression"] = "nonsense("
        with pytest.raises(ApiError, match="compilation failed"):
            control_plane.request("PUT", f"{SLICES}/one-a", stored)


def attempt(cluster: Cluster, body: Json) -> str:
    try:
        cluster.request("POST", f"{SLICES}?dryRun=All", body)
    except ApiError as error:
        return str(error)
    return ""


def test_many_small_extractors_share_one_budget(control_plane: Cluster, account: Path) -> None:
    costly = "object.a.filter(x, x != '').size() > 0 ? 'a' : ''"
    with serving(control_plane, account):
        create(control_plane, slice_of("one", {f"k{n}": costly for n in range(4)}, name="one-a"))
        more = slice_of("one", {f"m{n}": costly for n in range(4)}, name="one-b")
        eventually(
            "the sum to be noticed",
            lambda: (
                "spec.sharingAffinity: Forbidden: pool one: its extractors may cost"
                in attempt(control_plane, more)
            ),
        )


def test_while_it_is_down_the_condition_says_the_same(
    control_plane: Cluster, account: Path, namespace: str
) -> None:
    with serving(control_plane, account):
        pass
    started = time.monotonic()
    bad = create(control_plane, slice_of("down", {"k": "nonsense("}, name="down-a"))
    assert time.monotonic() - started < 10, "longer than the configured 5 s"
    kubeconfig = control_plane.service_account_kubeconfig(operator.SYSTEM, operator.ACCOUNT)
    with operator.running(kubeconfig):
        accepted = eventually("Accepted", lambda: condition(control_plane, "down-a"))
        assert accepted["status"] == "False"
        assert accepted["reason"] == "DoesNotCompile"
    # Once it is up again, what was stored meanwhile can still be changed and deleted.
    with serving(control_plane, account):
        bad = control_plane.request("GET", f"{SLICES}/down-a")
        bad["metadata"]["finalizers"] = ["example.com/hold"]
        bad = control_plane.request("PUT", f"{SLICES}/down-a", bad)
        control_plane.request("DELETE", f"{SLICES}/down-a")
        bad = control_plane.request("GET", f"{SLICES}/down-a")
        bad["metadata"]["finalizers"] = []
        control_plane.request("PUT", f"{SLICES}/down-a", bad)


def condition(cluster: Cluster, name: str) -> Json | None:
    status = cluster.request("GET", f"{SLICES}/{name}").get("status") or {}
    return next((one for one in status.get("conditions") or [] if one["type"] == "Accepted"), None)


def test_an_expired_certificate_lets_slices_through_until_it_is_renewed(
    control_plane: Cluster, account: Path
) -> None:
    with serving(control_plane, account, "--certificate-lifetime=10", "--certificate-check=25") as process:
        ends = served(control_plane).not_valid_after_utc.timestamp()
        # Longer than a connection that was opened before stays open.
        time.sleep(max(0.0, ends - time.time()) + 5.5)
        create(control_plane, slice_of("expired", {"k": "nonsense("}))
        assert process.get("/readyz") == (503, "the certificate has expired\n")
        eventually("the certificate to be renewed", lambda: process.said('"event": "serving"') == 2)
        assert refuses(control_plane)


def served(cluster: Cluster) -> x509.Certificate:
    secret = cluster.request("GET", SECRET)
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))


def test_renewal_is_not_noticed(control_plane: Cluster, account: Path) -> None:
    with serving(control_plane, account, "--certificate-lifetime=12", "--certificate-check=1") as process:
        until = time.monotonic() + 14
        while time.monotonic() < until:
            assert refuses(control_plane), process.log
            time.sleep(0.25)
        assert process.said('"event": "serving"') >= 2
    trusted = control_plane.request("GET", CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]
    assert len(x509.load_pem_x509_certificates(base64.b64decode(trusted))) == 2


def test_two_replicas_show_one_certificate(control_plane: Cluster, account: Path) -> None:
    with ExitStack() as stack:
        both = [webhook.Webhook(account) for _ in range(2)]
        for one in both:
            stack.callback(one.stop)
        for one in both:
            eventually("both to listen", lambda one=one: one.port("admission"))  # type: ignore[misc]
        for one in both:
            webhook.send_to(control_plane, one.port("admission"))
        serial = served(control_plane).serial_number
    # A restart shows the same.
    with serving(control_plane, account):
        assert served(control_plane).serial_number == serial


def test_applying_the_manifests_again_keeps_certificate_and_trust(
    control_plane: Cluster, account: Path
) -> None:
    with serving(control_plane, account) as process:
        webhook.send_to(control_plane, process.port("admission"))
        assert process.said("a new certificate is needed") == 1


def test_metrics(control_plane: Cluster, account: Path) -> None:
    with serving(control_plane, account) as process:
        assert process.get("/readyz") == (200, "ok\n")
        assert process.metric("webhook_certificate_expiry_timestamp_seconds") > time.time() + 80 * 86400
        assert process.metric("webhook_reviews_total") >= 1
        assert process.metric("webhook_review_seconds_count") >= 1
