"""Outputs longer than the server's limit reach other tasks and the client."""

from __future__ import annotations

import secrets

import pytest

from shoal.session import Session
from shoal.workflow import Task
from store_servers import tcp_server, url_of

LONG = 3_000_000


def _doubled(content: bytes) -> bytes:
    return content + content


def _joined(*contents: bytes) -> bytes:
    return b"".join(contents)


@pytest.mark.real
def test_outputs_and_constants_beyond_the_servers_limit_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    with (
        tcp_server("--proto-max-bulk-len", "1mb") as port,
        Session(store=url_of(port), workers=2, history=False) as session,
    ):
        constants = [secrets.token_bytes(LONG) for _ in range(2)]
        doubled = [Task(_doubled)(constant) for constant in constants]
        (result,) = session.compute(Task(_joined)(*doubled))
    assert result == b"".join(content + content for content in constants)
