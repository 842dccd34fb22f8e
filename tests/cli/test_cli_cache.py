"""`shoal cache`: what is kept is listed by task, and forgotten on demand."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_examples import Shoal

from shoal.storage.cache import entry_name
from shoal.storage.cachefolder import FolderCache
from shoal.storage.cacheserver import ServerCache
from store_servers import tcp_server, url_of


@pytest.fixture
def kept(folder: Path) -> FolderCache:
    """The folder's cache, with outputs of two tasks."""
    cache = FolderCache(folder / "data" / "cache", 10**6)
    for number in range(3):
        cache.keep(entry_name("clean", str(number)), [bytes(500)])
    cache.keep(entry_name("merge all", "0"), [bytes(7)])
    return cache


def test_nothing_kept_is_said(shoal: Shoal, folder: Path) -> None:
    said = shoal("cache", "ls")
    assert said.code == 0
    assert f"No output is kept in {folder / 'data' / 'cache'}" in said.out
    assert shoal("cache", "clear").out == "0 outputs forgotten, 0 bytes\n"


def test_outputs_are_listed_by_task(shoal: Shoal, kept: FolderCache) -> None:
    head, *rows = [line.split() for line in shoal("cache", "ls").out.splitlines()]
    assert head == ["task", "outputs", "bytes", "last", "used"]
    assert [row[:-2] for row in rows] == [["clean", "3", "1,500"], ["merge", "all", "1", "7"]]


def test_outputs_of_a_task_are_forgotten(shoal: Shoal, kept: FolderCache) -> None:
    assert shoal("cache", "clear", "clean").out == "3 outputs forgotten, 1,500 bytes\n"
    assert [entry.task for entry in kept.entries()] == ["merge all"]


def test_all_outputs_are_forgotten(shoal: Shoal, kept: FolderCache) -> None:
    assert shoal("cache", "clear").out == "4 outputs forgotten, 1,507 bytes\n"
    assert kept.entries() == []


@pytest.mark.parametrize(
    ("name", "help"), [("claen", "did you mean 'clean'?"), ("x", "`shoal cache ls` lists what is.")]
)
def test_unknown_task_is_an_error_that_helps(
    shoal: Shoal, kept: FolderCache, name: str, help: str
) -> None:
    said = shoal("cache", "clear", name)
    assert said.code == 2
    assert f"No output of a task {name!r} is kept; {help}" in said.err
    assert len(kept.entries()) == 4


def test_folder_that_cannot_be_used_is_an_error(shoal: Shoal, kept: FolderCache) -> None:
    path = Path(kept.where) / "nbytes"
    path.unlink()
    path.mkdir()
    said = shoal("cache", "clear")
    assert said.code == 1
    assert f"The cache in {kept.where} can't be used: Is a directory." in said.err


@pytest.mark.real
def test_cache_on_a_store_is_the_one_meant_where_a_store_is_given(
    shoal: Shoal, kept: FolderCache
) -> None:
    with tcp_server() as port:
        cache = ServerCache(url_of(port), 10**6)
        cache.keep(entry_name("far", "0"), [bytes(9)])
        setting = f"store={url_of(port)}"
        out = shoal("cache", "ls", "--set", setting).out
        assert "far" in out
        assert "clean" not in out
        assert shoal("cache", "clear", "far", "--set", setting).code == 0
        assert cache.entries() == []
        cache.close()
