"""History on a server: its keys, its round trips, and a misbehaving server."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from shoal.client.backends import open_history
from shoal.errors import HistoryDamaged, StoreRefused, StoreUnavailable
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.remote import RedisHistory
from shoal.metadata.sqlite import SqliteHistory
from shoal.session import Session
from shoal.settings import resolve
from shoal.storage import keys
from shoal.storage.resp import Connection, parse_url
from shoal.types import RunId
from shoal.workflow import task

pytestmark = pytest.mark.real


@pytest.fixture
def server(emptied: str) -> Iterator[Connection]:
    """A direct connection to inspect the server's keys."""
    with closing(Connection(parse_url(emptied))) as connection:
        yield connection


@pytest.fixture
def history(emptied: str) -> Iterator[RedisHistory]:
    with closing(RedisHistory(emptied, kept=3)) as history:
        yield history


def file(history: RedisHistory, run: str, *, fingerprint: str = "f", started: float = 0) -> None:
    record = RunRecord(
        RunId(run), "flow", fingerprint, "planner", 1, 1, 1000.0 + started, 1.5, "done"
    )
    history.file(FiledRun(record, [], [b"a"], b"s" * 100_000))


def test_nothing_is_left_of_deleted_runs(history: RedisHistory, server: Connection) -> None:
    for number in range(6):
        file(history, f"r{number}", fingerprint=f"f{number % 4}", started=number)
    runs = [key for key in server.call("KEYS", "*") if b":run:" in key]
    assert len(runs) == 3
    assert server.call("HLEN", keys.history_shapes("flow")) == 3
    assert server.call("HLEN", keys.history_samples("flow")) == 3
    assert history.clear() == 3
    assert server.call("KEYS", "*") == []


def test_a_pickled_history_opens_the_same_server(history: RedisHistory) -> None:
    with closing(pickle.loads(pickle.dumps(history))) as same:
        for number in range(5):
            file(same, f"r{number}", started=number)
    assert len(history.runs()) == 3
    assert history.blocks("flow") == [b"s" * 100_000] * 3


def test_history_stays_bounded_when_shapes_change(
    history: RedisHistory, server: Connection
) -> None:
    for number in range(20):
        file(history, f"r{number}", fingerprint=f"f{number}", started=number)
        if number == 2:
            before = len(server.call("KEYS", "*"))
    assert len(server.call("KEYS", "*")) == before
    assert server.call("HLEN", keys.history_shapes("flow")) == 3


def test_damaged_samples_and_records_are_errors(
    history: RedisHistory, server: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    file(history, "r1")
    assert history.samples("flow") == history.samples("flow") == []
    (said,) = caplog.messages
    assert said.startswith("ignoring 1 of 1 runs of 'flow': their samples in the store at ")
    record = history.find("r1")
    server.call("HSET", keys.history_run("r1"), "0", "no timeline", "record", "{")
    with pytest.raises(HistoryDamaged, match=r"the store at .*`shoal history clear flow`"):
        history.load(record)
    for damage in ("{", "[]", '{"run": "r1"}'):
        server.call("HSET", keys.history_run("r1"), "record", damage)
        with pytest.raises(HistoryDamaged, match=r"the store at .*`shoal history clear --all`"):
            history.runs()
    assert history.clear() == 1


def test_all_keys_are_in_one_slot_of_a_cluster(history: RedisHistory, server: Connection) -> None:
    file(history, "r{1}")
    found = [str(key, "utf-8") for key in server.call("KEYS", "*")]
    assert found
    assert all(key.startswith("shoal:{history-2}:") for key in found)


def test_runs_are_recorded_and_read_after_the_server_lost_its_scripts(
    history: RedisHistory, server: Connection
) -> None:
    file(history, "r1")
    server.call("SCRIPT", "FLUSH")
    file(history, "r2", started=1)
    assert [run.run for run in history.runs()] == ["r2", "r1"]


def test_with_its_memory_full_the_server_records_nothing_of_a_run(
    history: RedisHistory, server: Connection
) -> None:
    file(history, "r1")
    before = {*server.call("KEYS", "*")}
    server.call("CONFIG", "SET", "maxmemory", "100kb")
    try:
        for run in ("r1", "r2"):
            with pytest.raises(StoreRefused, match="memory is full"):
                file(history, run, fingerprint="g", started=1)
        assert {*server.call("KEYS", "*")} == before
        assert [(run.run, run.fingerprint) for run in history.runs()] == [("r1", "f")]
        assert history.clear() == 1
    finally:
        server.call("CONFIG", "SET", "maxmemory", "0")


def test_samples_are_read_in_one_round_trip(
    history: RedisHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.samples("flow")
    trips: list[Any] = []
    send, here = Connection.send, threading.current_thread()

    def counted(self: Connection, commands: Sequence[Sequence[Any]]) -> None:
        if threading.current_thread() is here:  # runs of other tests may still be recording
            trips.append(commands)
        send(self, commands)

    monkeypatch.setattr(Connection, "send", counted)
    assert history.samples("flow") == []
    assert len(trips) == 1
    history.runs()
    assert len(trips) <= 3


@pytest.mark.parametrize(
    "evicted",
    [
        keys.history_run("r0"),
        keys.history_shapes("flow"),
        keys.history_samples("flow"),
        keys.history_named("flow"),
        keys.history_runs(),
        keys.history_ids(),
        keys.history_names(),
    ],
)
def test_an_evicted_key_causes_no_error(
    history: RedisHistory, server: Connection, evicted: str
) -> None:
    for number in range(3):
        file(history, f"r{number}", started=number)
    server.call("DEL", evicted)
    for number in range(3, 9):
        file(history, f"r{number}", started=number)
    assert len(history.runs(key="flow")) == 3
    assert history.count("flow", "f") <= 3


def test_fields_that_a_later_version_adds_are_ignored(
    history: RedisHistory, server: Connection
) -> None:
    file(history, "r1")
    key = keys.history_run("r1")
    kept = str(server.call("HGET", key, "record"), "utf-8")
    server.call("HSET", key, "record", kept.replace("{", '{"colour": "red", ', 1))
    assert history.find("r1").outcome == "done"


def test_the_location_hides_the_password(history: RedisHistory) -> None:
    assert history.where.startswith("the store at 127.0.0.1:")


def test_history_is_on_the_server_that_the_settings_name(emptied: str, tmp_path: object) -> None:
    with closing(open_history(resolve({"store": emptied}))) as history:
        assert isinstance(history, RedisHistory)
    for given in ({}, {"store": emptied, "folder": str(tmp_path)}):
        with closing(open_history(resolve(given))) as history:
            assert isinstance(history, SqliteHistory)
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        open_history(resolve({"store": "redis://127.0.0.1:1"}))


def test_a_run_is_planned_from_another_clients_history(emptied: str) -> None:
    square = task(abs, name="square")
    with Session(store=emptied, workers=1) as first:
        first.compute(square(-3), name="shared")
    with Session(store=emptied, workers=1) as second:
        assert second.plan(square(-3), name="shared").basis == "1 run"
        second.compute(square(-3), name="shared")
        second.settle()
        latest, earlier = second.history.runs()
        assert earlier.predicted is None
        assert latest.predicted is not None
        assert second.history.load(latest).timeline.of_kind("execute")
