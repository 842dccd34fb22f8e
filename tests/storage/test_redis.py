"""Faults that only a store on a server meets; the rest is in the contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from shoal.errors import RunOver, StoreRefused, StoreUnavailable
from shoal.storage.base import Claim, Completion, MarkRequest, Opening
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, TaskReady
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Arg, Connection, parse_url, with_reconnect_seconds
from shoal.types import RunId, TaskId, WorkerId
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

w0, w1 = WorkerId("w0"), WorkerId("w1")
LARGE = 100_000


@pytest.fixture
def store(tcp_port: int) -> Iterator[RedisStore]:
    store = RedisStore(url_of(tcp_port))
    yield store
    store.disconnect()


@pytest.fixture
def server(tcp_port: int) -> Iterator[Connection]:
    """A direct connection to the server."""
    connection = Connection(parse_url(url_of(tcp_port)))
    yield connection
    connection.close()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


def test_url_leads_to_the_same_store(store: RedisStore, run: RunId) -> None:
    store.open(run, Opening([w0], {w0: [b"part"]}))
    other = RedisStore(store.url)
    assert bytes(other.enter(run, w0, 1).part or b"") == b"part"
    other.disconnect()


def test_hundreds_of_producers_can_mark_a_task(store: RedisStore, run: RunId) -> None:
    producers = tuple(WorkerId(f"p{number}") for number in range(500))
    store.open(run, Opening(producers))
    claims: list[Claim] = []
    for worker in producers:
        request = MarkRequest(TaskId("t"), w0, producers, worker.encode())
        claims += store.complete(run, worker, 1, Completion((), [request]))
    assert claims == [Claim(w0, 1)]
    payloads = tuple(worker.encode() for worker in producers)
    ((_, letter),) = store.receive(run, w0, "", 0)
    assert letter == TaskReady(TaskId("t"), payloads)


def test_a_connection_that_the_server_dropped_is_replaced(
    server: Connection, store: RedisStore, run: RunId
) -> None:
    """A session was idle for long, and the server or the network dropped its connection."""
    store.open(run, Opening([w0]))
    store.post(run, OutputReady(TaskId("o")))
    assert len(store.receive(run, CLIENT, "", 0)) == 1
    server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert len(store.receive(run, CLIENT, "", 0)) == 1
    assert store.progress(run) == 0


def test_a_connection_that_breaks_in_every_command_is_reported_and_replaced(
    tcp_port: int, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(with_reconnect_seconds(url_of(tcp_port), 0.2))
    store.open(run, Opening([w0], outputs={"a": [b"a"]}))

    def broken(self: Connection, length: int) -> None:
        raise ConnectionResetError("somebody cut the wire")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_bulk", broken)
        with pytest.raises(StoreUnavailable, match="somebody cut the wire"):
            store.fetch(run, ["a"])
    assert store.fetch(run, ["a"]) == [b"a"]
    store.disconnect()


def test_the_reply_to_an_interrupted_command_does_not_answer_the_next(
    store: RedisStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a reply is on its way.

    1. The client sends a command and is interrupted before the reply arrives.
    2. It cleans up, which sends another command.
    3. The first reply must not be taken for the reply to the second command.
    """
    store.open(run, Opening([w0], outputs={"a": [b"a"], "b": [b"b"]}))

    def interrupted(self: Connection, extra_seconds: float = 0.0) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "reply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.fetch(run, ["a"])
        with pytest.raises(KeyboardInterrupt):
            store.receive(run, CLIENT, "", 10)
    monkeypatch.setattr(Connection, "dropped", False)
    assert store.fetch(run, ["b"]) == [b"b"]
    assert store.receive(run, CLIENT, "", 0) == []


def test_scripts_that_the_server_lost_are_sent_again(
    server: Connection, store: RedisStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    for number in range(2):
        server.call("SCRIPT", "FLUSH")
        content = b"%d" % number * LARGE
        store.complete(run, w0, 1, Completion([("A", [content])]))
        assert bytes(store.fetch(run, ["A"])[0] or b"") == content


def test_a_client_that_dies_during_a_completion_leaves_nothing_permanent(
    server: Connection, store: RedisStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large outputs are sent before the script that saves them, and the client dies in between."""
    store.open(run, Opening([w0]))
    send = Connection.send

    def cut_short(self: Connection, commands: list[list[Arg]]) -> None:
        send(self, commands[:1])
        self.reply()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", cut_short)
        with pytest.raises(SystemExit):
            store.complete(run, w0, 1, Completion([("A", [bytes(LARGE)])]))
    assert store.fetch(run, ["A"]) == [None]
    found = server.call("KEYS", f"shoal:{{{run}}}*")
    assert len(found) == 3
    assert all(server.call("TTL", key) > 0 for key in found)


def test_client_that_dies_while_it_opens_a_run_leaves_nothing(
    server: Connection, store: RedisStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connection.send

    def cut_short(self: Connection, commands: list[list[Arg]]) -> None:
        send(self, commands[:3])
        self.reply()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", cut_short)
        with pytest.raises(SystemExit):
            store.open(run, Opening([w0], {w0: [b"part"]}, {"A": [bytes(LARGE)]}))
    assert server.call("KEYS", f"shoal:{{{run}}}*") == []
    with pytest.raises(RunOver):
        store.enter(run, w0, 1)


@pytest.mark.parametrize("nbytes", [50_000, 4_000_000])
def test_a_full_memory_is_an_error_with_advice(run: RunId, nbytes: int) -> None:
    with tcp_server("--maxmemory", "5mb", "--maxmemory-policy", "noeviction") as port:
        store = RedisStore(url_of(port))
        store.open(run, Opening([w0]))

        def fill() -> None:
            for number in range(200):
                store.complete(run, w0, 1, Completion([(f"o{number}", [bytes(nbytes)])]))

        with pytest.raises(StoreRefused, match=r"memory is full.*maxmemory"):
            fill()
        store.close(run, [w0])
        assert store._call([["KEYS", "*"]]) == [[]]
        store.disconnect()


def test_an_operation_after_disconnect_leaves_no_connection(
    store: RedisStore, server: Connection, run: RunId
) -> None:
    store.disconnect()
    store.open(run, Opening([w0]))
    with pytest.raises(StoreRefused):
        store._call([["NONSENSE"]])
    store.close(run, [w0])
    assert len(bytes(server.call("CLIENT", "LIST")).splitlines()) == 1


def test_latency_is_added_to_each_round_trip(
    tcp_port: int, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("shoal.storage.resp.time.sleep", slept.append)
    store = RedisStore(url_of(tcp_port), latency=0.03)
    slept.clear()
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([("a", [b"a"]), ("A", [bytes(LARGE)])]))
    store.fetch(run, ["a", "A"])
    assert slept == [0.03] * 3
    store.disconnect()


def test_workers_outside_the_plan_leave_nothing(store: RedisStore, run: RunId) -> None:
    store.open(run, Opening([w0], common=[b"common"], kind="2048"))
    store.enter(run, w0, 1)
    assert store.stop(run) == [w0]
    store.close(run, [])
    assert store._call([["KEYS", f"*{run}*"]]) == [[]]
