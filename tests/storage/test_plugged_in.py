"""Stores of other packages: found by the scheme of their URLs, here and in workers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from packages_installed import install
from shoal import Session, task
from shoal.client.backends import open_cache, open_history, remote_platform
from shoal.errors import SettingsError
from shoal.metadata.sqlite import SqliteHistory
from shoal.settings import Settings
from shoal.storage.cache_folder import FolderCache
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.plugged_in import store_maker
from shoal.storage.sharded import open_store

MODULE = '''
from shoal.storage.redis import RedisStore


def make(url):
    """A server by another name."""
    store = RedisStore("unix" + url.removeprefix("elsewhere"))
    store.url = url
    return store


def broken(url): ...
del broken
'''


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a store, and one that can't be loaded."""
    (tmp_path / "elsewhere_store.py").write_text(MODULE)
    found = {"elsewhere": "elsewhere_store:make", "broken": "elsewhere_store:broken"}
    install(tmp_path, monkeypatch, "shoal.stores", **found)


@task(name="triple")
def triple(number: int) -> int:
    return 3 * number


@pytest.mark.real
def test_a_session_and_its_workers_use_a_store_of_another_package(tmp_path: Path) -> None:
    with closing(EmbeddedServer()) as server:
        url = server.url.replace("unix", "elsewhere", 1)
        with Session(store=url, folder=str(tmp_path / "data")) as session:
            assert session.compute(triple(triple(1))) == [9]
            assert session.store.url == url
            session.settle()
            assert isinstance(session.history, SqliteHistory)
            assert len(session.history.runs()) == 1


@pytest.mark.parametrize(
    "url", ["redis://localhost", "rediss+cluster://localhost:1", "unix:///x", "REDIS://localhost"]
)
def test_servers_are_never_looked_up(url: str) -> None:
    assert store_maker(url) is None


def test_an_unknown_scheme_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(SettingsError) as caught:
        open_store("elsewhat://user:secret@host/")
    said = str(caught.value)
    assert said.startswith("store='elsewhat://…@host/' is not a valid URL: use redis://HOST")
    assert "unix:///PATH, broken://, elsewhere://. Other stores need a package" in said


def test_a_store_that_cannot_be_loaded_is_an_error_in_words() -> None:
    said = "What is registered for broken:// as elsewhere_store:broken can't be used: AttributeErr"
    with pytest.raises(SettingsError, match=said):
        open_store("broken://x")


def test_history_and_cache_stay_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = Settings(store="elsewhere:///x")
    with closing(open_history(settings)) as history:
        assert isinstance(history, SqliteHistory)
    assert isinstance(open_cache(settings), FolderCache)


def test_an_engine_needs_a_server_and_says_so(tmp_path: Path) -> None:
    settings = Settings(store="elsewhere:///x", platform="process://", folder=str(tmp_path))
    with pytest.raises(SettingsError, match="is no Valkey or Redis server, which farms, engines"):
        remote_platform(settings)
