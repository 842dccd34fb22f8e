"""What a token gives access to, and how it is stored."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.platform.tokens import (
    Scope,
    Token,
    new_token,
    reached_as,
    read_token,
    run_token,
    scope_of,
    write_token,
)

TOKEN = new_token()
URL = "http://127.0.0.1:8470"


def test_the_gateways_token_opens_everything() -> None:
    scope = scope_of(f"Bearer {TOKEN}", TOKEN)
    assert scope == Scope()
    assert scope.covers("run-1", "s1")


def test_a_runs_token_opens_that_run_of_that_session() -> None:
    scope = scope_of(f"Bearer {run_token(TOKEN, 'run-1', 's1')}", TOKEN)
    assert scope == Scope("run-1", "s1")
    assert scope.covers("run-1")
    assert scope.covers("run-1", "s1")
    assert not scope.covers("run-2")
    assert not scope.covers("run-1", "s2")


def test_a_runs_token_cannot_be_turned_into_anothers() -> None:
    mac = run_token(TOKEN, "run-1", "s1").rpartition(".")[2]
    for forged in (f"run-2.s1.{mac}", f"run-1.s2.{mac}", f"run-1.s1.{mac[:-1]}", "run-1.s1.", mac):
        assert scope_of(f"Bearer {forged}", TOKEN) is None
    assert scope_of(f"Bearer {run_token('other', 'run-1', 's1')}", TOKEN) is None


def test_a_token_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    with path.open() as spying:
        write_token(path, TOKEN, URL)
        assert path.stat().st_mode & 0o777 == 0o600
        assert spying.read() == "old"  # who has the old file open can't read the new one
    assert read_token(path) == (TOKEN, URL)
    assert os.listdir(tmp_path) == ["token"]


def test_a_token_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch(0o644)
    (tmp_path / "token").symlink_to(tmp_path / "theirs")
    write_token(tmp_path / "token", TOKEN, URL)
    assert (tmp_path / "theirs").read_text() == ""
    assert read_token(tmp_path / "token") == (TOKEN, URL)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_file_that_others_can_read_is_rejected(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token(path, TOKEN, URL)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_token(path)


HERE = socket.gethostname().lower()


@pytest.mark.parametrize(
    ("asked", "named", "used"),
    [
        (URL, URL, URL),
        (f"{URL}/", URL, f"{URL}/"),
        ("http://localhost:8470", URL, URL),  # another user may listen on the other address
        ("http://127.0.0.1:8471", URL, None),
        ("https://127.0.0.1:8470", URL, None),
        ("http://127.0.0.2:8470", URL, None),
        ("http://[::1]:8470", URL, None),
        ("http://evil.example:8470", URL, None),
        ("http://127.0.0.1:8470@evil.example:8470", URL, None),
        ("http://127.0.0.1", "http://127.0.0.1:80", "http://127.0.0.1"),
        ("https://127.0.0.1:1", "https://0.0.0.0:1", "https://127.0.0.1:1"),
        ("https://localhost:1", "https://0.0.0.0:1", "https://localhost:1"),
        (f"https://{HERE}:1", "https://0.0.0.0:1", f"https://{HERE}:1"),
        ("https://evil.example:1", "https://0.0.0.0:1", None),
        ("https://gate.example:1", "https://gate.example:1", "https://gate.example:1"),
    ],
)
def test_a_token_is_sent_only_to_the_url_it_belongs_to(
    asked: str, named: str, used: str | None
) -> None:
    assert reached_as(asked, named) == used


def test_a_configured_token_is_fixed_and_one_from_a_file_is_read_again() -> None:
    assert not Token("old").renewed("old")
    assert Token("new").renewed("old")  # another thread has already read it
    found = ["old"]
    token = Token("old", lambda: found[0])
    assert not token.renewed("old")
    found[0] = "new"
    assert token.renewed("old")
    assert token.text == "new"


def test_a_token_whose_file_is_gone_is_kept() -> None:
    def read() -> str:
        raise FileNotFoundError

    assert not Token("old", read).renewed("old")
