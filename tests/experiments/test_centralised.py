"""The centralised designs give the same results as workers, and end whatever happens."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from evaluating import evaluated
from observing import TIMEOUT
from shoal import Session, task
from shoal.errors import RunStuck, ShoalError, TaskError
from shoal.experiments.centralised import scheduler
from shoal.experiments.centralised.reports import (
    OutputStore,
    PublishedReports,
    TcpReport,
    TcpReports,
)
from shoal.experiments.centralised.scheduler import DESIGNS, CentralScheduler, Design
from shoal.experiments.fan_out import fan_out
from shoal.experiments.tree_reduction import tree_reduction
from shoal.platform.invocation import INLINE_PART
from shoal.types import RunId

pytestmark = pytest.mark.real

designs = pytest.mark.parametrize("design", DESIGNS, ids=[design.name for design in DESIGNS])


@task
def nothing(*sources: Any) -> None:
    return None


@task
def seen(source: Any, *more: Any, named: Any = ()) -> Any:
    return (source, more, named)


@task
def doubled(array: Any) -> Any:
    return array * 2


@task
def failing(number: int) -> int:
    raise ValueError(f"no {number}")


@task
def dying() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def central(private_folder: Path) -> Iterator[tuple[CentralScheduler, Session]]:
    with Session(sandboxes=4, workers=2) as session, CentralScheduler(session) as central:
        yield central, session


@pytest.fixture(scope="module")
def scheduler_(central: tuple[CentralScheduler, Session]) -> CentralScheduler:
    return central[0]


@pytest.fixture
def store(central: tuple[CentralScheduler, Session]) -> Iterator[OutputStore]:
    """The schedulers' server; no run may leave anything on it."""
    store = OutputStore(central[1].store.url)
    before = _keys_of_runs(store)
    yield store
    assert _keys_of_runs(store) <= before
    store.disconnect()


def _keys_of_runs(store: OutputStore) -> set[bytes]:
    return {*store._call([["KEYS", "shoal:{[0-9]*"]])[0]}


@designs
def test_a_tree_reduction_gives_the_sum(
    scheduler_: CentralScheduler, store: OutputStore, design: Design
) -> None:
    assert scheduler_.compute(tree_reduction(33), design=design) == [sum(range(33))]


@designs
def test_a_fan_out_with_a_large_output_gives_the_right_result(
    scheduler_: CentralScheduler, store: OutputStore, design: Design
) -> None:
    output = fan_out(20, nbytes=200_000)
    assert scheduler_.compute(output, design=design) == [evaluated(output)]


@designs
def test_a_failed_task_ends_the_run_with_its_exception(
    scheduler_: CentralScheduler, store: OutputStore, design: Design
) -> None:
    with pytest.raises(TaskError, match="no 7") as caught:
        scheduler_.compute(seen(failing(7)), design=design)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.not_run == ("seen#0",)


def test_arguments_of_every_kind_arrive(scheduler_: CentralScheduler, store: OutputStore) -> None:
    large, text = np.arange(50_000.0), "x" * (2 * INLINE_PART)
    many = [f"{number:010}" * 1500 for number in range(2 * INLINE_PART // 15_000)]
    output = seen([nothing()], doubled(large), 3, named={"a": doubled(large)})
    first, second, third, fourth = scheduler_.compute(
        output, seen(text), nothing(output), seen(*many), design=scheduler.PUB_SUB
    )
    assert first[0] == [None]
    assert first[1][0].sum() == first[2]["a"].sum() == 2 * large.sum()
    assert (second[0], third) == (text, None)
    assert [fourth[0], *fourth[1]] == many


@designs
def test_a_function_whose_process_dies_ends_the_run(
    scheduler_: CentralScheduler,
    store: OutputStore,
    design: Design,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_GLANCE", 0.05)
    with pytest.raises(RunStuck, match="without a report"):
        scheduler_.compute(seen(dying()), design=design)


def test_tcp_reports_arrive_complete_and_an_empty_connection_reports_nothing() -> None:
    heard: SimpleQueue[str | ShoalError] = SimpleQueue()
    reports = TcpReports(heard.put)
    early, late = (TcpReport(reports.address, 0.0) for _ in range(2))
    host, port = reports.address.split(":")
    socket.create_connection((host, int(port))).close()
    late.send("done late")
    early.send("done " + "é" * 1000)
    assert {heard.get(timeout=TIMEOUT) for _ in range(2)} == {"done late", "done " + "é" * 1000}
    reports.close()
    assert heard.empty()


def test_an_output_is_saved_before_it_is_reported(store: OutputStore) -> None:
    heard: SimpleQueue[str | ShoalError] = SimpleQueue()
    run = RunId("0")
    reports = PublishedReports(heard.put, store, run)
    store.save(run, "a#0", [b"va", b"lue"], "done a#0")
    assert heard.get(timeout=TIMEOUT) == "done a#0"
    assert store._call([["HGET", f"shoal:{{{run}}}:outputs", "a#0"]])[0] == b"value"
    reports.close()
    store.close(run, [])
    assert heard.empty()
