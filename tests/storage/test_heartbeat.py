"""Moving bytes count as heartbeats, in both directions; a stalled transfer sends none."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from dropping_proxy import DroppingProxy, at_speed
from shoal.storage import heartbeat as heartbeats
from shoal.storage.base import Completion, Opening
from shoal.storage.heartbeat import Heartbeat, beating, current_heartbeat
from shoal.storage.redis import RedisStore
from shoal.storage.sharded import ShardedStore
from shoal.types import RunId, WorkerId
from store_servers import url_of

w0 = WorkerId("w0")
CONTENT = secrets.token_bytes(1_000_000)
SPEED = 4_000_000
LEASE = 0.15


def test_a_heartbeat_is_due_after_some_seconds_of_a_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now)
    beats: list[int] = []
    pulse = Heartbeat(beats.append, 5.0)
    for _ in range(12):
        pulse.moved(100_000)
        now += 1.0
    assert beats == [600_000, 500_000]


def test_short_messages_are_no_transfer() -> None:
    """A client that polls its empty mailbox every ten seconds transfers nothing."""
    beats: list[int] = []
    pulse = Heartbeat(beats.append, 0.0)
    for _ in range(100):
        pulse.moved(20)
    assert beats == []


def test_heartbeats_end_with_their_block() -> None:
    outer: list[int] = []
    with beating(outer.append, 0.0):
        with beating(lambda nbytes: None, 0.0):
            pass
        present = current_heartbeat()
        assert present is not None
        present.moved(20_000)
    assert outer == [20_000]
    assert current_heartbeat() is None


@pytest.fixture
def slow(tcp_port: int) -> Iterator[DroppingProxy]:
    proxy = DroppingProxy(tcp_port, at_speed(SPEED), narrow=True)
    yield proxy
    proxy.close()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


@pytest.mark.real
@pytest.mark.parametrize("kind", ["one server", "shards"])
def test_transfers_send_heartbeats_in_both_directions(
    slow: DroppingProxy, run: RunId, kind: str
) -> None:
    urls = [url_of(slow.port, db) for db in (7, 8, 9)]
    store = RedisStore(urls[0]) if kind == "one server" else ShardedStore(",".join(urls))
    store.open(run, Opening([w0]))
    outputs = [f"o{number}" for number in range(4)]
    told: list[int] = []
    with beating(told.append, 0.02):
        store.complete(run, w0, 1, Completion([(name, [CONTENT]) for name in outputs]))
        sent, told[:] = list(told), []
        assert store.fetch(run, outputs) == [CONTENT] * 4
    for moved in (sent, told):
        assert len(moved) >= 3
        assert sum(moved) >= len(CONTENT)
    store.close(run, [w0])
    store.disconnect()


@pytest.mark.real
def test_worker_in_a_transfer_renews_its_lease_by_itself(slow: DroppingProxy, run: RunId) -> None:
    """Nobody else sees it alive, so the supervisor would restart it."""
    slowly, near = RedisStore(url_of(slow.port)), RedisStore(url_of(slow._target[1]))
    slowly.open(run, Opening([w0], lease=LEASE))
    near.enter(run, w0, 1)
    claims: list[object] = []

    def beat(nbytes: int) -> None:
        slowly.beat(run, w0, 1, nbytes)
        claims.extend(near.supervise(run))

    with beating(beat, LEASE / 5):
        slowly.complete(run, w0, 1, Completion([("a", [CONTENT, CONTENT])]))
    assert claims == []
    assert near.moved(run) > len(CONTENT)
    slowly.close(run, [w0])
    for store in (slowly, near):
        store.disconnect()
