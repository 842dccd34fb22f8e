"""`shoal cache` lists cached outputs by task and deletes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_examples import Shoal

from shoal.storage.cache import entry_name
from shoal.storage.cache_folder import FolderCache
from shoal.storage.cache_server import ServerCache
from store_servers import tcp_server, url_of


@pytest.fixture
def kept(folder: Path) -> FolderCache:
    """The cache of the folder, with outputs of two tasks."""
    cache = FolderCache(folder / "data" / "cache", 10**6)
    for number in range(3):
        cache.keep(entry_name("clean", str(number)), [bytes(500)])
    cache.keep(entry_name("merge all", "0"), [bytes(7)])
    return cache


def test_an_empty_cache_is_reported(shoal: Shoal, folder: Path) -> None:
    said = shoal("cache", "ls")
    assert said.code == 0
    assert f"{folder / 'data' / 'cache'} has no cached outputs" in said.out
    assert shoal("cache", "clear").out == "deleted 0 outputs, 0 bytes\n"


def test_outputs_are_listed_by_task(shoal: Shoal, kept: FolderCache) -> None:
    head, *rows = [line.split() for line in shoal("cache", "ls").out.splitlines()]
    assert head == ["task", "outputs", "bytes", "last", "used"]
    assert [row[:-2] for row in rows] == [["clean", "3", "1,500"], ["merge", "all", "1", "7"]]


def test_the_outputs_of_one_task_can_be_deleted(shoal: Shoal, kept: FolderCache) -> None:
    assert shoal("cache", "clear", "clean").out == "deleted 3 outputs, 1,500 bytes\n"
    assert [entry.task for entry in kept.entries()] == ["merge all"]


def test_all_outputs_can_be_deleted(shoal: Shoal, kept: FolderCache) -> None:
    assert shoal("cache", "clear").out == "deleted 4 outputs, 1,507 bytes\n"
    assert kept.entries() == []


@pytest.mark.parametrize(
    ("name", "help"),
    [("claen", "did you mean 'clean'?"), ("x", "`shoal cache ls` lists the tasks that do.")],
)
def test_an_unknown_task_is_an_error_with_a_suggestion(
    shoal: Shoal, kept: FolderCache, name: str, help: str
) -> None:
    said = shoal("cache", "clear", name)
    assert said.code == 2
    assert f"Task {name!r} has no cached outputs; {help}" in said.err
    assert len(kept.entries()) == 4


def test_an_unusable_folder_is_an_error(shoal: Shoal, kept: FolderCache) -> None:
    path = Path(kept.where) / "nbytes"
    path.unlink()
    path.mkdir()
    said = shoal("cache", "clear")
    assert said.code == 1
    assert f"The cache in {kept.where} can't be used: Is a directory." in said.err


@pytest.mark.real
def test_with_a_store_set_the_cache_is_the_one_on_the_store(
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
