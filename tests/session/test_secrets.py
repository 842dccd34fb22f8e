"""Passwords, tokens and keys appear only where they are needed."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import TIMEOUT, eventually
from shoal import Session, task
from shoal.errors import StoreRefused, Tampered, TaskError
from shoal.platform.gateway import LocalGateway
from shoal.storage import keys
from shoal.storage.codec import encode
from shoal.storage.embedded import runtime_folder
from shoal.storage.resp import Connection, parse_url
from store_servers import PASSWORD, tcp_server, url_of

pytestmark = pytest.mark.real


@task
def wait(folder: str, number: int) -> int:
    """Print everything a task can see, and wait."""
    import os

    print(dict(os.environ), Path("/proc/self/cmdline").read_text())
    (Path(folder) / f"began-{number}").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return number


@task
def fail(*numbers: int) -> int:
    """Fail in the user's code."""
    raise ValueError(f"on purpose, after {numbers}")


@task
def add(*numbers: int) -> int:
    """Add two numbers."""
    return sum(numbers)


@task
def digest(number: int, content: bytes) -> int:
    """Add a number and a length."""
    return number + len(content)


@pytest.fixture
def password() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def store(password: str) -> Iterator[str]:
    """The URL of a server whose password isn't in its command line either."""
    with tcp_server() as port:
        admin = Connection(parse_url(url_of(port)))
        admin.call("CONFIG", "SET", "rdbcompression", "no")
        admin.call("CONFIG", "SET", "requirepass", password)
        yield f"redis://:{password}@127.0.0.1:{port}/0"
        admin.call("CONFIG", "SET", "requirepass", PASSWORD)
        admin.close()


def seen_in_processes(text: bytes) -> list[str]:
    """Return the command lines and environments of processes that contain a text."""
    found = []
    for name in ("cmdline", "environ"):
        for path in Path("/proc").glob(f"[0-9]*/{name}"):
            try:
                if text in path.read_bytes():
                    found.append(str(path))
            except OSError:
                continue
    return found


def seen_in_files(text: bytes, folder: Path) -> list[str]:
    """Return the files in a folder that contain a text."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def seen_in_store(text: bytes, url: str) -> list[bytes]:
    """Return the keys of a store that contain a text."""
    connection = Connection(parse_url(url))
    names = connection.call("KEYS", "*")
    found = [name for name in names if text in name + bytes(connection.call("DUMP", name) or b"")]
    connection.close()
    return found


def test_secrets_are_in_no_log_error_process_list_history_or_timeline(
    store: str, password: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "data"
    with Session(store=store, folder=str(folder), workers=2) as session:
        assert isinstance(session.platform, LocalGateway)
        run = session.submit(fail(*[wait(str(tmp_path), number) for number in range(2)]))
        assert eventually(lambda: len([*tmp_path.glob("began-*")]) == 2)
        hidden = [password, session.platform.address[1], run._key.hex()]
        for secret in hidden:
            assert seen_in_processes(secret.encode()) == []
        assert seen_in_store(run._key.hex().encode(), store) == []
        assert seen_in_store(run._key, store) == []
        (tmp_path / "go").touch()
        with pytest.raises(TaskError, match="on purpose") as failure:
            run.result(TIMEOUT)
        session.settle()
        error = failure.value
        texts = [str(error), error.remote_traceback, repr(error.__dict__), repr(run.timeline),
                 caplog.text, *(line.text for line in session.platform.logs(run.id)),
                 *(record.decode(errors="replace") for record in run.records)]  # fmt: skip
    assert seen_in_files(b"on purpose", folder), "history was looked at"
    assert any("PATH" in text for text in texts), "logs were looked at"
    for secret in hidden:
        assert not [text for text in texts if secret in text]
        assert seen_in_files(secret.encode(), folder) == []
        assert seen_in_files(secret.encode(), runtime_folder()) == []


def test_a_store_error_does_not_show_the_password(store: str, password: str) -> None:
    wrong = store.replace(password, "wrong-" + password)
    with pytest.raises(StoreRefused, match="password") as refusal:
        Session(store=wrong)
    assert password not in str(refusal.value)
    assert password not in repr(refusal.value.__cause__)


def blob_of(task: str, key: bytes) -> bytes:
    """Return an output as it is saved."""
    return b"".join(bytes(part) for part in encode(7, key, keys.signed_output(task)))


@pytest.mark.parametrize("how", ["changed", "cut", "of another run", "of another task"])
def test_a_tampered_output_is_rejected_and_never_unpickled(
    store: str, tmp_path: Path, how: str
) -> None:
    """Somebody who can write to the store replaces what a task has saved."""
    with Session(store=store, folder=str(tmp_path / "data"), workers=1) as session:
        run = session.submit(wait(str(tmp_path), 1), add(wait(str(tmp_path), 2)))
        assert eventually(lambda: [*tmp_path.glob("began-*")])
        genuine = blob_of("wait#0", run._key)
        forged = {
            "changed": genuine[:-2] + b"\x08.",
            "cut": genuine[:-1],
            "of another run": blob_of("wait#0", b"other key"),
            "of another task": blob_of("wait#1", run._key),
        }[how]
        connection = Connection(parse_url(store))
        mailbox = keys.mailbox(run.id, keys.CLIENT)
        connection.call("XADD", mailbox, "*", "kind", "output", "name", "wait#0", "1", forged)
        connection.close()
        with pytest.raises(Tampered, match=r"damaged|signature|truncated"):
            run.result(TIMEOUT)


def test_a_tampered_output_found_by_a_worker_is_reported_as_such(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is about the tampered output, not about a worker that died."""
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    with Session(store=store, folder=str(tmp_path / "data"), workers=1) as session:
        run = session.submit(digest(wait(str(tmp_path), 1), bytes(200_000)))
        assert eventually(lambda: [*tmp_path.glob("began-*")])
        connection = Connection(parse_url(store))
        for key in connection.call("KEYS", f"shoal:{{{run.id}}}:large:*"):
            connection.call("SETRANGE", key, 50, b"forged")
        connection.close()
        (tmp_path / "go").touch()
        with pytest.raises(Tampered, match=r"wrong signature.*This happened on worker w0"):
            run.result(TIMEOUT)
