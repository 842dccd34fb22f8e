"""A tender keeps runs going, whatever it is told of them, and by whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from observing import PATIENCE, eventually
from platform_examples import Caller
from shoal.platform.base import Invocation
from shoal.platform.tending import Tender
from shoal.storage.base import Opening
from shoal.storage.keys import CLIENT
from shoal.storage.redis import RedisStore
from shoal.types import RunId, WorkerId
from store_servers import Server, serving

pytestmark = pytest.mark.real

RUN, W0 = RunId("run-1"), WorkerId("w0")
KILLED = {"reason": "died", "code": -9, "running": [], "memory_mb": 256, "epoch": 1}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    store = server.reached()
    store.open(RUN, Opening([W0], kind="256 1.0", lease=0.2, restarts=10))
    yield store
    store.disconnect()


@pytest.fixture
def invoked() -> list[Invocation]:
    return []


@pytest.fixture
def cancelled() -> list[RunId]:
    return []


@pytest.fixture
def tender(invoked: list[Invocation], cancelled: list[RunId]) -> Iterator[Tender]:
    tender = Tender(dict, invoked.extend, cancelled.append)
    yield tender
    tender.close()


def job(store: RedisStore, tmp_path: Path) -> Invocation:
    caller: Any = None
    return Caller(caller, tmp_path).job(store=store.url, lease=0.2)


def test_run_is_tended_though_a_start_that_was_replaced_is_reported_late(
    store: RedisStore, tender: Tender, invoked: list[Invocation], tmp_path: Path
) -> None:
    """1. A start is lost. 2. Somebody claims the next one. 3. The gateway reports the first."""
    store.restart(RUN, W0, 1, "somebody saw it")
    tender.know([job(store, tmp_path)])
    tender.lost(job(store, tmp_path), dict(KILLED), 1024)
    assert eventually(lambda: invoked)
    assert invoked[0].epoch == 3


def test_worker_that_a_full_store_does_not_let_start_again_is_told_with_the_reason(
    store: RedisStore, tender: Tender, invoked: list[Invocation], tmp_path: Path
) -> None:
    store._call([["CONFIG", "SET", "maxmemory", "1"]])
    tender.know([job(store, tmp_path)])
    tender.lost(job(store, tmp_path), dict(KILLED), 1024)
    (letter,) = store.receive(RUN, CLIENT, "", PATIENCE)
    facts = json.loads(bytes(letter.parts[0]))
    assert facts["reason"] == "error"
    assert "StoreRefused: The store's memory is full" in facts["detail"]
    assert not invoked


def test_workers_of_a_farm_that_is_over_are_ended_and_those_of_a_run_are_not(
    store: RedisStore, tender: Tender, cancelled: list[RunId], tmp_path: Path
) -> None:
    of_run = replace(job(store, tmp_path), run=RunId("run-2"))
    of_farm = replace(job(store, tmp_path), run=RunId("farm-1"), farm=1)
    tender.know([of_run, of_farm])
    assert eventually(lambda: cancelled)
    assert cancelled == [RunId("farm-1")]
