"""The wire protocol, against canned replies and real servers."""

from __future__ import annotations

import contextlib
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropping_proxy import DroppingProxy, at_speed
from observing import TIMEOUT, eventually
from shoal.errors import RunOver, SettingsError, StoreRefused, StoreUnavailable
from shoal.storage.base import Opening
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady
from shoal.storage.redis import RedisStore
from shoal.storage.resp import (
    RECONNECT_SECONDS,
    Address,
    Connection,
    parse_url,
    urls_in,
    with_certificates,
    with_reconnect_seconds,
)
from shoal.types import RunId, TaskId, WorkerId
from store_servers import PASSWORD, url_of
from tls_proxy import tls_in_front

NOWHERE = Address("nowhere", 1, None)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", Address("localhost", 6379, None)),
        ("redis://host", Address("host", 6379, None)),
        ("redis://host:7000/2", Address("host", 7000, None, db=2)),
        ("redis://host/?db=4", Address("host", 6379, None, db=4)),
        ("redis://[::1]:7000", Address("::1", 7000, None)),
        ("valkey://host", Address("host", 6379, None)),
        ("redis://:secret@host", Address("host", 6379, None, password="secret")),
        (
            "redis://me:p%40ss%2Fw%20%23@host:1/0",
            Address("host", 1, None, username="me", password="p@ss/w #"),
        ),
        ("rediss://host:7000", Address("host", 7000, None, tls=True)),
        ("valkeys://host", Address("host", 6379, None, tls=True)),
        (
            "rediss://host?ca_file=/a/b.pem",
            Address("host", 6379, None, tls=True, ca_file="/a/b.pem"),
        ),
        (
            "rediss://host?ca_data=-----BEGIN%20A%2B%2F%0A",
            Address("host", 6379, None, tls=True, ca_data="-----BEGIN A+/\n"),
        ),
        ("unix:///run/x.sock", Address("localhost", 6379, "/run/x.sock")),
        ("unix:///run/a%20b%23.sock?db=3", Address("localhost", 6379, "/run/a b#.sock", db=3)),
        (
            "unix://me:secret@/run/x.sock",
            Address("localhost", 6379, "/run/x.sock", username="me", password="secret"),
        ),
    ],
)
def test_url_gives_the_address(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6379",
        "http://host",
        "http://me:secret@host",
        "me:secret@host:6379",
        "secret@host",
        "redis://:secret@host:port",
        "redis://:secret@host:99999",
        "redis://:secret@host/db",
        "redis://:secret@host?db=x",
        "redis://:secret@host?reconnect_seconds=x",
        "redis://:secret@host?reconnect_seconds=-1",
        "redis://:secret@host?reconnect_seconds=nan",
        "redis://:secret@host?reconnect_seconds=inf",
        "redis://:secret@[::1",
        "redis://:sec/secret@host",
        "redis://:sec#secret@host",
        "redis://:12#secret@host",
        "redis://:sec?secret@host:x",
        "unix://",
        "unix:///",
        "unix://relative/x.sock",
        "unix:///run/x.sock?db=secret@x",
    ],
)
def test_a_bad_url_is_rejected_without_showing_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_url(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert "redis://" in str(caught.value) or "unix://" in str(caught.value)


def test_address_is_shown_without_its_password() -> None:
    assert str(parse_url("redis://me:secret@host:1")) == "host:1"
    assert str(parse_url("unix://me:secret@/run/x.sock")) == "unix socket /run/x.sock"


def test_the_url_carries_how_long_to_wait_for_the_server() -> None:
    assert parse_url("redis://host").reconnect_seconds == RECONNECT_SECONDS
    for url in ("redis://host/1", "unix:///run/x.sock", "redis://host?ca_file=x"):
        assert with_reconnect_seconds(url, RECONNECT_SECONDS) == url
        told = parse_url(once := with_reconnect_seconds(url, 2.5))
        assert told == replace(parse_url(url), reconnect_seconds=2.5)
        assert with_reconnect_seconds(once, 7.0) == once


def test_certificates_take_the_place_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN A+/=\n")
    url = f"rediss://me:p%40ss@host:1/2?ca_file={tmp_path}/ca.pem&reconnect_seconds=3"
    carried = with_certificates(f"redis://other,{url}")
    first, second = (parse_url(each) for each in urls_in(carried))
    assert first == parse_url("redis://other")
    assert second == replace(parse_url(url), ca_file=None, ca_data="-----BEGIN A+/=\n")
    assert with_certificates(carried) == carried
    with pytest.raises(SettingsError, match="nowhere"):
        with_certificates("rediss://host?ca_file=/nowhere.pem")


class Canned(Connection):
    """A connection to a server that sends prepared replies, in pieces of any size."""

    def __init__(self, pieces: list[bytes], *, met: bool = False) -> None:
        self.pieces = [b"+PONG\r\n", *pieces]
        self.sent = b""
        address = replace(NOWHERE, password="secret", db=2) if met else NOWHERE
        super().__init__(address, met=met)
        self.sent = b""

    def _connect(self) -> Any:
        return self

    def settimeout(self, seconds: float) -> None:
        """Do nothing: all replies are available at once."""

    def recv_into(self, view: memoryview) -> int:
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        taken = min(len(piece), len(view))
        view[:taken] = piece[:taken]
        if piece[taken:]:
            self.pieces.insert(0, piece[taken:])
        return taken

    def sendmsg(self, views: list[memoryview]) -> int:
        """Accept only a part, as a busy network would."""
        data = b"".join(views)
        taken = max(1, len(data) // 2)
        self.sent += data[:taken]
        return taken

    def close(self) -> None:
        pass


def resp(value: Any) -> bytes:
    """Encode a reply as a server does; text becomes a status, an exception an error."""
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case str():
            return b"+%s\r\n" % value.encode()
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(resp, value))
        case StoreRefused():
            return b"-%s\r\n" % str(value).encode()
    raise TypeError(value)


def simple(value: Any) -> Any:
    """Return a reply in a comparable form."""
    match value:
        case list():
            return [simple(item) for item in value]
        case StoreRefused():
            return ("refused", str(value))
        case str():
            return value.encode()
        case bytearray() | memoryview():
            return bytes(value)
    return value


EVERY_KIND = [
    None,
    0,
    -17,
    1 << 62,
    "OK",
    b"",
    b"\r\n",
    b"bulk \x00\xff\r\n$3\r\n",
    [],
    [1, b"two", None, ["three", [b""]], StoreRefused("ERR inner")],
    StoreRefused("WRONGTYPE of thing"),
]


@pytest.mark.parametrize("value", EVERY_KIND, ids=repr)
def test_replies_of_every_type_are_parsed(value: Any) -> None:
    connection = Canned([resp(value)])
    assert simple(connection.pipeline([("ANY",)])[0]) == simple(value)


def test_null_array_is_none() -> None:
    assert Canned([b"*-1\r\n"]).call("EXEC") is None


def test_replies_split_at_any_byte_are_parsed() -> None:
    written = b"".join(map(resp, EVERY_KIND))
    commands = [("ANY",)] * len(EVERY_KIND)
    expected = simple(EVERY_KIND)
    for at in range(len(written) + 1):
        pieces = [piece for piece in (written[:at], written[at:]) if piece]
        assert simple(Canned(pieces).pipeline(commands)) == expected
    single = [written[at : at + 1] for at in range(len(written))]
    assert simple(Canned(single).pipeline(commands)) == expected


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.binary(max_size=40)),
    lambda inner: st.lists(inner, max_size=4),
)


@given(st.lists(values, min_size=1, max_size=5), st.data())
def test_any_replies_in_any_pieces_are_parsed(replies: list[Any], data: st.DataObject) -> None:
    written = b"".join(map(resp, replies))
    cuts = data.draw(st.lists(st.integers(1, len(written)), max_size=6, unique=True).map(sorted))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True) if b > a]
    assert simple(Canned(pieces).pipeline([("ANY",)] * len(replies))) == simple(replies)


@pytest.mark.slow
@pytest.mark.parametrize("length", [65_525, 65_526, 65_527, 65_534, 65_535, 65_536, 65_537, 10**6])
@pytest.mark.parametrize("step", [1000, 1 << 16, 1 << 30])
def test_replies_larger_than_the_read_buffer_are_parsed(length: int, step: int) -> None:
    replies = [b"a" * length, [b"b" * length, 5, b"c"], b"d", list(range(20_000))]
    written = b"".join(map(resp, replies))
    pieces = [written[at : at + step] for at in range(0, len(written), step)]
    assert simple(Canned(pieces).pipeline([("ANY",)] * 4)) == simple(replies)


def test_a_large_reply_is_writable_memory() -> None:
    reply = Canned([resp(b"x" * 100_000)]).call("GET", "a")
    assert not memoryview(reply).readonly


def test_commands_are_written_in_the_protocols_format() -> None:
    connection = Canned([resp(1), resp(1)])
    connection.pipeline([("SET", "ü", b"\r\n", 5, 2.5), ("GET", bytearray(b"\x00"))])
    assert connection.sent == (
        b"*5\r\n$3\r\nSET\r\n$2\r\n\xc3\xbc\r\n$2\r\n\r\n\r\n$1\r\n5\r\n$3\r\n2.5\r\n"
        b"*2\r\n$3\r\nGET\r\n$1\r\n\x00\r\n"
    )


def test_buffers_of_any_size_are_one_argument() -> None:
    buffers: Blob = [b"head", memoryview(b"x" * 100_000), b"", bytearray(40_000), b"tail"]
    whole = b"".join(buffers)
    connection = Canned([resp(1)])
    connection.call("SET", "a", buffers, "EX", 10)
    args = [b"SET", b"a", whole, b"EX", b"10"]
    assert connection.sent == resp(args)


def test_more_buffers_than_one_system_call_takes_are_all_written() -> None:
    buffers = [bytes([number % 256]) * 40_000 for number in range(700)]
    connection = Canned([resp(1)])
    connection.call("SET", "a", list(buffers))
    assert connection.sent == resp([b"SET", b"a", b"".join(buffers)])


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b":1x\r\n", b"*\r\n", b"\r\n"]
)
def test_an_invalid_reply_is_reported_as_such(said: bytes) -> None:
    with pytest.raises(StoreUnavailable, match="another protocol"):
        Canned([said]).call("GET", "a")


def test_an_endless_line_is_cut_off() -> None:
    with pytest.raises(StoreUnavailable, match="too long"):
        Canned([b"+" + b"x" * 100_000]).call("GET", "a")


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_server_that_disconnects_within_a_reply_is_reported_as_such(length: int) -> None:
    with pytest.raises(StoreUnavailable, match="closed the connection"):
        Canned([resp(b"x" * length)[:-5]]).call("GET", "a")


@contextlib.contextmanager
def listening(greeting: bytes, answer: bytes = b"") -> Iterator[int]:
    """Run something that is no store: it greets, answers once and disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.sendall(greeting)
                client.recv(1000)
                client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(TIMEOUT)
        assert not thread.is_alive()


@pytest.mark.real
@pytest.mark.parametrize(
    ("greeting", "answer", "said"),
    [
        (b"", b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", "HTTP/1.1 400"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"", "SSH-2.0"),
        (b"220 mail.example.org ESMTP\r\n", b"", "220 mail"),
        (b"+OK POP3 ready\r\n", b"", "OK POP3"),
        (b"", b"ERROR\r\n", "ERROR"),
    ],
    ids=["http", "ssh", "smtp", "pop3", "memcached"],
)
def test_a_server_that_is_no_store_is_reported_as_such(
    greeting: bytes, answer: bytes, said: str
) -> None:
    with listening(greeting, answer) as port:
        with pytest.raises(StoreUnavailable, match="speaks another protocol") as caught:
            Connection(parse_url(f"redis://127.0.0.1:{port}"))
        assert said in str(caught.value)
        assert f"127.0.0.1:{port}" in str(caught.value)


@pytest.mark.real
def test_a_server_that_disconnects_at_once_is_reported_as_such() -> None:
    with (
        listening(b"") as port,
        pytest.raises(StoreUnavailable, match=r"closed the connection|reset"),
    ):
        Connection(parse_url(f"redis://127.0.0.1:{port}"))


@pytest.mark.real
def test_a_server_without_tls_is_reported_as_such() -> None:
    with (
        listening(b"", b"-ERR unknown command\r\n") as port,
        pytest.raises(StoreUnavailable, match="can't be reached"),
    ):
        Connection(parse_url(f"rediss://127.0.0.1:{port}"))


def test_an_unreachable_address_is_an_error_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="refused") as caught:
        RedisStore(f"redis://:secret@127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "Is the server running" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_socket_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="Is the server running"):
        RedisStore(f"unix://{tmp_path}/none.sock")


def test_an_unknown_host_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(StoreUnavailable, match="is the address right"):
        RedisStore("redis://no-such-host:6379")


@pytest.mark.real
@pytest.mark.parametrize("user", ["", "default", "stranger"])
def test_a_wrong_password_is_an_error_that_does_not_show_it(tcp_port: int, user: str) -> None:
    with pytest.raises(StoreRefused, match="rejected the login") as caught:
        RedisStore(f"redis://{user}:swordfish@127.0.0.1:{tcp_port}")
    assert "WRONGPASS" in str(caught.value)
    assert "password" in str(caught.value)
    assert "swordfish" not in str(caught.value)


@pytest.mark.real
def test_a_missing_password_is_an_error_with_advice(tcp_port: int) -> None:
    with pytest.raises(StoreRefused, match="Check the user name, password"):
        RedisStore(f"redis://127.0.0.1:{tcp_port}")


@pytest.mark.real
def test_a_missing_database_is_an_error_with_advice(tcp_port: int) -> None:
    with pytest.raises(StoreRefused, match="database in the store's URL"):
        RedisStore(url_of(tcp_port, db=1000))


@pytest.mark.real
def test_user_name_and_password_are_accepted(tcp_port: int) -> None:
    address = parse_url(url_of(tcp_port).replace("redis://", "redis://default"))
    assert address.username == "default"
    connection = Connection(address)
    assert connection.call("PING") == b"PONG"
    connection.close()


def test_a_known_server_gets_the_greeting_with_the_first_command() -> None:
    canned = Canned([], met=True)
    assert canned.sent == b""
    canned.pieces = [resp("OK"), resp("OK"), resp(7)]
    assert canned.call("INCR", "x") == 7
    at = [canned.sent.index(word) for word in (b"AUTH", b"SELECT", b"INCR")]
    assert at == sorted(at)
    assert b"PING" not in canned.sent


def test_a_known_server_may_still_reject_the_login() -> None:
    canned = Canned([], met=True)
    canned.pieces = [resp(StoreRefused("WRONGPASS")), resp("OK"), resp(7)]
    with pytest.raises(StoreRefused, match="rejected the login: WRONGPASS"):
        canned.call("INCR", "x")


@pytest.mark.real
@pytest.mark.parametrize("known", [False, True])
def test_only_a_client_told_that_the_server_is_ready_skips_the_check(
    tcp_port: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reconnects may find a server that is loading its data, so it asks first."""
    noted: list[bool] = []

    class Noted(Connection):
        def __init__(self, address: Address, latency: float = 0.0, *, met: bool = False) -> None:
            noted.append(met)
            super().__init__(address, latency, met=met)

    monkeypatch.setattr("shoal.storage.server.Connection", Noted)
    store = RedisStore(url_of(tcp_port), known=known)
    for _ in range(2):
        store.progress(RunId("nobody"))
        store._connection.close()  # type: ignore[union-attr]
        store._connection = None
    assert noted == [known] * 2
    store.disconnect()


@pytest.fixture
def connection(tcp_port: int) -> Iterator[Connection]:
    connection = Connection(parse_url(url_of(tcp_port, db=7)))
    connection.call("FLUSHDB")
    yield connection
    connection.close()


@pytest.mark.real
def test_pipeline_answers_each_command_in_order(connection: Connection) -> None:
    replies = connection.pipeline(
        [("SET", "a", "1"), ("INCR", "a"), ("GET", "a"), ("LPUSH", "a", 1), ("GET", "none")]
        + [("ECHO", f"{number}" * 1000) for number in range(500)]
    )
    assert replies[:3] == [b"OK", 2, b"2"]
    assert isinstance(replies[3], StoreRefused)
    assert "WRONGTYPE" in str(replies[3])
    assert replies[4] is None
    assert simple(replies[5:]) == [f"{number}".encode() * 1000 for number in range(500)]


@pytest.mark.real
def test_error_reply_is_raised_and_the_connection_goes_on(connection: Connection) -> None:
    with pytest.raises(StoreRefused, match="unknown command"):
        connection.call("NONSENSE")
    assert connection.call("PING") == b"PONG"


@pytest.mark.real
@pytest.mark.parametrize("nbytes", [0, 1, 65_534, 65_536, 20_000_000])
def test_values_of_any_size_survive(connection: Connection, nbytes: int) -> None:
    value = bytes(range(256)) * (nbytes // 256 + 1)
    value = value[:nbytes]
    connection.call("SET", "a", [value[: nbytes // 3], memoryview(value)[nbytes // 3 :]])
    assert bytes(connection.call("GET", "a")) == value


@pytest.mark.real
def test_closing_a_connection_ends_its_pending_call(tcp_port: int) -> None:
    connection = Connection(parse_url(url_of(tcp_port)))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            connection.call("BLPOP", "nothing", 0)
        except StoreUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(0.02)
    connection.hang_up()
    thread.join(TIMEOUT)
    assert len(errors) == 1


@pytest.mark.real
def test_connection_knows_that_the_server_dropped_it(tcp_port: int, connection: Connection) -> None:
    other = Connection(parse_url(url_of(tcp_port)))
    assert not other.dropped
    connection.call("CLIENT", "KILL", "ID", other.call("CLIENT", "ID"))
    assert eventually(lambda: other.dropped)
    other.close()


@pytest.fixture
def tls_port(tcp_port: int, certificate: Path) -> Iterator[int]:
    with tls_in_front(certificate, tcp_port) as port:
        yield port


@pytest.mark.real
def test_store_works_over_tls(tls_port: int, certificate: Path) -> None:
    secure = url_of(tls_port).replace("redis://", "rediss://") + f"?ca_file={certificate}"
    store = RedisStore(secure)
    run, large = RunId("tls"), b"x" * 3_000_000
    store.open(run, Opening([WorkerId("w")], outputs={"a": [b"small"], "A": [b"head", large]}))
    assert [bytes(data or b"") for data in store.fetch(run, ["a", "A"])] == [
        b"small",
        b"head" + large,
    ]
    found: list[Any] = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: found.append(store.receive(run, CLIENT, "", TIMEOUT)), daemon=True
        )
        thread.start()
        thread.join(0.05)
        store.hang_up(run, CLIENT)
        thread.join(TIMEOUT)
    assert found == [[], []]
    store.post(run, OutputReady(TaskId("a")))
    assert [letter for _, letter in store.receive(run, CLIENT, "", TIMEOUT)] == [
        OutputReady(TaskId("a"))
    ]
    store.close(run, [WorkerId("w")])
    with pytest.raises(RunOver):
        store.fetch(run, ["a"])
    store.disconnect()


SLOWLY = 1_000_000
"""Bytes per second: a transfer takes two seconds, each of its parts a fraction of a second."""


@pytest.mark.real
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("pieces", [1, 2])
def test_the_time_limit_applies_to_each_part_of_a_transfer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tls: bool, pieces: int
) -> None:
    monkeypatch.setattr("shoal.storage.resp._REPLY_SECONDS", 0.8)
    port = request.getfixturevalue("tls_port" if tls else "tcp_port")
    proxy = DroppingProxy(port, at_speed(SLOWLY), narrow=True)
    url = url_of(proxy.port)
    if tls:
        ca_file = request.getfixturevalue("certificate")
        url = url.replace("redis://", "rediss://") + f"?ca_file={ca_file}"
    with contextlib.closing(proxy), contextlib.closing(Connection(parse_url(url))) as connection:
        if pieces == 1:  # small buffers are joined
            assert connection.pipeline([("ECHO", "x" * 20_000)] * 100) == [b"x" * 20_000] * 100
        else:
            assert connection.call("SET", "slowly", [bytes(2_000_000)], "EX", 60) == b"OK"


@pytest.mark.real
def test_an_untrusted_certificate_is_rejected(tls_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="certificate"):
        RedisStore(url_of(tls_port).replace("redis://", "rediss://"))


@pytest.mark.real
def test_a_certificate_of_another_host_is_rejected(tls_port: int, certificate: Path) -> None:
    with pytest.raises(StoreUnavailable, match="certificate"):
        RedisStore(f"rediss://:x@localhost:{tls_port}?ca_file={certificate}")


@pytest.mark.real
def test_store_works_over_tls_without_the_file(tls_port: int, certificate: Path) -> None:
    secure = url_of(tls_port).replace("redis://", "rediss://") + f"?ca_file={certificate}"
    url = with_certificates(secure)
    assert str(certificate) not in url
    RedisStore(url).disconnect()


@pytest.mark.real
def test_certificates_that_are_none_are_refused(tls_port: int) -> None:
    with pytest.raises(SettingsError, match="ca_data can't be loaded"):
        RedisStore(f"rediss://:{PASSWORD}@127.0.0.1:{tls_port}?ca_data=none")


@pytest.mark.real
def test_missing_ca_file_is_named(tls_port: int) -> None:
    with pytest.raises(SettingsError, match="no-such-file"):
        RedisStore(f"rediss://:{PASSWORD}@127.0.0.1:{tls_port}?ca_file=/no-such-file.pem")
