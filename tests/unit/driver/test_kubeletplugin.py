"""Sockets, registration and the DRAPlugin service, over real Unix sockets, as the kubelet calls them."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.kubelet import KubeletClient, kubelet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from affinity_driver.claims.errors import ClaimChangedError, ConfigError, IncompatibleError
from affinity_driver.kubeletplugin.registrar import Registrar
from affinity_driver.kubeletplugin.server import UnixServer
from affinity_driver.kubeletplugin.service import ClaimRef, DRAPlugin
from affinity_driver.kubeletplugin.sockets import (
    MAX_PATH,
    Instance,
    LiveInstance,
    SocketPathError,
    live_instances,
    plugin_socket,
    registration_socket,
)
from affinity_driver.proto import dra_v1_pb2 as dra
from affinity_driver.state.device_state import PreparedDevice

REGISTRY = Path("/var/lib/kubelet/plugins_registry")
UID = "0f8b7a52-9f0c-4d5e-8f43-2f3f6f0a1b2c"


class TestNames:
    @pytest.mark.parametrize(
        ("driver", "length"),
        [("nic.example.com", 95), ("n" * 40 + ".example.com", 107), ("n" * 50 + ".example.com", 67)],
    )
    def test_registration_socket_takes_the_longest_form_that_fits(self, driver: str, length: int) -> None:
        path = registration_socket(REGISTRY, driver, UID)
        assert len(os.fsencode(path)) <= MAX_PATH
        assert path.name.endswith("-reg.sock")
        assert not path.name.startswith(".")

    def test_forms_are_those_of_the_go_library(self) -> None:
        """k8s.io/dynamic-resource-allocation kubeletplugin: driver and UID, hashed UID, hash of both."""
        assert registration_socket(REGISTRY, "nic.example.com", UID).name == f"nic.example.com-{UID}-reg.sock"
        medium = registration_socket(REGISTRY, "n" * 40 + ".example.com", UID).name
        assert medium == "n" * 40 + ".example.com-" + medium.split("-", 1)[1]
        assert registration_socket(REGISTRY, "n" * 50 + ".example.com", UID).name.startswith("dra-")

    def test_names_of_different_instances_differ(self) -> None:
        for driver in ("nic.example.com", "n" * 40 + ".example.com", "n" * 50 + ".example.com"):
            assert registration_socket(REGISTRY, driver, "a") != registration_socket(REGISTRY, driver, "b")

    def test_a_folder_that_is_too_long_is_refused_with_its_limit(self) -> None:
        with pytest.raises(SocketPathError, match="at most"):
            plugin_socket(Path("/" + "x" * 100), UID)

    def test_107_bytes_can_be_bound(self, tmp_path: Path) -> None:
        path = tmp_path / ("s" * (MAX_PATH - len(os.fsencode(tmp_path)) - 1))
        assert len(os.fsencode(path)) == MAX_PATH
        server = UnixServer(path, [], 1)
        server.start()
        server.stop(0)
        assert not path.exists()


class TestInstance:
    def test_sockets_of_a_killed_instance_are_removed_by_the_next(self, tmp_path: Path) -> None:
        stale = tmp_path / "dra-old.sock"
        child = os.fork()
        if child == 0:
            Instance(tmp_path, "old", [stale]).claim()
            socket.socket(socket.AF_UNIX).bind(str(stale))
            os._exit(0)
        os.waitpid(child, 0)
        assert stale.is_socket()
        instance = Instance(tmp_path, "new", [tmp_path / "dra-new.sock"])
        assert instance.claim() == [stale]
        instance.release()
        assert list(tmp_path.iterdir()) == []

    def test_a_running_instance_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "dra-one.sock"
        first = Instance(tmp_path, "one", [path, tmp_path / "reg"])
        first.claim()
        socket.socket(socket.AF_UNIX).bind(str(path))
        second = Instance(tmp_path, "two", [])
        assert second.claim() == []
        assert path.is_socket()
        assert live_instances(tmp_path) == [LiveInstance(path, tmp_path / "reg", "")]
        first.tell("a long refusal")
        first.tell("registered")
        assert live_instances(tmp_path, "one") == [LiveInstance(path, tmp_path / "reg", "registered")]
        assert live_instances(tmp_path, "three") == []
        second.release()
        first.release()
        assert live_instances(tmp_path) == []

    def test_a_note_never_removes_what_is_no_socket(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_text("kept")
        note = tmp_path / "instance-x.json"
        note.write_text(f'["{precious}"]')
        Instance(tmp_path, "new", []).claim()
        assert precious.read_text() == "kept"
        assert not note.exists()

    def test_a_broken_note_is_no_obstacle(self, tmp_path: Path) -> None:
        (tmp_path / "instance-x.json").write_text("{")
        Instance(tmp_path, "new", []).claim()

    def test_a_note_that_is_swept_while_it_is_claimed_is_made_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both instances of an upgrade start at once, and one takes the other's note for left behind."""
        flock, one = fcntl.flock, Instance(tmp_path, "one", [tmp_path / "sock", tmp_path / "reg"])

        def late(descriptor: int, operation: int) -> None:
            monkeypatch.setattr(fcntl, "flock", flock)
            Instance(tmp_path, "two", []).claim()
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        one.claim()
        assert len(live_instances(tmp_path, "one")) == 1

    def test_one_name_is_held_once(self, tmp_path: Path) -> None:
        held = Instance(tmp_path, "one", [])
        held.claim()
        with pytest.raises(BlockingIOError):
            Instance(tmp_path, "one", []).claim()
        with (tmp_path / "other").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Scripted:
    """A plugin whose claims do what their names say: ``slow``, ``reject``, ``gone``, ``odd``, ``crash``.
    One thing at a time happens to a claim, as in ``DeviceState``.
    """

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls: list[tuple[str, str]] = []
        self.prepared: set[str] = set()
        self._claims: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def prepare(self, claim: ClaimRef, seconds: float) -> Sequence[PreparedDevice]:
        with self._claims[claim.uid]:
            return self._prepare(claim, seconds)

    def _prepare(self, claim: ClaimRef, seconds: float) -> Sequence[PreparedDevice]:
        self.calls.append(("prepare", claim.uid))
        assert seconds > 0
        if claim.name == "slow":
            self.go_on.wait(20)
        if claim.name == "reject":
            raise IncompatibleError("device eth1 is in use", "subnet")
        if claim.name == "gone":
            raise ClaimChangedError("claim does not exist any more")
        if claim.name == "odd":
            raise ConfigError("parameters.\ud800" + "x" * 9999)
        if claim.name == "crash":
            raise ZeroDivisionError("oops")
        self.prepared.add(claim.uid)
        return [PreparedDevice("nic", "node-a", "eth1", f"share-{claim.uid}", f"k/c={claim.uid}")]

    def unprepare(self, claim: ClaimRef) -> None:
        with self._claims[claim.uid]:
            self.calls.append(("unprepare", claim.uid))
            self.prepared.discard(claim.uid)
            if claim.name == "crash":
                raise ZeroDivisionError("oops")


class Seen:
    """Notes what the service tells its observer."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def call(self, operation: str, outcome: str, seconds: float) -> None:
        self.calls.append((operation, outcome))


class Served:
    """A registrar and a service on sockets of their own, and a registered kubelet."""

    def __init__(self, root: Path) -> None:
        self.plugin, self.seen = Scripted(), Seen()
        self.service = DRAPlugin(self.plugin, self.seen, margin=0.2)
        self.registered = threading.Event()
        self.refusals: list[str] = []
        registry = root / "reg"
        registry.mkdir()
        endpoint = root / "dra.sock"
        self.registrar = Registrar(
            "nic.example.com", endpoint, ["v1.DRAPlugin"], self.registered.set, self.refusals.append
        )
        self.servers = [
            UnixServer(endpoint, self.service.handlers(), 64),
            UnixServer(registry / "x-reg.sock", self.registrar.handlers(), 4),
        ]
        self.registry = registry

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        self.plugin.go_on.set()
        for server in self.servers:
            server.stop(1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(served: Served) -> Iterator[KubeletClient]:
    with kubelet(served.registry) as made:
        yield made


def claim(name: str, uid: str | None = None) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-{name}"}}


class TestRegistration:
    def test_info_is_what_the_kubelet_asks_for(
        self, served: Served, client: KubeletClient, tmp_path: Path
    ) -> None:
        assert client.info is not None
        assert (client.info.type, client.info.name) == ("DRAPlugin", "nic.example.com")
        assert client.info.endpoint == str(tmp_path / "dra.sock")
        assert list(client.info.supported_versions) == ["v1.DRAPlugin"]
        assert served.registered.is_set()

    def test_refusal_is_kept_and_not_taken_for_success(self, served: Served) -> None:
        refused = KubeletClient(served.registry)
        refused.register(accept=False)
        assert served.registrar.problem == "refused"
        assert served.refusals == ["refused"]
        assert not served.registered.is_set()

    def test_registering_again_after_a_kubelet_restart(self, served: Served) -> None:
        for _ in range(2):
            KubeletClient(served.registry).register()
        assert served.registrar.registered.is_set()


class TestPrepare:
    def test_answer(self, client: KubeletClient) -> None:
        entry = client.prepare(claim("good"))["uid-good"]
        (device,) = entry.devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (
            ["nic"],
            "node-a",
            "eth1",
        )
        assert list(device.cdi_device_ids) == ["k/c=uid-good"]
        assert device.HasField("share_id")
        assert device.share_id == "share-uid-good"
        assert entry.error == ""

    def test_every_claim_has_an_entry_and_fails_alone(self, served: Served, client: KubeletClient) -> None:
        answer = client.prepare(*(claim(name) for name in ("good", "reject", "gone", "crash")))
        assert {uid: entry.error for uid, entry in answer.items()} == {
            "uid-good": "",
            "uid-reject": "device eth1 is in use",
            "uid-gone": "claim does not exist any more",
            "uid-crash": "internal error: ZeroDivisionError: oops",
        }
        assert sorted(served.seen.calls) == [
            ("prepare", outcome) for outcome in ("claim", "incompatible", "internal", "ok")
        ]

    def test_what_no_event_can_hold_is_told_all_the_same(self, served: Served, client: KubeletClient) -> None:
        """JSON allows half of a surrogate pair, protobuf does not; both come from a claim's parameters."""
        answer = client.prepare(claim("good"), claim("odd"))
        assert answer["uid-good"].error == ""
        assert answer["uid-odd"].error.startswith("parameters.\\ud800xxx")
        assert len(answer["uid-odd"].error) <= 1024

    def test_an_empty_call_is_a_cheap_probe(self, served: Served, client: KubeletClient) -> None:
        assert client.prepare() == {}
        assert served.seen.calls == []

    def test_unprepare_answers_for_every_claim(self, client: KubeletClient) -> None:
        assert client.unprepare(claim("good"), claim("crash")) == {
            "uid-good": "",
            "uid-crash": "internal error: ZeroDivisionError: oops",
        }

    @pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".", "x" * 64, "é"])
    def test_what_is_no_uid_is_refused_before_it_becomes_a_file_name(
        self, served: Served, client: KubeletClient, uid: str
    ) -> None:
        entry = client.prepare(
            claim("good", uid) if uid else {"metadata": {"namespace": "", "name": "", "uid": ""}}
        )
        assert "is no UID" in entry[uid].error
        assert served.plugin.calls == []

    def test_work_outlives_the_deadline_and_the_retry_joins_it(
        self, served: Served, client: KubeletClient
    ) -> None:
        first = client.prepare(claim("slow"), claim("good"), timeout=1)
        assert "still in progress" in first["uid-slow"].error
        assert first["uid-good"].error == ""
        threading.Timer(0.3, served.plugin.go_on.set).start()
        second = client.prepare(claim("slow"), timeout=10)
        assert second["uid-slow"].error == ""
        assert served.plugin.calls.count(("prepare", "uid-slow")) == 1

    def test_a_client_that_goes_away_leaves_the_work_running(
        self, served: Served, client: KubeletClient
    ) -> None:
        call = client.start_prepare(claim("slow"))
        while ("prepare", "uid-slow") not in served.plugin.calls:
            time.sleep(0.01)
        call.cancel()
        served.plugin.go_on.set()
        assert client.prepare(claim("slow"))["uid-slow"].error == ""
        assert served.plugin.calls.count(("prepare", "uid-slow")) <= 2

    @pytest.mark.parametrize("last", ["prepare", "unprepare"])
    def test_calls_for_one_claim_take_effect_in_their_order(
        self, served: Served, client: KubeletClient, last: str
    ) -> None:
        """Case D-03: a pod ends while its claim is being prepared, and the next one of that claim begins."""
        slow = claim("slow")

        def begin(operation: str) -> str:
            if operation == "prepare":
                return str(client.prepare(slow, timeout=1)["uid-slow"].error)
            return client.unprepare(slow, timeout=1)["uid-slow"]

        for operation in ["prepare", "unprepare", "prepare", "unprepare"][: 3 if last == "prepare" else 4]:
            assert "still in progress" in begin(operation)
        served.plugin.go_on.set()
        assert served.service.drain(10)
        assert served.plugin.prepared == ({"uid-slow"} if last == "prepare" else set())

    def test_thirty_waiting_claims_delay_no_other(self, served: Served, client: KubeletClient) -> None:
        waiting = [
            threading.Thread(
                target=client.prepare, args=(claim("slow", f"uid-slow-{number}"),), kwargs={"timeout": 8}
            )
            for number in range(30)
        ]
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        start = time.monotonic()
        assert client.prepare(claim("good"))["uid-good"].error == ""
        assert time.monotonic() - start < 6, "it waited for others"
        served.plugin.go_on.set()
        for thread in waiting:
            thread.join(10)

    def test_too_many_claims_are_refused_whole(self, client: KubeletClient) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            client.prepare(*(claim("good", f"u{number}") for number in range(1025)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class TestHostileCalls:
    """Whatever comes in, the service goes on and nothing of it reaches a file name."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        data=st.binary(max_size=300),
        method=st.sampled_from(["NodePrepareResources", "NodeUnprepareResources"]),
    )
    def test_any_bytes(self, served: Served, client: KubeletClient, data: bytes, method: str) -> None:
        before = len(served.plugin.calls)
        code = None
        try:
            client.raw(method, data)
        except grpc.RpcError as error:
            code = error.code()
        assert code in {None, grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
        for _, uid in served.plugin.calls[before:]:
            assert "/" not in uid
            assert uid not in {"", ".", ".."}

    def test_unknown_fields_are_ignored(self, client: KubeletClient) -> None:
        known = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="d", name="good", uid="u-1")])
        unknown = b"\xfa\x3f\x03abc"  # field 1023, length-delimited
        answer = dra.NodePrepareResourcesResponse.FromString(
            client.raw("NodePrepareResources", known.SerializeToString() + unknown)
        )
        assert answer.claims["u-1"].error == ""

    def test_oversized_messages_are_refused(self, client: KubeletClient) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            client.raw("NodePrepareResources", b"\0" * (4 * 1024 * 1024 + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.prepare(claim("good"))["uid-good"].error == ""

    def test_unknown_methods_and_services_are_unimplemented(self, client: KubeletClient) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            client.raw("NodeDance", b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    def test_many_cancelled_calls_leave_a_working_service(
        self, served: Served, client: KubeletClient
    ) -> None:
        for number in range(100):
            client.start_prepare(claim("slow", f"u{number % 10}")).cancel()
        served.plugin.go_on.set()
        assert client.prepare(claim("good"))["uid-good"].error == ""
        assert served.service.drain(10)
