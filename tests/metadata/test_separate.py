"""A history that is kept apart from the store: on another server, or in a folder."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client.backends import history_folder, open_history
from shoal.errors import HistoryUnavailable, SettingsError
from shoal.metadata.remote import SeparateHistory
from shoal.metadata.sqlite import SqliteHistory
from shoal.session import Session
from shoal.settings import resolve
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.resp import Connection, parse_url
from shoal.workflow import task

NOBODY = "redis://127.0.0.1:1"

square = task(abs, name="square")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_history_is_in_the_folder_that_it_names(tmp_path: Path, scheme: str) -> None:
    given = {"history_url": f"{scheme}{tmp_path / 'kept'}", "folder": str(tmp_path / "data")}
    with closing(open_history(resolve(given))) as history:
        assert isinstance(history, SqliteHistory)
        assert history.where == str(tmp_path / "kept")


def test_history_is_in_its_folder_even_if_a_store_is_set(tmp_path: Path) -> None:
    given = {"history_url": str(tmp_path), "store": NOBODY}
    with closing(open_history(resolve(given))) as history:
        assert isinstance(history, SqliteHistory)


@pytest.mark.parametrize("url", ["mysql://host", "file://", "", "http://host/history"])
def test_a_url_that_names_no_history_is_an_error(url: str) -> None:
    with pytest.raises(SettingsError, match="history_url names no history"):
        history_folder(resolve({"history_url": url}))


def test_an_error_shows_no_password() -> None:
    with pytest.raises(SettingsError) as error:
        history_folder(resolve({"history_url": "mysql://me:secret@host"}))
    assert "secret" not in str(error.value)


def test_a_server_that_does_not_answer_is_the_historys_fault() -> None:
    with pytest.raises(HistoryUnavailable, match=r"the server at 127.0.0.1:1.*history_url"):
        open_history(resolve({"history_url": NOBODY}))


@pytest.mark.real
def test_runs_are_recorded_on_the_historys_own_server(emptied: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"history_url": emptied, "workers": 1, "progress": False}
    with Session(folder=str(tmp_path / "one"), **given) as first:
        assert first.compute(square(-3), name="apart") == [3]
    with Session(folder=str(tmp_path / "other"), **given) as second:
        assert second.plan(square(-3), name="apart").basis == "1 run"
        assert isinstance(second.history, SeparateHistory)
    assert not list(tmp_path.rglob("history*"))


@pytest.mark.real
def test_the_store_has_nothing_of_a_history_kept_apart(emptied: str, tmp_path: Path) -> None:
    with Session(store=emptied, history_url=str(tmp_path), workers=1, progress=False) as session:
        session.compute(square(-3), name="apart")
        session.settle()
        assert len(session.history.runs()) == 1
    with closing(Connection(parse_url(emptied))) as connection:
        assert not [key for key in connection.call("KEYS", "*") if b"history" in key]


@pytest.mark.real
def test_runs_go_on_when_the_historys_server_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer(tmp_path / "server")
    given: dict[str, Any] = {"history_url": server.url, "folder": str(tmp_path / "data")}
    with closing(server), Session(workers=1, progress=False, **given) as session:
        session.compute(square(-3), name="apart")
        session.settle()
        kill(server.url)
        assert session.compute(square(-4), name="apart") == [4]
        session.settle()
    (warning,) = {r.message for r in caplog.records if "history" in r.message}
    assert "runs ignore history" in warning


def kill(url: str) -> None:
    """Kill a server."""
    with closing(Connection(parse_url(url))) as connection:
        told = bytes(connection.call("INFO", "server"))
    os.kill(int(told.partition(b"process_id:")[2].split()[0]), signal.SIGKILL)
