"""Client, reflector, writer and lease on a real API server, through a proxy that breaks things on purpose.

No engine here: orders to the writer are made by hand, so that every outcome can be forced.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.faults import FaultProxy, Rule

from e2e.cluster import Cluster
from e2e.errors import ApiError as ClusterApiError
from sharing_affinity.api.record import Record, RecordedResult, decode
from sharing_affinity.engine import ClaimWrite, Release
from sharing_affinity.runtime import preflight, wire
from sharing_affinity.runtime.client import Client, Login, NoAnswerError
from sharing_affinity.runtime.kinds import CLAIMS, METADATA, Kind
from sharing_affinity.runtime.lease import Elector, Timing
from sharing_affinity.runtime.pacing import Pacer
from sharing_affinity.runtime.reflector import Change, ListBegun, ListEnded, Reflector, Removal, Upsert
from sharing_affinity.runtime.writer import Outcome, Writer

pytestmark = [pytest.mark.integration, pytest.mark.faults]

ROOT = Path(__file__).parents[2]
SYSTEM = "sharing-affinity-system"
RECORD = "sharingaffinity.dev/allocation"
FINALIZER = "resource.kubernetes.io/delete-protection"
PARAMETERS = {"kind": "NICConfig", "nested": {"list": [1, None], "none": None}, "raw": 1, "subnet": "a"}
#: As other clients send it: bytes that no JSON library of ours would write.
AWKWARD = (
    b'{ "url": "x?a=1\\u0026b","plain":"<&>","float":1.10,"big":1e21,"long":12345678901234567890,'
    b'"umlaut":"\\u00fc","null":null,"z":{"b":1,"a":[1.0,null]}}'
)

Object = dict[str, Any]


@pytest.fixture(scope="module")
def operator_kubeconfig(control_plane: Cluster) -> Path:
    control_plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/overlays/local"))
    return control_plane.service_account_kubeconfig(SYSTEM, "sharing-affinity-operator")


@pytest.fixture
def proxy(control_plane: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(control_plane.kubeconfig) as running:
        yield running


@pytest.fixture
async def client(operator_kubeconfig: Path, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(Login(str(proxy.kubeconfig(operator_kubeconfig, tmp_path / "kubeconfig")))) as made:
        yield made


class Claims:
    """Claims in one namespace, made and looked at behind the proxy."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"

    def create(self, name: str) -> Object:
        spec = {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}],
                "config": [{"opaque": {"driver": "nic.example.com", "parameters": PARAMETERS}}],
            }
        }
        stored: Object = self.cluster.request("POST", self.path, {"metadata": {"name": name}, "spec": spec})
        return stored

    def get(self, name: str) -> Object:
        found: Object = self.cluster.request("GET", f"{self.path}/{name}")
        return found

    def touch(self, name: str) -> Object:
        change = {"metadata": {"labels": {"touched": uuid.uuid4().hex}}}
        return self.patch(name, change)

    def patch(self, name: str, change: Object) -> Object:
        target, kind = f"{self.path}/{name}", "application/merge-patch+json"
        stored: Object = self.cluster.request("PATCH", target, change, content_type=kind)
        return stored

    def delete(self, name: str) -> None:
        self.cluster.request("DELETE", f"{self.path}/{name}")


@pytest.fixture
def claims(control_plane: Cluster, namespace: str) -> Claims:
    return Claims(control_plane, namespace)


def order(claim: Object, device: str = "eth1") -> ClaimWrite:
    """What an engine would decide for the claim."""
    share = str(uuid.uuid4())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    allocation = {
        "devices": {
            "results": [
                {
                    "request": "nic",
                    "driver": "nic.example.com",
                    "pool": "node-a",
                    "device": device,
                    "shareID": share,
                    "consumedCapacity": {"slots": "1"},
                }
            ],
            "config": [
                {
                    "source": "FromClaim",
                    "opaque": {"driver": "nic.example.com", "parameters": PARAMETERS},
                }
            ],
        },
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
            ]
        },
        "allocationTimestamp": stamp,
    }
    meta = claim["metadata"]
    result = RecordedResult("nic", "nic.example.com", "node-a", device, share, (("subnet", "a"),))
    return ClaimWrite(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        meta["resourceVersion"],
        allocation,
        Record("", stamp, (result,)),
    )


def make_writer(client: Client, budget: float = 60.0, timeout: float = 5.0) -> Writer:
    until = time.monotonic() + budget
    return Writer(
        client,
        budget=lambda: until - time.monotonic(),
        pacer=Pacer(1000, 1000),
        new_id=lambda: uuid.uuid4().hex,
        random=random.Random(1),
        timeout=timeout,
    )


async def collect(
    client: Client, kind: Kind, **options: Any
) -> tuple[Reflector, list[Change], asyncio.Task[None]]:
    seen: list[Change] = []

    async def deliver(kind: Kind, changes: list[Change]) -> None:
        seen.extend(changes)

    feed = Reflector(client, kind, deliver, random=random.Random(1), **options)
    return feed, seen, asyncio.create_task(feed.run())


async def until(what: str, probe: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.02)


# -- writer ---------------------------------------------------------------------------------------------


async def test_an_allocation_as_it_is_stored(client: Client, claims: Claims) -> None:
    wanted = order(claims.create("c"))

    result = await make_writer(client).write(wanted)

    assert result.outcome is Outcome.WRITTEN
    stored = claims.get("c")
    assert stored["metadata"]["resourceVersion"] == result.resource_version
    assert FINALIZER in stored["metadata"]["finalizers"]
    record = decode(stored["metadata"]["annotations"][RECORD])
    assert record is not None
    assert record.attempt
    assert record.results == wanted.record.results
    assert stored["status"]["allocation"] == wanted.allocation
    assert stored["spec"]["devices"]["config"][0]["opaque"]["parameters"] == PARAMETERS
    assert "reservedFor" not in stored["status"]


async def test_parameters_that_json_would_change_survive_byte_for_byte(
    control_plane: Cluster, client: Client, claims: Claims
) -> None:
    """The server refuses every patch of such a claim: its own JSON round trip changes the spec."""
    body = json.dumps(
        {
            "metadata": {"name": "c"},
            "spec": {
                "devices": {
                    "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}],
                    "config": [{"opaque": {"driver": "nic.example.com", "parameters": "HERE"}}],
                }
            },
        }
    )
    async with Client(Login(str(control_plane.kubeconfig))) as admin:
        await admin.exchange("POST", claims.path, body.encode().replace(b'"HERE"', AWKWARD))
        before = await admin.exchange("GET", f"{claims.path}/c", accept=wire.MEDIA_TYPE)
        assert AWKWARD in before
        claim = claims.get("c")
        writer = make_writer(client)

        result = await writer.write(order(claim))
        assert result.outcome is Outcome.WRITTEN, result.message
        stored = await admin.exchange("GET", f"{claims.path}/c", accept=wire.MEDIA_TYPE)
        assert AWKWARD in stored
        release = Release(claims.namespace, "c", claim["metadata"]["uid"], result.resource_version, "unused")
        assert (await writer.release(release)).outcome is Outcome.WRITTEN

        after = wire.read_metadata(await admin.exchange("GET", f"{claims.path}/c", accept=wire.MEDIA_TYPE))
        assert after.finalizers == ()
        assert RECORD not in after.annotations


async def test_a_claim_that_changed_since_the_decision_is_a_conflict(client: Client, claims: Claims) -> None:
    wanted = order(claims.create("c"))
    claims.touch("c")

    result = await make_writer(client).write(wanted)

    assert result.outcome is Outcome.CONFLICT
    assert "allocation" not in claims.get("c").get("status", {})


async def test_a_change_between_the_two_writes_is_a_conflict_and_leaves_nothing(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    wanted = order(claims.create("c"))
    proxy.add(Rule("PUT", "/status", delay=0.5, times=1))
    writing = asyncio.create_task(make_writer(client).write(wanted))
    await asyncio.sleep(0.25)
    await asyncio.to_thread(claims.touch, "c")

    assert (await writing).outcome is Outcome.CONFLICT
    stored = claims.get("c")
    assert RECORD not in stored["metadata"].get("annotations", {})
    assert "finalizers" not in stored["metadata"]
    assert "allocation" not in stored.get("status", {})


async def test_a_claim_that_is_gone_or_replaced(client: Client, claims: Claims) -> None:
    first, second = order(claims.create("gone")), order(claims.create("replaced"))
    claims.delete("gone")
    claims.delete("replaced")
    claims.create("replaced")
    writer = make_writer(client)

    assert (await writer.write(first)).outcome is Outcome.GONE
    assert (await writer.write(second)).outcome in (Outcome.GONE, Outcome.CONFLICT)
    assert "allocation" not in claims.get("replaced").get("status", {})


async def test_a_claim_allocated_by_somebody_else_is_respected(client: Client, claims: Claims) -> None:
    writer = make_writer(client)
    claims.create("c")
    other = order(claims.get("c"), "eth9")
    await writer.write(other)

    result = await writer.write(order(claims.get("c")))

    assert result.outcome is Outcome.TAKEN
    assert claims.get("c")["status"]["allocation"] == other.allocation


async def test_an_answer_lost_after_the_write_was_applied(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule("PUT", "/status", reset="after", times=1))
    wanted = order(claims.create("c"))

    result = await make_writer(client).write(wanted)

    assert result.outcome is Outcome.WRITTEN
    assert claims.get("c")["status"]["allocation"] == wanted.allocation


@pytest.mark.parametrize(
    "fault", [{"reset": "before"}, {"answer": (500, "InternalError")}], ids=["reset", "500"]
)
async def test_a_write_that_never_arrived_is_refuted_by_a_write(
    client: Client, claims: Claims, proxy: FaultProxy, fault: Object
) -> None:
    # Twice, since aiohttp sends a PUT again by itself when a connection that was kept alive turns out dead.
    proxy.add(Rule("PUT", "/status", times=2, **fault))
    wanted = order(claims.create("c"))

    result = await make_writer(client).write(wanted)

    assert result.outcome is Outcome.CONFLICT
    stored = claims.get("c")
    assert RECORD not in stored["metadata"].get("annotations", {})
    assert "finalizers" not in stored["metadata"]
    patches = [what for _, method, _, what in proxy.log if method == "PATCH"]
    assert patches == ["200", "200"], "the record was set and taken off again"


async def test_a_write_that_lands_after_we_gave_up_waiting_is_no_ghost(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    """The hard case: the PUT times out here and reaches the server later. It must fail there."""
    proxy.add(Rule("PUT", "/status", delay=1.5, times=1))
    wanted = order(claims.create("c"))

    result = await make_writer(client, timeout=0.5).write(wanted)

    assert result.outcome is Outcome.CONFLICT
    await until("the late PUT", lambda: any(method == "PUT" for _, method, _, _ in proxy.log))
    assert next(what for _, method, _, what in proxy.log if method == "PUT") == "409"
    assert "allocation" not in claims.get("c").get("status", {})


async def test_a_lost_metadata_write_allocates_nothing(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule("PATCH", "/resourceclaims/", reset="after", times=1))
    wanted = order(claims.create("c"))

    result = await make_writer(client).write(wanted)

    assert result.outcome is Outcome.RETRY
    assert [method for _, method, _, _ in proxy.log] == ["PATCH"]


async def test_too_many_requests_are_waited_out(client: Client, claims: Claims, proxy: FaultProxy) -> None:
    proxy.add(Rule("PUT", "/status", answer=(429, "TooManyRequests"), retry_after=1, times=1))
    started = time.monotonic()

    result = await make_writer(client).write(order(claims.create("c")))

    assert result.outcome is Outcome.WRITTEN
    assert time.monotonic() - started >= 1.0


async def test_without_a_lease_nothing_is_sent(client: Client, claims: Claims, proxy: FaultProxy) -> None:
    wanted = order(claims.create("c"))

    result = await make_writer(client, budget=-1.0).write(wanted)

    assert result.outcome is Outcome.NO_LEASE
    assert proxy.log == []


async def test_the_lease_is_checked_again_between_the_two_writes(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule("PATCH", "/resourceclaims/", delay_answer=0.6, times=1))
    wanted = order(claims.create("c"))

    result = await make_writer(client, budget=0.5, timeout=5).write(wanted)

    assert result.outcome in (Outcome.NO_LEASE, Outcome.RETRY)
    assert not any(method == "PUT" for _, method, _, _ in proxy.log)


async def test_an_outcome_that_cannot_be_learnt_stays_unknown(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    wanted = order(claims.create("c"))
    proxy.add(Rule("PUT", "/status", reset="after", times=1))
    proxy.add(Rule("GET", "/resourceclaims/", answer=(503, "ServiceUnavailable")))

    result = await make_writer(client, budget=1.0).write(wanted)

    assert result.outcome is Outcome.UNKNOWN


async def test_a_missing_binding_permission_is_told_as_such(
    control_plane: Cluster, client: Client, claims: Claims, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The server answers 422 and not 403, which must not pass for bad data."""
    name = "no-binding"
    control_plane.request(
        "POST", f"/api/v1/namespaces/{claims.namespace}/serviceaccounts", {"metadata": {"name": name}}
    )
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": claims.namespace},
        "rules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceclaims", "resourceclaims/status", "resourceclaims/binding"],
                "verbs": ["*"],
            }
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": claims.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": claims.namespace}],
    }
    control_plane.apply(role, binding)
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    policy = f"{policies}/sharing-affinity-record-claims"
    before = control_plane.request("GET", policy)["spec"]["variables"]
    account = f"request.userInfo.username == 'system:serviceaccount:{claims.namespace}:{name}'"
    operator = {"name": "operator", "expression": account}
    variables = [operator if variable["name"] == "operator" else variable for variable in before]
    kind = "application/merge-patch+json"
    control_plane.request("PATCH", policy, {"spec": {"variables": variables}}, content_type=kind)
    try:
        kubeconfig = control_plane.service_account_kubeconfig(claims.namespace, name)
        async with Client(Login(str(proxy.kubeconfig(kubeconfig, tmp_path / "limited")))) as limited:
            writer = make_writer(limited)
            for number in itertools.count():
                result = await writer.write(order(claims.create(f"c{number}")))
                if "ValidatingAdmissionPolicy" not in result.message or number > 50:
                    break
                await asyncio.sleep(0.2)
    finally:
        control_plane.request("PATCH", policy, {"spec": {"variables": before}}, content_type=kind)
        # The server follows its policies with a delay, and whatever comes after needs them as they were.
        for number in range(50):
            restored = await make_writer(client).write(order(claims.create(f"again{number}")))
            if restored.outcome is Outcome.WRITTEN:
                break
            await asyncio.sleep(0.2)

    assert result.outcome is Outcome.FORBIDDEN
    assert "resourceclaims/binding" in result.message


async def test_release_takes_everything_of_ours_away(client: Client, claims: Claims) -> None:
    writer = make_writer(client)
    written = await writer.write(order(claims.create("c")))
    meta = claims.get("c")["metadata"]

    result = await writer.release(
        Release(claims.namespace, "c", meta["uid"], written.resource_version, "unused")
    )

    assert result.outcome is Outcome.WRITTEN
    stored = claims.get("c")
    assert "allocation" not in stored.get("status", {})
    assert RECORD not in stored["metadata"].get("annotations", {})
    assert "finalizers" not in stored["metadata"]


async def test_nothing_reserved_is_freed(control_plane: Cluster, client: Client, claims: Claims) -> None:
    writer = make_writer(client)
    written = await writer.write(order(claims.create("c")))
    reserved = claims.get("c")
    # Of a kind kube-controller-manager does not know, so that it leaves the reservation alone.
    pod = {"apiGroup": "example.com", "resource": "things", "name": "p", "uid": str(uuid.uuid4())}
    reserved["status"]["reservedFor"] = [pod]
    control_plane.request("PUT", f"{claims.path}/c/status", reserved)

    for version in (written.resource_version, claims.get("c")["metadata"]["resourceVersion"]):
        release = Release(claims.namespace, "c", reserved["metadata"]["uid"], version, "unused")
        assert (await writer.release(release)).outcome is Outcome.CONFLICT
    assert claims.get("c")["status"]["allocation"]


async def test_refuting_what_an_earlier_leader_left(client: Client, claims: Claims) -> None:
    writer = make_writer(client)
    started, finished = order(claims.create("started")), order(claims.create("finished"))
    prepared = await writer._prepare(started, (), 2.0)
    await writer.write(finished)

    assert await writer.refute(claims.namespace, "started", started.uid) is True
    assert await writer.refute(claims.namespace, "finished", finished.uid) is False
    assert await writer.refute(claims.namespace, "nothing", "x") is True
    # The predecessor's second write comes after all, and fails.
    prepared["status"] = {"allocation": started.allocation}
    with pytest.raises(Exception, match="409"):
        await writer._put_status(prepared, 2.0)
    assert "allocation" not in claims.get("started").get("status", {})


# -- reflector ------------------------------------------------------------------------------------------


def names_of(changes: list[Change], namespace: str) -> dict[str, str]:
    """The objects a consumer of these changes would have, name to uid."""
    state: dict[str, str] = {}
    for change in changes:
        if isinstance(change, Upsert) and change.raw["metadata"].get("namespace") == namespace:
            state[change.raw["metadata"]["name"]] = change.raw["metadata"]["uid"]
        elif isinstance(change, Removal) and change.namespace == namespace:
            state.pop(change.name, None)
    return state


def stored_names(claims: Claims) -> dict[str, str]:
    items = claims.cluster.request("GET", claims.path)["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


async def test_a_list_in_pages_then_changes_as_they_happen(client: Client, claims: Claims) -> None:
    for number in range(5):
        claims.create(f"c{number}")
    feed, seen, task = await collect(client, CLAIMS, page=2)
    await until("the list", lambda: feed.synced)

    assert isinstance(seen[0], ListBegun)
    # Claims of namespaces that are still going away may follow.
    assert any(isinstance(change, ListEnded) for change in seen)
    assert len(names_of(seen, claims.namespace)) == 5
    claims.delete("c0")
    claims.create("c5")
    await until("the changes", lambda: "c5" in names_of(seen, claims.namespace))
    assert names_of(seen, claims.namespace) == stored_names(claims)
    task.cancel()


async def test_opaque_parameters_arrive_as_they_are(client: Client, claims: Claims) -> None:
    claims.create("c")
    feed, seen, task = await collect(client, CLAIMS)
    await until("the list", lambda: feed.synced)

    raw = next(c.raw for c in seen if isinstance(c, Upsert) and c.raw["metadata"]["name"] == "c")
    assert raw["spec"]["devices"]["config"][0]["opaque"]["parameters"] == PARAMETERS
    task.cancel()


async def test_a_cut_watch_resumes_without_a_relist(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    feed, seen, task = await collect(client, CLAIMS)
    await until("the list", lambda: feed.status.watches == 1)
    proxy.drop_all()
    claims.create("while-away")
    await until("the event", lambda: "while-away" in names_of(seen, claims.namespace))

    assert feed.status.lists == 1
    assert feed.status.watches >= 2
    task.cancel()


async def test_a_watch_cut_in_the_middle_of_an_object(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule(watch=True, cut=1, times=3))
    feed, seen, task = await collect(client, CLAIMS)
    await until("the list", lambda: feed.synced)
    for number in range(6):
        claims.create(f"c{number}")
        await asyncio.sleep(0.05)
    await until("all events", lambda: names_of(seen, claims.namespace) == stored_names(claims))
    task.cancel()


@pytest.mark.parametrize("fault", [{"error": 410}, {"answer": (410, "Expired")}], ids=["in-stream", "http"])
async def test_an_expired_version_is_a_relist_that_yields_deletions(
    client: Client, claims: Claims, proxy: FaultProxy, fault: Object
) -> None:
    for number in range(3):
        claims.create(f"c{number}")
    feed, seen, task = await collect(client, CLAIMS)
    await until("the list", lambda: feed.status.watches == 1)
    # Nothing gets through while the objects go, and then their versions are gone as well.
    closed = proxy.add(Rule(watch=True, answer=(503, "ServiceUnavailable")))
    proxy.drop_all()
    await until("the feed to notice", lambda: closed.hits > 0)
    for name in ("c0", "c2"):
        claims.delete(name)
    proxy.add(Rule(watch=True, times=1, **fault))
    closed.times = 0
    if "error" in fault:
        await until("the watch", lambda: feed.status.watches >= 2)
        claims.create("kick")
    await until("the relist", lambda: feed.status.lists >= 2 and feed.synced)

    assert names_of(seen, claims.namespace) == stored_names(claims)
    task.cancel()


async def test_duplicated_and_late_events_change_nothing(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule(watch=True, duplicate=True, late=0.02))
    feed, seen, task = await collect(client, CLAIMS)
    await until("the list", lambda: feed.synced)
    first = claims.create("c")
    claims.touch("c")
    claims.delete("c")
    second = claims.create("c")
    await until(
        "the last event", lambda: names_of(seen, claims.namespace).get("c") == second["metadata"]["uid"]
    )

    ours = [c for c in seen if isinstance(c, Removal) and c.namespace == claims.namespace]
    assert ours == [Removal("ResourceClaim", claims.namespace, "c", first["metadata"]["uid"])]
    task.cancel()


async def test_a_silent_watch_is_noticed_and_renewed(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    """Nothing is closed, nothing comes: the way feeds go blind for ever (reference case F-01)."""
    proxy.add(Rule(watch=True, silent=0, times=1))
    feed, seen, task = await collect(client, CLAIMS, silence=3.0, stale_after=0.5)
    await until("the watch", lambda: feed.status.watches == 1)
    claims.create("unseen")
    await until("staleness", lambda: not feed.fresh)
    await until("recovery", lambda: "unseen" in names_of(seen, claims.namespace))

    assert feed.status.lists == 1
    task.cancel()


@pytest.mark.parametrize("code", [403, 404, 429, 500, 503])
async def test_a_feed_outlives_every_answer(
    client: Client, claims: Claims, proxy: FaultProxy, code: int
) -> None:
    fault = proxy.add(Rule("GET", "/resourceclaims", answer=(code, "Fault"), times=3))
    claims.create("c")
    feed, seen, task = await collect(client, CLAIMS)
    await until("some refusals", lambda: fault.hits > 0)
    assert not feed.fresh

    await until("the list", lambda: feed.synced)
    assert "c" in names_of(seen, claims.namespace)
    task.cancel()


async def test_an_error_in_the_stream_other_than_410_is_a_resume(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule(watch=True, error=500, times=1))
    feed, seen, task = await collect(client, CLAIMS)
    await until("the watch", lambda: feed.status.watches == 1)
    claims.create("c")
    await until("the event", lambda: "c" in names_of(seen, claims.namespace))

    assert feed.status.lists == 1
    task.cancel()


async def test_a_relist_on_demand_is_a_consistent_one(
    client: Client, claims: Claims, proxy: FaultProxy
) -> None:
    proxy.add(Rule(watch=True, silent=0))
    feed, seen, task = await collect(client, CLAIMS)
    await until("the watch", lambda: feed.status.watches == 1)
    claims.create("unseen")
    await feed.relist()

    assert "unseen" in names_of(seen, claims.namespace)
    lists = [path for _, method, path, _ in proxy.log if method == "GET" and "watch" not in path]
    assert all("resourceVersion" not in path for path in lists)
    task.cancel()


async def test_a_slow_consumer_slows_the_socket(client: Client, claims: Claims) -> None:
    delivered = 0

    async def slow(kind: Kind, changes: list[Change]) -> None:
        nonlocal delivered
        await asyncio.sleep(0.1)
        delivered += 1

    feed = Reflector(client, CLAIMS, slow, random=random.Random(1))
    task = asyncio.create_task(feed.run())
    await until("the list", lambda: feed.synced)
    before = delivered
    for number in range(5):
        claims.create(f"c{number}")
    await asyncio.sleep(0.25)

    assert delivered - before <= 3
    await until("the rest", lambda: delivered - before >= 5)
    task.cancel()


async def test_a_kind_that_is_not_served_is_empty_when_it_is_optional(control_plane: Cluster) -> None:
    absent = Kind("Nothing", "resource.k8s.io/v1", "nothings", optional=True)
    async with Client(Login(str(control_plane.kubeconfig))) as admin:
        feed, seen, task = await collect(admin, absent)
        await until("the decision", lambda: feed.synced)

        assert not feed.status.served
        # The list that failed had begun, too.
        assert {type(change) for change in seen} == {ListBegun, ListEnded}
        assert isinstance(seen[-1], ListEnded)
        task.cancel()


async def test_a_lost_answer_does_not_end_a_replica_that_starts(client: Client, proxy: FaultProxy) -> None:
    proxy.add(Rule("POST", "/selfsubjectaccessreviews", reset="after", times=2))

    assert (await preflight.check(client, SYSTEM)).startswith("v1.")


async def test_a_refused_connection_is_survived(client: Client, claims: Claims, proxy: FaultProxy) -> None:
    proxy.add(Rule("GET", "/sharingaffinityslices", reset="before", times=4))
    feed, _, task = await collect(client, METADATA)
    await until("the list", lambda: feed.synced)
    task.cancel()


async def test_a_request_that_hangs_ends_at_its_deadline(client: Client, proxy: FaultProxy) -> None:
    proxy.add(Rule("GET", "/version", hang=60))
    started = time.monotonic()

    with pytest.raises(NoAnswerError, match=r"no answer in 0\.3 s"):
        await client.request("GET", "/version", within=0.3)
    assert time.monotonic() - started < 30


async def test_a_rejected_token_is_read_again(
    control_plane: Cluster, operator_kubeconfig: Path, proxy: FaultProxy, tmp_path: Path
) -> None:
    good = proxy.kubeconfig(operator_kubeconfig, tmp_path / "kubeconfig")
    text = good.read_text()
    token = text.partition('"token": "')[2].partition('"')[0]
    good.write_text(text.replace(token, token[:-8] + "AAAAAAAA"))
    async with Client(Login(str(good))) as made:
        await made.login.credentials()
        good.write_text(text)

        assert (await made.request("GET", CLAIMS.path, params={"limit": "1"}))["kind"] == "ResourceClaimList"


# -- lease ----------------------------------------------------------------------------------------------


class Campaign:
    """One candidate with its own way to the server."""

    def __init__(self, kubeconfig: Path, identity: str, namespace: str, name: str, timing: Timing) -> None:
        self.elector = Elector(
            lambda: Client(Login(str(kubeconfig))),
            namespace=namespace,
            name=name,
            identity=identity,
            timing=timing,
            random=random.Random(identity),
        )


QUICK = Timing(4.0, 2.6, 0.25)


@pytest.fixture
def candidates(control_plane: Cluster, namespace: str, tmp_path: Path) -> Iterator[Any]:
    made: list[Elector] = []
    proxies: list[FaultProxy] = []

    def make(identity: str, timing: Timing = QUICK) -> tuple[Elector, FaultProxy]:
        proxy = FaultProxy(control_plane.kubeconfig)
        proxy.__enter__()
        proxies.append(proxy)
        control_plane.request  # noqa: B018 - the admin may hold any lease
        account = f"cand-{identity}"
        prefix = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        control_plane.request("POST", prefix, {"metadata": {"name": account}})
        control_plane.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": {"name": "lease", "namespace": namespace},
                "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": account, "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lease"},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            },
        )
        kubeconfig = control_plane.service_account_kubeconfig(namespace, account)
        through = proxy.kubeconfig(kubeconfig, tmp_path / f"{identity}.kubeconfig")
        elector = Campaign(through, identity, namespace, "l", timing).elector
        made.append(elector)
        return elector, proxy

    yield make
    for elector in made:
        elector.stop(release=False)
    for proxy in proxies:
        proxy.__exit__()


def wait(what: str, probe: Any, seconds: float = 60.0) -> float:
    started = time.monotonic()
    while not probe():
        assert time.monotonic() - started < seconds, f"timed out waiting for {what}"
        time.sleep(0.01)
    return time.monotonic() - started


def test_one_of_two_leads(candidates: Any) -> None:
    (first, _), (second, _) = candidates("a"), candidates("b")
    first.start()
    wait("the first", lambda: first.leading)
    second.start()
    time.sleep(QUICK.duration + 1)

    assert first.leading
    assert not second.leading
    assert second.holder == "a"


def test_a_released_lease_is_taken_at_once(candidates: Any) -> None:
    patient = Timing(60.0, 40.0, 0.25)
    (first, _), (second, _) = candidates("a", patient), candidates("b", patient)
    first.start()
    wait("the first", lambda: first.leading)
    second.start()
    time.sleep(0.5)
    first.stop(release=True)

    assert not first.leading
    assert wait("the second", lambda: second.leading) < 30


def test_a_leader_cut_off_stops_before_another_starts(candidates: Any) -> None:
    """The heart of it: at no time do both believe that they lead."""
    (first, proxy), (second, _) = candidates("a"), candidates("b")
    first.start()
    wait("the first", lambda: first.leading)
    second.start()
    time.sleep(0.5)
    proxy.add(Rule(hang=30))
    both, stopped, started = 0, 0.0, 0.0
    begun = time.monotonic()
    while time.monotonic() - begun < 60 and not started:
        one, other = first.leading, second.leading
        both += one and other
        if not one and not stopped:
            stopped = time.monotonic()
        if other:
            started = time.monotonic()
        time.sleep(0.002)

    assert both == 0
    assert 0 < stopped < started
    assert started - begun < QUICK.duration + 5
    # Back on the network, the first follows.
    proxy.clear()
    time.sleep(1.0)
    assert not first.leading


def test_a_lease_deleted_by_hand_never_makes_two_leaders(
    control_plane: Cluster, namespace: str, candidates: Any
) -> None:
    (first, proxy), (second, _) = candidates("a"), candidates("b")
    first.start()
    wait("the first", lambda: first.leading)
    second.start()
    time.sleep(0.6)
    proxy.add(Rule(hang=30))
    control_plane.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/l")
    both = 0
    begun = time.monotonic()
    while not second.leading and time.monotonic() - begun < 60:
        time.sleep(0.002)
        both += first.leading and second.leading

    assert second.leading
    assert both == 0
    assert time.monotonic() - begun > QUICK.renew - 0.6


def test_a_lost_answer_to_a_renewal_does_not_cost_the_lease(candidates: Any) -> None:
    first, proxy = candidates("a")
    first.start()
    wait("the first", lambda: first.leading)
    proxy.add(Rule("PUT", "/leases/", reset="after", times=2))
    begun = time.monotonic()
    while time.monotonic() - begun < QUICK.duration:
        assert first.leading
        time.sleep(0.01)


def test_a_lease_without_permission_is_a_problem_that_is_told(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    account = "nobody"
    control_plane.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}}
    )
    kubeconfig = control_plane.service_account_kubeconfig(namespace, account)
    elector = Campaign(kubeconfig, "x", namespace, "l", QUICK).elector
    elector.start()
    wait("the problem", lambda: "forbidden" in elector.problem)

    assert not elector.leading
    elector.stop(release=True)
    with pytest.raises(ClusterApiError):
        control_plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/l")
