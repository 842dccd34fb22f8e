"""Archives of modules are kept by their content, and nothing else is taken for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.errors import CodeLost, Tampered
from shoal.storage import keys
from shoal.storage.code import CodeServer, archive_name
from shoal.storage.resp import Connection, parse_url
from store_servers import url_of

pytestmark = pytest.mark.real

ARCHIVE = b"modules"
NAME = archive_name(ARCHIVE)


@pytest.fixture
def raw(tcp_port: int) -> Iterator[Connection]:
    """A connection to the server, whose database is empty at first."""
    connection = Connection(parse_url(url_of(tcp_port, db=8)))
    connection.call("FLUSHDB")
    yield connection
    connection.close()


@pytest.fixture
def server(raw: Connection, tcp_port: int) -> Iterator[CodeServer]:
    server = CodeServer(url_of(tcp_port, db=8))
    yield server
    server.disconnect()


def test_what_is_kept_is_found_by_its_name(server: CodeServer) -> None:
    assert not server.renew(NAME)
    server.keep(NAME, ARCHIVE)
    assert server.renew(NAME)
    assert bytes(server.fetch(NAME)) == ARCHIVE


def test_each_use_renews_the_time_to_live(server: CodeServer, raw: Connection) -> None:
    key = keys.code_archive(NAME)
    server.keep(NAME, ARCHIVE)
    full = raw.call("TTL", key)
    assert full > 24 * 3600
    for use in (server.renew, server.fetch):
        raw.call("EXPIRE", key, 10)
        use(NAME)
        assert raw.call("TTL", key) >= full - 60


def test_a_missing_archive_is_an_error_that_says_what_to_do(server: CodeServer) -> None:
    with pytest.raises(CodeLost, match=r"no longer has the project's modules.*Run the workflow"):
        server.fetch(NAME)


def test_another_content_under_the_same_name_is_refused(
    server: CodeServer, raw: Connection
) -> None:
    raw.call("SET", keys.code_archive(NAME), b"something else")
    with pytest.raises(Tampered, match="has been changed"):
        server.fetch(NAME)


def test_several_servers_keep_all_archives_on_one(tcp_port: int, raw: Connection) -> None:
    store = ",".join(url_of(tcp_port, db=db) for db in (8, 9))
    first, second = CodeServer(store), CodeServer(store)
    first.keep(NAME, ARCHIVE)
    assert bytes(second.fetch(NAME)) == ARCHIVE
    first.disconnect()
    second.disconnect()
