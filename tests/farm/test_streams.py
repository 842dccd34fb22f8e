"""Farms and pipelines on a real server and real processes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import farm_examples as examples
import pytest

from observing import eventually, exists, outside
from shoal import Farm, Pipeline, Resources
from shoal.errors import NotPicklable, RunCancelled, TaskError, UsageError
from shoal.farm import Deadline, EarliestDeadline, Fixed
from shoal.session import Session
from shoal.storage.resp import Connection, parse_url

pytestmark = pytest.mark.real

SMALL = Resources(memory_mb=256)


def keys_of(session: Session, run: str) -> list[bytes]:
    connection = Connection(parse_url(session.store.url))
    try:
        return sorted(map(bytes, connection.call("KEYS", f"*{{{run}}}*")))
    finally:
        connection.close()


def test_results_come_in_the_order_of_the_inputs(session: Session) -> None:
    with Farm(examples.double, workers=2, session=session) as farm:
        assert list(farm.map(range(500))) == [2 * value for value in range(500)]


def test_results_can_come_in_order_of_completion(session: Session) -> None:
    with Farm(examples.nap, workers=2, session=session) as farm:
        list(farm.map([0.0] * 20))
        found = list(farm.map([1.0, 0.0, 0.01], ordered=False))
    assert sorted(found) == [0.0, 0.01, 1.0]
    assert found[-1] == 1.0


def test_quick_tasks_do_not_wait_for_a_slow_one_in_the_same_batch(session: Session) -> None:
    with Farm(examples.nap, workers=2, session=session) as farm:
        list(farm.map([0.0] * 500))
        found = list(farm.map([0.0] * 100 + [2.0] + [0.0] * 100, ordered=False))
    assert found[-1] == 2.0
    assert len(found) == 201


def test_a_farm_processes_single_submissions(session: Session) -> None:
    with Farm(lambda value: value * value, workers=1, session=session) as farm:
        futures = [farm.submit(value) for value in range(10)]
        assert [future.result(30) for future in futures] == [value**2 for value in range(10)]


def test_leaving_the_block_waits_for_submitted_tasks_and_leaves_nothing(session: Session) -> None:
    with Farm(examples.nap, workers=2, session=session) as farm:
        futures = [farm.submit(0.01) for _ in range(20)]
        run = farm.deployed.id
    assert all(future.done() for future in futures)
    assert keys_of(session, run) == []
    assert not session.platform.active(run)


def test_an_exception_in_the_block_cancels_the_farm_and_leaves_nothing(session: Session) -> None:
    farm = Farm(examples.nap, workers=2, session=session)
    found = []

    def use() -> None:
        with farm:
            found.append((farm.submit(600), farm.deployed.id))
            eventually(lambda: farm.deployed.crew.observe()[0].busy)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    ((future, run),) = found
    with pytest.raises(RunCancelled):
        future.result(0)
    assert keys_of(session, run) == []
    assert not session.platform.active(run)


def test_a_failed_task_becomes_a_dead_letter_and_affects_no_other(session: Session) -> None:
    with Farm(examples.fail_at_seven, workers=2, tries=2, session=session) as farm:
        found = list(farm.map(range(20), return_errors=True))
        (letter,) = farm.dead_letters()
    assert found[:7] + found[8:] == [*range(7), *range(8, 20)]
    assert isinstance(found[7], TaskError)
    assert isinstance(found[7].__cause__, ValueError)
    assert letter.given == 7
    assert "ValueError: seven" in letter.traceback


@pytest.mark.parametrize("function", [examples.die_at_seven, examples.crash_at_seven])
def test_a_task_that_kills_its_workers_affects_no_other(session: Session, function: object) -> None:
    with Farm(function, workers=2, tries=2, resources=SMALL, session=session) as farm:
        found = list(farm.map(range(200), return_errors=True))
        (letter,) = farm.dead_letters()
    assert found[:7] + found[8:] == [*range(7), *range(8, 200)]
    assert isinstance(found[7], TaskError)
    assert letter.given == 7


def test_an_input_that_no_worker_can_read_affects_no_other(session: Session) -> None:
    with Farm(examples.double, workers=1, tries=1, session=session) as farm:
        poison = farm.submit(examples.Unreadable())
        assert farm.submit(1).result(30) == 2
        with pytest.raises(TaskError, match="can't be read"):
            poison.result(30)


def test_an_unpicklable_function_is_an_error_and_leaves_no_connection(
    session: Session,
) -> None:
    lock = threading.Lock()
    with (
        pytest.raises(NotPicklable, match="stage 1"),
        Farm(lambda value: (value, lock), workers=1, session=session),
    ):
        pass
    gc.collect()  # warns of connections that are still open


def test_a_result_that_the_client_cannot_read_is_an_error_of_its_task(session: Session) -> None:
    with Farm(examples.unreadable, workers=1, session=session) as farm:
        with pytest.raises(RuntimeError, match="can't be read"):
            farm.submit(1).result(30)
        with pytest.raises(NotPicklable):
            farm.submit(threading.Lock())


def test_inputs_are_not_read_while_results_are_not_taken(session: Session) -> None:
    drawn = []

    def inputs() -> Iterator[int]:
        for value in range(1000):
            drawn.append(value)
            yield value

    with Farm(examples.double, workers=1, capacity=10, session=session) as farm:
        results = farm.map(inputs())
        next(results)
        eventually(lambda: not farm.deployed.pending)
        assert len(drawn) <= 13
        assert sum(1 for _ in results) == 999


def test_large_inputs_wait_sooner_but_one_of_any_size_is_accepted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.farm.deployed._PENDING_NBYTES", 1000)
    most = 0
    with Farm(len, workers=1, session=session) as farm:

        def inputs() -> Iterator[bytes]:
            nonlocal most
            for size in (5000, 300, 300, 300, 300, 300):
                most = max(most, farm.deployed.pending)
                yield bytes(size)

        assert list(farm.map(inputs())) == [5000, 300, 300, 300, 300, 300]
    assert most <= 3


def test_an_error_in_the_inputs_is_raised_where_results_are_taken(session: Session) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise OSError("the source is gone")

    with Farm(examples.double, workers=1, session=session) as farm:
        results = farm.map(inputs(), ordered=False)
        with pytest.raises(OSError, match="the source is gone"):
            list(results)


def test_waiting_for_results_ends_when_the_farm_ends_without_further_input(
    session: Session,
) -> None:
    gate = threading.Event()

    def inputs() -> Iterator[int]:
        yield 1
        gate.wait(60)

    farm = Farm(examples.double, workers=1, session=session)
    with farm:
        results = farm.map(inputs())
        assert next(results) == 2
        threading.Timer(0.1, farm.cancel).start()
        with pytest.raises(RunCancelled):
            next(results)
        gate.set()


def test_who_watches_a_farm_learns_of_its_end_even_if_it_has_ended(session: Session) -> None:
    before: list[BaseException] = []
    never: list[BaseException] = []
    after: list[BaseException] = []
    with Farm(abs, workers=1, session=session) as farm:
        deployed = farm.deployed
        deployed.watch(before.append)
        deployed.watch(never.append)
        deployed.unwatch(never.append)
        farm.cancel()
    deployed.watch(after.append)
    assert [type(error) for error in (*before, *after)] == [RunCancelled] * 2
    assert not never


def test_scaled_workers_finish_the_tasks_they_hold(session: Session) -> None:
    with Farm(
        examples.process, workers=(1, 4), autoscaler=None, resources=SMALL, session=session
    ) as farm:
        assert len(set(farm.map(range(5)))) == 1
        assert farm.scale_by(10) == 3
        assert eventually(lambda: farm.model.workers == 4)
        futures = [farm.submit(None) for _ in range(40)]
        assert eventually(lambda: farm.advance(0).busy == 4)
        assert farm.scale_by(-10) == -3
        processes = {future.result(60) for future in futures}
        assert eventually(lambda: farm.model.workers == 1)
        assert len(processes) > 1
        assert len(set(farm.map(range(5)))) == 1
        assert farm.model.most_workers == 4


def test_an_autoscaler_decides_how_many_workers_there_are(session: Session) -> None:
    with Farm(
        examples.double,
        workers=(1, 4),
        autoscaler=Fixed(3),
        every=0.1,
        resources=SMALL,
        session=session,
    ) as farm:
        assert eventually(lambda: farm.model.workers == 3)
        assert list(farm.map(range(10))) == [2 * value for value in range(10)]


def test_a_farm_with_a_range_of_workers_scales_by_itself(session: Session) -> None:
    with Farm(examples.nap, workers=(1, 4), every=0.2, resources=SMALL, session=session) as farm:
        assert len(list(farm.map([0.05] * 100))) == 100
        assert farm.model.most_workers > 1


def test_waiting_tasks_are_taken_in_the_farms_order(session: Session) -> None:
    done: list[float] = []
    with Farm(
        examples.nap,
        workers=1,
        order=EarliestDeadline(),
        deadline=Deadline(factor=1.0, least=0.0, most=1000.0),
        expected=lambda seconds: 1000 * seconds,
        session=session,
    ) as farm:
        farm.submit(0.5)
        assert eventually(lambda: farm.advance(0).busy)
        for seconds in (0.03, 0.01, 0.02):
            farm.submit(seconds).add_done_callback(lambda future: done.append(future.result()))
    assert done == [0.01, 0.02, 0.03]


def test_workers_leave_before_the_platforms_time_limit_and_are_replaced(tmp_path: Path) -> None:
    with (
        Session(function_seconds=5.0, folder=str(tmp_path)) as session,
        Farm(examples.nap, workers=2, tries=1, session=session) as farm,
    ):
        assert list(farm.map([0.05] * 240)) == [0.05] * 240
        assert farm.model.workers == 2
        assert farm.dead_letters() == []


def test_workers_leave_when_their_owner_is_gone(private_folder: object) -> None:
    with Session(workers=2, lease=0.5) as session:
        farm = Farm(examples.process, workers=1, session=session).__enter__()
        (pid,) = {farm.submit(None).result(30)}
        run, deployed = farm.deployed.id, farm.deployed
        deployed._closing = True  # its threads end, as if the client had exited
        with deployed._changed:
            deployed._changed.notify_all()
            deployed._filled.notify_all()
        assert exists(outside(pid))
        assert eventually(lambda: not session.platform.active(run))
        assert eventually(lambda: keys_of(session, run) == [])
        deployed._store.disconnect()


def test_a_pipeline_passes_tasks_through_farms_and_pipelines(session: Session) -> None:
    inner = Pipeline(examples.increase, Farm(examples.double, workers=2, resources=SMALL))
    with Pipeline(examples.double, inner, examples.show, session=session) as pipeline:
        assert list(pipeline.map(range(50))) == [f"<{2 * (2 * v + 1)}>" for v in range(50)]


def test_a_task_given_up_at_a_later_stage_names_the_stage(session: Session) -> None:
    stages = (examples.increase, examples.fail_at_seven)
    with Pipeline(*stages, tries=1, session=session) as pipeline:
        found = list(pipeline.map(range(10), return_errors=True))
        (letter,) = pipeline.dead_letters()
    assert isinstance(found[6], TaskError)
    assert (letter.given, letter.stage) == (7, 1)


def test_a_function_that_cannot_be_loaded_ends_the_farm_with_its_error(session: Session) -> None:
    def function(value: int, poison: object = examples.Unreadable()) -> int:
        return value

    with (
        pytest.raises(TaskError, match="can't be read"),
        Farm(function, workers=1, session=session) as farm,
    ):
        farm.submit(1).result(30)


def test_using_a_farm_outside_its_block_is_an_error(session: Session) -> None:
    farm = Farm(examples.double, session=session)
    with pytest.raises(UsageError, match="with"):
        farm.submit(1)
    with pytest.raises(UsageError):
        Farm(examples.double, tries=0)
    with pytest.raises(UsageError):
        Farm(3)  # type: ignore[arg-type]


def test_a_farms_tasks_run_in_other_processes(session: Session) -> None:
    with Farm(examples.process, workers=2, session=session) as farm:
        assert os.getpid() not in set(farm.map(range(4)))
