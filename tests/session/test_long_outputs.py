"""Outputs that are longer than the server takes at once travel between tasks and to the client."""

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
def test_long_outputs_and_constants_pass_on_an_ordinary_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.run.this_host", lambda: "elsewhere")  # no memory is shared
    with (
        tcp_server("--proto-max-bulk-len", "1mb") as port,
        Session(store=url_of(port), workers=2, history=False) as session,
    ):
        constants = [secrets.token_bytes(LONG) for _ in range(2)]
        doubled = [Task(_doubled)(constant) for constant in constants]
        (result,) = session.compute(Task(_joined)(*doubled))
    assert result == b"".join(content + content for content in constants)
