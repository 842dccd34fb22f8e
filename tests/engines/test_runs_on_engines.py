"""A workflow, unchanged, runs on every engine: with its faults, logs and reports."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import reduce

import pytest
from engines_here import ENGINES, parameters

import shoal
from observing import eventually
from shoal import Output, Resources, Session, task
from shoal.errors import RunCancelled, TaskError
from shoal.storage.resp import Connection, parse_url

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=parameters())
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("data")
    with ENGINES[request.param](folder) as (platform, store):
        options = {"platform": platform, "store": store, "folder": str(folder)}
        with Session(**options, workers=3, lease=3) as opened:
            yield opened


@task
def add(a: int, b: int) -> int:
    return a + b


@task
def identity(value: int) -> int:
    return value


def tree(leaves: list[int]) -> Output[int]:
    level: list[Output[int]] = [identity(leaf) for leaf in leaves]
    while len(level) > 1:
        level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def test_a_tree_of_additions_is_computed(session: Session) -> None:
    for _ in range(2):
        assert session.compute(tree(list(range(512)))) == [sum(range(512))]


@task
def total(data: bytes) -> int:
    return sum(data[:1000]) + len(data)


def test_large_constants_reach_workers(session: Session) -> None:
    data = bytes(16 * 2**20)
    assert session.compute(*[total(data) for _ in range(4)]) == [16 * 2**20] * 4


@task
def large(nbytes: int) -> bytes:
    return bytes(nbytes)


@task
def size(*parts: bytes) -> int:
    return sum(map(len, parts))


def test_large_outputs_travel_between_workers(session: Session) -> None:
    outputs = [large(8 * 2**20) for _ in range(3)]
    assert session.compute(size(*outputs)) == [24 * 2**20]


@task
def failing(value: int) -> int:
    raise LookupError(f"no {value}")


def test_the_error_of_a_failing_task_names_it(session: Session) -> None:
    with pytest.raises(TaskError, match="no 3") as caught:
        session.compute(failing(3))
    assert isinstance(caught.value.__cause__, LookupError)


@task
def printing(text: str) -> str:
    print(text)
    print(text.upper(), file=sys.stderr)
    return text


def test_what_tasks_print_is_in_the_logs(session: Session) -> None:
    run = session.submit(printing("hello"))
    assert run.result() == "hello"
    assert eventually(lambda: len(run.logs()) == 2)
    assert {(line.stream, line.text) for line in run.logs()} == {
        ("stdout", "hello"), ("stderr", "HELLO")}  # fmt: skip


@task
def once(store: str, flag: str) -> str:
    """Kill the worker the first time; the store is all that workers share."""
    with closing(Connection(parse_url(store))) as connection:
        if connection.call("INCR", flag) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def test_a_killed_worker_restarts(session: Session) -> None:
    assert session.compute(once(str(session.settings.store), "killed")) == ["survived"]


@task(resources=Resources(192))
def hungry(mb: int) -> int:
    return len(bytearray(mb * 2**20))


def test_a_task_that_runs_out_of_memory_gets_more(session: Session) -> None:
    run = session.submit(hungry(256))
    assert run.result() == 256 * 2**20
    assert max(run.needs.values()) >= 384


@task
def sleeping(seconds: float) -> None:
    time.sleep(seconds)


def test_cancelling_ends_running_tasks(session: Session) -> None:
    run = session.submit(sleeping(600))
    assert eventually(lambda: bool(session.platform.running(run.id)))
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    assert not session.platform.active(run.id)


def test_a_detached_run_is_attached_to(session: Session) -> None:
    run = session.submit(reduce(add, map(identity, range(10))), detach=True)
    assert session.attach(run.id).result() == 45


def doubled(number: int) -> int:
    return 2 * number


def test_a_farm_of_a_thousand_tasks(session: Session) -> None:
    with shoal.Farm(doubled, workers=2, session=session) as farm:
        assert list(farm.map(range(1000))) == [2 * n for n in range(1000)]
