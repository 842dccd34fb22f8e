"""The scripts that run on the server: how they are loaded, and their declared keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from declared_keys import checking
from shoal.errors import StoreRefused
from shoal.metadata import remote
from shoal.storage import farm_queues, scripts, sharded
from shoal.storage.cache_server import ServerCache
from shoal.storage.resp import Connection, parse_url
from store_servers import url_of

FOLDER = Path(scripts.__file__).with_name("lua")
FILES = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.lua")}
INCLUDED = {name for text in FILES.values() for name in re.findall("-- include (.*)", text)}


def test_every_file_is_loaded_or_included() -> None:
    assert remote, (farm_queues, sharded, ServerCache)
    loaded = {f"{name}.lua" for name in scripts.loaded}
    assert loaded | INCLUDED == set(FILES)
    assert not loaded & INCLUDED


@pytest.mark.parametrize("file", sorted(FILES))
def test_each_file_starts_with_its_purpose_and_its_keys(file: str) -> None:
    lines = FILES[file].splitlines()
    head = lines[1:] if lines[0].startswith("#!") else lines
    assert re.match(r"-- [A-Z]", head[0])
    assert any(re.search(r"\bKEYS\b", line) for line in head if line.startswith("--"))


@pytest.mark.parametrize("file", sorted(set(FILES) - INCLUDED))
def test_arguments_have_names(file: str) -> None:
    """Only the lines that name them, and loops over the rest, read `KEYS[n]` and `ARGV[n]`."""
    for line in FILES[file].splitlines():
        if re.search(r"(KEYS|ARGV)\[\d", line) and not line.startswith("--"):
            assert line.startswith("local "), line


def test_an_included_file_replaces_its_line() -> None:
    source = scripts.source_of("farm/hire.lua")
    assert not re.search("^-- include", source, re.MULTILINE)
    assert source.index("local function need(") < source.index("local function refusal(")


@pytest.mark.parametrize("name", ["run/post", "run/beat"])
def test_first_line_that_sets_flags_stays_first(name: str) -> None:
    source = scripts.load(name).source
    assert checking(source).startswith("#!lua flags=allow-oom\n") == source.startswith("#!")


@pytest.fixture
def server(tcp_port: int) -> Iterator[Connection]:
    with closing(Connection(parse_url(url_of(tcp_port)))) as connection:
        yield connection


@pytest.mark.real
@pytest.mark.parametrize(
    "call", ["'GET', 'b'", "'UNLINK', KEYS[1], 'b'", "'RENAME', KEYS[1], 'b'", "'EXISTS', ARGV[1]"]
)
def test_check_of_keys_notices_one_that_is_not_declared(server: Connection, call: str) -> None:
    script = scripts.Script(checking(f"return redis.call({call})"))
    with pytest.raises(StoreRefused, match=r"undeclared key: [A-Z]+ b"):
        server.call(*script.evaluate(["a"], "b"))


@pytest.mark.real
def test_check_of_keys_lets_declared_ones_pass(server: Connection) -> None:
    script = scripts.Script(checking("redis.call('TIME') return redis.call('EXISTS', KEYS[1])"))
    assert server.call(*script.evaluate(["a"])) == 0
