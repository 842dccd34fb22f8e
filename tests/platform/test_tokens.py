"""Who a token lets in, and how it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.platform.tokens import (
    Scope,
    new_token,
    read_token,
    run_token,
    scope_of,
    write_token,
)

TOKEN = new_token()


def test_the_gateway_s_token_opens_everything() -> None:
    scope = scope_of(f"Bearer {TOKEN}", TOKEN)
    assert scope == Scope()
    assert scope.covers("run-1", "s1")


def test_a_run_s_token_opens_that_run_of_that_session() -> None:
    scope = scope_of(f"Bearer {run_token(TOKEN, 'run-1', 's1')}", TOKEN)
    assert scope == Scope("run-1", "s1")
    assert scope.covers("run-1")
    assert scope.covers("run-1", "s1")
    assert not scope.covers("run-2")
    assert not scope.covers("run-1", "s2")


def test_a_run_s_token_cannot_be_turned_into_another_s() -> None:
    mac = run_token(TOKEN, "run-1", "s1").rpartition(".")[2]
    for forged in (f"run-2.s1.{mac}", f"run-1.s2.{mac}", f"run-1.s1.{mac[:-1]}", "run-1.s1.", mac):
        assert scope_of(f"Bearer {forged}", TOKEN) is None
    assert scope_of(f"Bearer {run_token('other', 'run-1', 's1')}", TOKEN) is None


def test_a_token_is_kept_where_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    with path.open() as spying:
        write_token(path, TOKEN)
        assert path.stat().st_mode & 0o777 == 0o600
        assert spying.read() == "old"  # who had it open before sees nothing of the new one
    assert read_token(path) == TOKEN
    assert os.listdir(tmp_path) == ["token"]


def test_a_token_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch(0o644)
    (tmp_path / "token").symlink_to(tmp_path / "theirs")
    write_token(tmp_path / "token", TOKEN)
    assert (tmp_path / "theirs").read_text() == ""
    assert read_token(tmp_path / "token") == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token(path, TOKEN)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_token(path)
