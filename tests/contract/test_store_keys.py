"""Every store on a server: which keys a run has, and for how long."""

from __future__ import annotations

import contextlib
import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observing import eventually
from shoal.errors import RunOver
from shoal.storage import keys
from shoal.storage.base import DEFAULT_TTL, Completion, Opening, Store
from shoal.storage.codec import Blob
from shoal.storage.letters import OutputReady
from shoal.storage.resp import Connection
from shoal.testing.store_examples import (
    LARGE,
    LONG,
    SAID,
    mark,
    started_again,
    t,
    u,
    use,
    w0,
    w1,
    w2,
    w3,
)
from shoal.testing.store_flexible import begun, marking
from shoal.testing.store_losses import KINDS, opened
from shoal.types import RunId, TaskId


def keys_of(server: Connection, run: RunId) -> set[str]:
    return {str(key, "utf-8") for key in server.call("KEYS", f"shoal:{{{run}*")}


def test_a_closed_run_leaves_no_key_and_none_comes_back(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    assert keys_of(server, run)
    on_server.close(run, [w0, w1, w2, w3])
    assert keys_of(server, run) == set()
    for say in SAID.values():
        with pytest.raises(RunOver):
            say(on_server, run)
    assert keys_of(server, run) == set()


def test_every_key_of_an_open_run_lives_as_long_as_the_run(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    found = keys_of(server, run)
    assert len(found) >= 10
    lives = [server.call("TTL", key) for key in found]
    assert all(DEFAULT_TTL - 60 < seconds <= DEFAULT_TTL for seconds in lives)


def test_keys_written_later_have_the_time_to_live_of_their_run(
    server: Connection, on_server: Store, run: RunId
) -> None:
    on_server.open(run, Opening([w0], {w0: [b"part"]}, ttl=100))
    saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [bytes(LARGE)])]
    letters = [OutputReady(TaskId("a"))]
    said = Completion(saves, [mark(t, w1, w0)], letters, executed=1, starts=[(w2, b"given")])
    on_server.complete(run, w0, 1, said)
    found = keys_of(server, run)
    assert len(found) >= 10
    assert all(0 < server.call("TTL", key) <= 100 for key in found)


def test_a_run_that_nobody_closed_expires_as_a_whole(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    server.call("PEXPIRE", keys.state(run), 1)
    assert eventually(lambda: not server.call("EXISTS", keys.state(run)))
    with pytest.raises(RunOver):
        on_server.complete(run, w0, 1, Completion([("A", [bytes(LARGE)])]))


@pytest.mark.parametrize("nbytes", [LARGE, LONG])
def test_large_output_of_an_older_epoch_leaves_no_key(
    server: Connection, on_server: Store, run: RunId, nbytes: int
) -> None:
    started_again(on_server, run)
    before = keys_of(server, run)
    with pytest.raises(RunOver):
        on_server.complete(run, w1, 1, Completion([("S", [bytes(nbytes)])]))
    assert keys_of(server, run) - before <= {keys.chunks(run)}


def test_an_expiring_run_is_deleted_as_a_whole_unless_it_is_resumed(
    server: Connection, on_server: Store, run: RunId
) -> None:
    opened(on_server, run)
    on_server.enter(run, w0, 1)
    saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [bytes(LARGE)])]
    letters = [OutputReady(u)]
    on_server.complete(run, w0, 1, Completion(saves, [mark(t, w1, w0)], letters, executed=1))
    on_server.stop(run)
    on_server.expire(run, 100.0)
    found = keys_of(server, run)
    assert all(0 < server.call("TTL", key) <= 100 for key in found)
    on_server.resume(run, Opening((), {w0: [b"part"]}, kinds=KINDS, ttl=1000))
    assert keys_of(server, run) == found
    assert all(900 < server.call("TTL", key) <= 1000 for key in found)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.sampled_from(sorted(SAID))), after=st.lists(st.sampled_from(sorted(SAID)))
)
def test_no_operation_before_or_after_the_end_of_a_run_leaves_a_key(
    server: Connection, on_server: Store, before: list[str], after: list[str]
) -> None:
    run = RunId(f"test-{secrets.token_hex(6)}")
    use(on_server, run)
    for what in before:
        with contextlib.suppress(RunOver):  # from an older start
            SAID[what](on_server, run)
    on_server.close(run, [w0, w1, w2, w3])
    for what in after:
        with pytest.raises(RunOver):
            SAID[what](on_server, run)
    assert keys_of(server, run) == set()


def test_closing_deletes_the_keys_of_workers_that_nobody_names(
    server: Connection, on_server: Store, run: RunId
) -> None:
    begun(on_server, run, w0, w1)
    saves = [("a", [b"a"]), ("A", [b"A" * LARGE])]
    on_server.complete(run, w0, 1, Completion(saves, marking("x#0").marks, executed=1))
    on_server.close(run, [])
    assert keys_of(server, run) == set()
