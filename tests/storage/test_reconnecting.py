"""Clients wait for a server that drops connections, restarts or loads, but not forever."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dropping_proxy import DroppingProxy
from observing import TIMEOUT, eventually
from shoal.errors import (
    RunOver,
    StoreInterrupted,
    StoreRefused,
    StoreUnavailable,
)
from shoal.storage import backoff
from shoal.storage.backoff import Backoff
from shoal.storage.base import Completion, Opening
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, Received
from shoal.storage.outage import outage_of
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Address, Connection, not_ready, parse_url
from shoal.types import RunId, TaskId, WorkerId
from store_servers import reachable, serving, url_of

w0 = WorkerId("w0")
LARGE = 300_000


class Clock:
    """A clock that advances only by waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        monkeypatch.setattr(backoff.time, "monotonic", lambda: self.now)  # for every client

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    outage_of(str(WHERE)).ended()
    return Clock(monkeypatch)


WHERE = Address("host", 1, None)


def test_pauses_grow_with_jitter_until_the_total_time(clock: Clock) -> None:
    tries = Backoff(WHERE, 20.0, clock.wait)

    def try_for_ever() -> None:
        while tries.pause(StoreInterrupted("cut")):
            pass

    with pytest.raises(StoreUnavailable, match=r"host:1 has not answered for 20\.0 s.*cut"):
        try_for_ever()
    assert clock.pauses[0] == 0.0
    assert sum(clock.pauses) == pytest.approx(20.0)
    assert 20 < len(clock.pauses) < 60
    limit = 0.02
    for pause in clock.pauses[1:-1]:
        assert limit / 2 <= pause <= limit
        limit = min(2 * limit, 1.0)
    assert len(set(clock.pauses)) == len(clock.pauses)


def test_threads_share_one_deadline_and_a_late_one_tries_once(
    clock: Clock,
) -> None:
    early, late = (Backoff(WHERE, 4.0, clock.wait) for _ in range(2))
    error = StoreInterrupted("cut")
    while clock.now < 103.0:
        early.pause(error)
    while clock.now < 104.0:
        late.pause(error)
    for tries in (early, late, Backoff(WHERE, 4.0, clock.wait)):
        with pytest.raises(StoreUnavailable, match="has not answered for 4"):
            tries.pause(error)


def test_a_server_that_answered_in_between_gets_the_full_time_again(clock: Clock) -> None:
    outage = outage_of(str(WHERE))
    error = StoreInterrupted("cut")
    first = Backoff(WHERE, 1.0, clock.wait)
    while clock.now < 101.0:
        first.pause(error)
    outage.ended()
    assert not outage.lasts
    assert Backoff(WHERE, 1.0, clock.wait).pause(error)
    clock.now += 60.0  # nobody used the server in the meantime
    assert not outage.lasts
    assert Backoff(WHERE, 1.0, clock.wait).pause(error)


def test_outages_separated_by_any_reply_do_not_add_up(clock: Clock) -> None:
    """Each outage ends before the next starts, but the failed operation isn't repeated."""
    outage = outage_of(str(WHERE))
    for _ in range(40):
        assert Backoff(WHERE, 20.0, clock.wait).pause(StoreInterrupted("killed"))
        outage.ended()
        clock.now += 1.0
    with pytest.raises(StoreUnavailable, match=r"has not answered for 0\.0 s"):
        Backoff(WHERE, 0.0, clock.wait).pause(StoreInterrupted("killed"))


def test_an_operation_that_always_breaks_off_fails_even_if_others_succeed(
    clock: Clock,
) -> None:
    tries, outage = Backoff(WHERE, 20.0, clock.wait), outage_of(str(WHERE))

    def try_for_ever() -> None:
        while tries.pause(StoreInterrupted("cut")):
            outage.ended()

    with pytest.raises(StoreUnavailable, match=r"host:1 answers, but .* tries over 2\d\.\d s.*cut"):
        try_for_ever()


def test_slow_attempts_count_in_full(clock: Clock) -> None:
    """At an address that never replies, each attempt ends with a timeout."""
    tries = Backoff(WHERE, 20.0, clock.wait)

    def try_for_ever() -> None:
        while tries.pause(StoreInterrupted("timed out")):
            clock.now += 6.0

    with pytest.raises(StoreUnavailable, match=r"has not answered for 2\d\.\d s.*timed out"):
        try_for_ever()


def test_failure_names_the_node_that_failed(clock: Clock) -> None:
    with pytest.raises(StoreUnavailable, match=r"The store at other:2 has not answered"):
        Backoff(WHERE, 0.0, clock.wait).pause(StoreInterrupted("cut", "other:2"))


@pytest.mark.real
def test_a_reply_on_any_connection_of_the_process_ends_an_outage(
    tmp_path: Path, run: RunId
) -> None:
    with (
        serving(tmp_path) as server,
        closing_store(server.reached()) as store,
        closing_store(RedisStore(server.url)) as other,
    ):
        server.kill()
        store.progress(run)
        assert store._outage.lasts
        server.start()
        assert eventually(lambda: reachable(server.url))
        other.progress(run)
        assert not store._outage.lasts


def test_ending_a_pause_ends_the_retries() -> None:
    assert not Backoff(WHERE, 20.0, lambda seconds: True).pause(StoreInterrupted("cut"))


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


@pytest.fixture
def proxy(tcp_port: int) -> Iterator[DroppingProxy]:
    proxy = DroppingProxy(tcp_port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: DroppingProxy) -> Iterator[RedisStore]:
    store = RedisStore(url_of(proxy.port))
    yield store
    store.disconnect()


@pytest.mark.real
@pytest.mark.parametrize("way", ["to", "from"])
@pytest.mark.parametrize("position", [0, 1, 20_000])
def test_a_batch_cut_short_by_a_drop_is_repeated_as_a_whole(
    proxy: DroppingProxy, store: RedisStore, run: RunId, way: str, position: int
) -> None:
    """Large outputs are sent before the script that saves them; both are sent again."""
    left = 3

    def drops(direction: str, data: bytes) -> int | None:
        nonlocal left
        if direction != way or not left:
            return None
        left -= 1
        return min(position, len(data) - 1)

    store.open(run, Opening([w0]))
    contents = [bytes([n]) * LARGE for n in range(3)]
    saves = [(f"o{n}", [content]) for n, content in enumerate(contents)]
    proxy.drops = drops
    store.complete(run, w0, 1, Completion([*saves, ("small", [b"s"])], executed=4))
    assert proxy.dropped == 3
    proxy.dropped, left = 0, 3
    found = store.fetch(run, ["o0", "o1", "o2", "small", "none"])
    assert [bytes(data) for data in found[:4] if data is not None] == [*contents, b"s"]
    assert found[4] is None
    assert proxy.dropped == 3
    assert store.progress(run) == 4
    store.close(run, [w0])


@pytest.mark.real
def test_receiving_survives_a_dropped_connection(
    proxy: DroppingProxy, store: RedisStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    letters: list[Received] = []
    thread = begun(lambda: letters.extend(store.receive(run, CLIENT, "", TIMEOUT)))
    assert eventually(lambda: store._mailbox_connections._waiting)
    for _ in range(3):
        proxy.drop_all()
        thread.join(0.05)
        assert thread.is_alive()
    store.post(run, OutputReady(TaskId("o")))
    thread.join(TIMEOUT)
    assert [each.letter for each in letters] == [OutputReady(TaskId("o"))]


def begun(what: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


@pytest.mark.real
def test_a_server_restarted_with_its_file_continues_where_it_was(
    tmp_path: Path, run: RunId
) -> None:
    with (
        serving(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server,
        closing_store(server.reached()) as store,
    ):
        assert store.durable
        store.open(run, Opening([w0]))
        store.complete(run, w0, 1, Completion([("a", [b"a"])]))
        letters: list[Received] = []
        thread = begun(lambda: letters.extend(store.receive(run, CLIENT, "", TIMEOUT)))
        assert eventually(lambda: store._mailbox_connections._waiting)
        server.kill()
        fetched: list[Any] = []
        other = begun(lambda: fetched.extend(store.fetch(run, ["a"])))
        other.join(0.1)
        assert other.is_alive()
        server.start()
        other.join(TIMEOUT)
        assert fetched == [b"a"]
        store.post(run, OutputReady(TaskId("o")))
        thread.join(TIMEOUT)
        assert [each.letter for each in letters] == [OutputReady(TaskId("o"))]


@contextmanager
def closing_store(store: RedisStore) -> Iterator[RedisStore]:
    try:
        yield store
    finally:
        store.disconnect()


@pytest.mark.real
def test_an_old_copy_of_a_run_on_a_restarted_server_is_rejected(tmp_path: Path, run: RunId) -> None:
    """A snapshot lacks later writes, and nothing in the data shows that."""
    with serving(tmp_path) as server, closing_store(server.reached()) as store:
        assert not store.durable
        store.open(run, Opening([w0]))
        store._call([["SAVE"]])
        store.post(run, OutputReady(TaskId("o")))
        server.kill()
        server.start()
        with pytest.raises(RunOver, match="restarted without its data"):
            store.receive(run, CLIENT, "", TIMEOUT)
        assert store.fetch(run, ["none"]) == [None]
        again = RunId(f"{run}-again")
        store.open(again, Opening([w0]))
        assert store.receive(again, CLIENT, "", 0) == []


@pytest.mark.real
def test_the_error_about_a_server_that_stays_away_says_how_long_it_was_tried(
    tmp_path: Path, run: RunId
) -> None:
    with (
        serving(tmp_path) as server,
        closing_store(server.reached("?reconnect_seconds=0.3")) as store,
    ):
        store.open(run, Opening([w0]))
        server.kill()
        said = r"has not answered for 0\.[3-9] s \(reconnect_seconds is 0\.3\).*refused"
        with pytest.raises(StoreUnavailable, match=said):
            store.receive(run, CLIENT, "", TIMEOUT)
        for operation in (lambda: store.fetch(run, ["a"]), lambda: store.close(run, [w0])):
            with pytest.raises(StoreUnavailable, match="has not answered for"):
                operation()


@pytest.mark.real
def test_while_the_server_is_away_progress_is_the_last_known_one(
    tmp_path: Path, run: RunId
) -> None:
    with serving(tmp_path) as server, closing_store(server.reached()) as store:
        store.open(run, Opening([w0]))
        store.complete(run, w0, 1, Completion(executed=3))
        assert store.progress(run) == 3
        server.kill()
        assert store.progress(run) == 3
        assert store.progress(RunId("another")) == 0


@pytest.mark.real
def test_only_a_client_that_has_reached_the_server_waits_for_it(tmp_path: Path, run: RunId) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        server.kill()
        with pytest.raises(StoreUnavailable, match="Is the server running"):
            RedisStore(server.url)
        with closing_store(RedisStore(server.url, known=True)) as store:
            thread = begun(lambda: store.open(run, Opening([w0])))
            thread.join(0.1)
            assert thread.is_alive()
            server.start()
            thread.join(TIMEOUT)
            assert store.fetch(run, ["a"]) == [None]


@pytest.mark.real
@pytest.mark.parametrize("how", ["hang up", "disconnect"])
def test_waiting_for_a_server_can_be_interrupted(tmp_path: Path, run: RunId, how: str) -> None:
    with serving(tmp_path) as server, closing_store(server.reached()) as store:
        store.open(run, Opening([w0]))
        ends: list[object] = []

        def receive() -> None:
            try:
                ends.append(store.receive(run, CLIENT, "", TIMEOUT))
            except StoreUnavailable as error:
                ends.append(type(error))

        def fetch() -> None:
            with pytest.raises(StoreUnavailable):
                store.fetch(run, ["a"])

        threads = [begun(receive)]
        assert eventually(lambda: store._mailbox_connections._waiting)
        server.kill()
        assert eventually(lambda: store._outage.lasts)
        if how == "hang up":
            store.hang_up(run, CLIENT)
        else:
            threads.append(begun(fetch))
            store.disconnect()
        for thread in threads:
            thread.join(10.0)  # it would try for twice as long otherwise
            assert not thread.is_alive()
        assert ends == ([[]] if how == "hang up" else [StoreInterrupted])


@pytest.mark.real
def test_closing_a_run_does_not_wait_for_an_absent_server(tmp_path: Path, run: RunId) -> None:
    with serving(tmp_path) as server, closing_store(server.reached()) as store:
        store.open(run, Opening([w0]))
        server.kill()
        begun(lambda: store.receive(run, CLIENT, "", TIMEOUT))
        assert eventually(lambda: store._outage.lasts)
        store.hang_up(run, CLIENT)
        with pytest.raises(StoreUnavailable, match=r"has not answered for [1-9]\.\d s "):
            store.close(run, [w0])


@pytest.mark.real
def test_a_wrong_password_is_not_retried(tcp_port: int) -> None:
    url = f"redis://:wrong@127.0.0.1:{tcp_port}"
    with pytest.raises(StoreRefused, match="rejected the login"):
        RedisStore(url)
    with pytest.raises(StoreRefused, match="rejected the login"):
        RedisStore(url, known=True).progress(RunId("none"))


@pytest.mark.real
def test_a_server_that_is_loading_its_data_is_waited_for(tmp_path: Path, run: RunId) -> None:
    slowly = ("--key-load-delay", "200")
    with serving(tmp_path, "--appendonly", "yes", *slowly) as server:
        with closing_store(server.reached()) as store:
            store._call([["SET", f"key{number}", "x" * 100] for number in range(5000)])
            store._call([["SET", "last", "1"]])
        for known in (False, True):
            server.kill()
            server.start()
            assert eventually(lambda: is_loading(server.url))
            with closing_store(RedisStore(server.url, known=known)) as store:
                assert store._call([["GET", "last"]]) == [b"1"]


def is_loading(url: str) -> bool:
    try:
        Connection(parse_url(url)).close()
    except StoreInterrupted as error:
        return not_ready(error.__cause__)
    return False


@pytest.mark.real
def test_server_that_has_lost_its_primary_is_waited_for(tmp_path: Path, run: RunId) -> None:
    with (
        serving(tmp_path, "--replica-serve-stale-data", "no") as server,
        closing_store(server.reached()) as store,
    ):
        connection = Connection(parse_url(server.url))
        store.open(run, Opening([w0]))
        connection.call("REPLICAOF", "127.0.0.1", 1)
        waiting = [
            begun(lambda: store.fetch(run, ["a"])),
            begun(lambda: store.receive(run, CLIENT, "", 0)),
        ]
        assert eventually(lambda: store._outage.lasts)
        assert all(thread.is_alive() for thread in waiting)
        connection.call("REPLICAOF", "NO", "ONE")
        for thread in waiting:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        connection.close()


@pytest.mark.parametrize(
    ("reply", "passes"),
    [
        ("LOADING Valkey is loading the dataset in memory", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("WRONGPASS invalid username-password pair", False),
        ("OOM command not allowed", False),
        ("ERR unknown command 'LOADING'", False),
    ],
)
def test_only_transient_error_replies_are_retried(reply: str, passes: bool) -> None:
    assert not_ready(StoreRefused(reply)) == passes
    assert not not_ready(reply.encode())


@pytest.mark.real
def test_connecting_to_a_frozen_server_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.storage.resp._CONNECT_SECONDS", 0.1)
    with serving(tmp_path) as server:
        server.reached().disconnect()
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreInterrupted, match="timed out"):
            Connection(parse_url(server.url))
