"""A tender keeps runs going, whatever it is told of them, and by whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from observing import PATIENCE, eventually
from platform_examples import Caller
from shoal.platform import tending
from shoal.platform.base import Invocation
from shoal.platform.kept import KeptRuns
from shoal.platform.tending import Tender
from shoal.storage.base import Claim, Opening
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


def job(store: RedisStore, tmp_path: Path, **facts: Any) -> Invocation:
    caller: Any = None
    return Caller(caller, tmp_path).job(store=store.url, lease=0.2, **facts)


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


def test_a_store_that_tells_nonsense_spoils_the_tending_of_its_own_run_only(
    store: RedisStore, tender: Tender, invoked: list[Invocation], tmp_path: Path
) -> None:
    bad = RunId("run-0")
    store.open(bad, Opening([W0], kind="nonsense", lease=0.2, restarts=10))
    tender.know([job(store, tmp_path, run=bad), job(store, tmp_path)])
    assert eventually(lambda: len(invoked) > 1)
    assert {start.run for start in invoked} == {RUN}


# What is left to a gateway that is started again.


@pytest.fixture
def kept(tmp_path: Path) -> KeptRuns:
    return KeptRuns(tmp_path / "kept")


def test_detached_run_is_tended_by_the_next_tender_too(
    store: RedisStore, tender: Tender, invoked: list[Invocation], tmp_path: Path, kept: KeptRuns
) -> None:
    earlier = Tender(dict, lambda jobs: None, lambda run: None)
    earlier.remember(kept)
    earlier.know([job(store, tmp_path, detached=1, inputs="aW5wdXRz")])
    earlier.close()
    tender.remember(kept)
    assert eventually(lambda: invoked)
    assert invoked[0].epoch == 2
    assert invoked[0].key == "00"


def test_detached_run_that_was_known_before_is_kept_as_well(
    store: RedisStore, tender: Tender, tmp_path: Path, kept: KeptRuns
) -> None:
    tender.know([job(store, tmp_path, detached=1)])
    tender.remember(kept)
    assert [each.run for each in kept.all()] == [RUN]


def test_run_with_a_client_is_not_kept(
    store: RedisStore, tender: Tender, tmp_path: Path, kept: KeptRuns
) -> None:
    tender.remember(kept)
    tender.know([job(store, tmp_path)])
    assert kept.all() == []


@pytest.mark.parametrize("how", ["it is over", "it is cancelled"])
def test_run_that_has_ended_is_kept_no_longer(
    store: RedisStore, tender: Tender, tmp_path: Path, kept: KeptRuns, how: str
) -> None:
    tender.remember(kept)
    tender.know([job(store, tmp_path, detached=1)])
    if how == "it is over":
        store.close(RUN, [W0])
    else:
        tender.forget(RUN)
    assert eventually(lambda: kept.all() == [])


def test_what_can_not_be_read_is_left_out_and_deleted(
    kept: KeptRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept" / "run-2").write_text("{}")
    assert kept.all() == []
    assert "is of no use" in caplog.text
    assert not (tmp_path / "kept" / "run-2").exists()


def test_what_is_kept_holds_a_key_and_is_its_owner_s_alone(
    store: RedisStore, tmp_path: Path, kept: KeptRuns
) -> None:
    kept.keep(job(store, tmp_path, detached=1))
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_store_that_is_opened_while_the_tender_ends_is_given_up_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tender is at the first run, whose store ends only with it; then it turns to the next."""
    opened: dict[str, Slow] = {}

    class Slow:
        def __init__(self) -> None:
            self.given_up = threading.Event()

        def tend(self, *_: Any) -> list[Claim]:
            if len(opened) == 1:
                assert self.given_up.wait(PATIENCE)
            return []

        def disconnect(self) -> None:
            self.given_up.set()

    monkeypatch.setattr(tending, "open_store", lambda url, **_: opened.setdefault(url, Slow()))
    tender = Tender(dict, lambda jobs: None, lambda run: None)
    like = Caller(cast(Any, None), tmp_path).job(lease=0.03)
    tender.know([replace(like, run=RunId(url), store=url) for url in ("first", "second")])
    assert eventually(lambda: opened)
    tender.close()
    assert [store.given_up.is_set() for store in opened.values()] == [True, True]
