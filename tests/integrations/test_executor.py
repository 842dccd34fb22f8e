"""`ShoalExecutor` keeps what `concurrent.futures` promises, on real workers."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_examples import (
    Held,
    add,
    die,
    divide,
    note,
    note_and_wait_for,
    raise_finicky,
    stubborn,
    unpicklable,
    wait_for,
)

from observing import TIMEOUT, eventually
from shoal import Session, ShoalExecutor, task
from shoal.errors import NotPicklable, RemoteTraceback, WorkerDied
from shoal.integrations.calls import call_of, perform
from shoal.integrations.executor import _Batch, _SubmittedCall
from shoal.workflow import origin_of

pytestmark = pytest.mark.real


@pytest.fixture
def executor(session: Session) -> Iterator[ShoalExecutor]:
    with ShoalExecutor(2, session=session, restarts=0) as executor:
        yield executor


# Results.


def test_history_knows_a_call_by_where_its_function_is_defined() -> None:
    output = call_of(partial(os.path.join, "a"), ("b",), {})
    assert (output.task.name, output.task.key) == ("join", origin_of(os.path.join))


def test_a_call_returns_what_the_function_returns(executor: ShoalExecutor) -> None:
    assert executor.submit(add, 1, 2, start=3).result(TIMEOUT) == 6


def test_lambdas_partials_and_tasks_can_be_submitted(executor: ShoalExecutor) -> None:
    base = 10
    assert executor.submit(lambda x: x + base, 1).result(TIMEOUT) == 11
    assert executor.submit(partial(add, 1), 2).result(TIMEOUT) == 3
    assert executor.submit(task(add), 1, 2).result(TIMEOUT) == 3
    assert executor.submit("a,b".split, ",").result(TIMEOUT) == ["a", "b"]


def test_a_thousand_calls_are_a_few_runs(
    executor: ShoalExecutor, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run_here = session.run_here

    def counted(*outputs: Any, **options: Any) -> Any:
        sizes.append(len(outputs))
        return run_here(*outputs, **options)

    executor.submit(add, 1).result(TIMEOUT)
    monkeypatch.setattr(session, "run_here", counted)
    futures = [executor.submit(add, number) for number in range(1000)]
    assert [future.result(TIMEOUT) for future in futures] == list(range(1000))
    assert sum(sizes) == 1000
    assert len(sizes) < 300


@pytest.mark.parametrize("chunksize", [1, 7, 100])
def test_map_keeps_the_order(executor: ShoalExecutor, chunksize: int) -> None:
    found = list(executor.map(add, range(20), range(1, 30), chunksize=chunksize))
    assert found == [2 * number + 1 for number in range(20)]
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(add, [1], chunksize=0)


def test_large_arrays_are_passed_and_returned(executor: ShoalExecutor) -> None:
    array = np.arange(500_000.0)
    futures = [executor.submit(np.multiply, array, factor) for factor in (2, 3)]
    for factor, future in zip((2, 3), futures, strict=True):
        assert np.array_equal(future.result(TIMEOUT), array * factor)


def test_a_future_is_done_as_soon_as_its_own_call_is(
    executor: ShoalExecutor, tmp_path: Path
) -> None:
    """The short calls, known to be short, share a batch with one that waits."""
    for _ in range(2):
        executor.submit(wait_for, str(tmp_path), "", 1).result(TIMEOUT)
    slow = [executor.submit(wait_for, str(tmp_path), "gate") for _ in range(2)]
    assert eventually(lambda: all(future.running() for future in slow))
    queued = [executor.submit(wait_for, str(tmp_path), name) for name in ("", "", "other")]
    note(str(tmp_path), "gate")
    done = wait(queued[:2], TIMEOUT).done
    assert len(done) == 2
    assert not queued[2].done()
    note(str(tmp_path), "other")
    assert [*as_completed([*slow, *queued], TIMEOUT)]


# Failures.


def test_an_exception_comes_with_the_remote_traceback_as_its_cause(
    executor: ShoalExecutor,
) -> None:
    error = executor.submit(divide, 1, 0).exception(TIMEOUT)
    assert type(error) is ZeroDivisionError
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "return one / other" in str(error.__cause__)
    assert "shoal/" not in str(error.__cause__)


def test_an_exception_leaves_the_other_calls_alone(executor: ShoalExecutor) -> None:
    futures = [executor.submit(divide, 1, number % 5) for number in range(50)]
    failed = [number for number, future in enumerate(futures) if future.exception(TIMEOUT)]
    assert failed == list(range(0, 50, 5))


def test_the_first_exception_can_be_waited_for(executor: ShoalExecutor, tmp_path: Path) -> None:
    waiting = executor.submit(wait_for, str(tmp_path), "gate")
    failing = executor.submit(divide, 1, 0)
    done, not_done = wait([waiting, failing], TIMEOUT, FIRST_EXCEPTION)
    note(str(tmp_path), "gate")
    assert done == {failing}
    assert not_done == {waiting}
    assert waiting.result(TIMEOUT)


def test_an_unpicklable_call_fails_alone(executor: ShoalExecutor) -> None:
    good = executor.submit(add, 1)
    with pytest.raises(NotPicklable, match="a call of 'add'"):
        executor.submit(add, threading.Lock()).result(TIMEOUT)
    with pytest.raises(NotPicklable, match="the result of 'unpicklable'"):
        executor.submit(unpicklable).result(TIMEOUT)
    with pytest.raises(ZeroDivisionError):
        executor.submit(stubborn).result(TIMEOUT)
    with pytest.raises(ZeroDivisionError):
        executor.submit(add, stubborn()).result(TIMEOUT)
    with pytest.raises(RuntimeError, match="Finicky: 1 and 2"):
        executor.submit(raise_finicky).result(TIMEOUT)
    assert good.result(TIMEOUT) == 1


def test_a_call_that_ends_its_worker_fails_alone(executor: ShoalExecutor, tmp_path: Path) -> None:
    """The other calls of its batch are expected to be short, and run again."""
    executor._expected[f"{die.__module__}.die"] = 0.0
    executor._expected[f"{add.__module__}.add"] = 0.0
    gates = [executor.submit(wait_for, str(tmp_path), "gate") for _ in range(2)]
    before = [executor.submit(add, number) for number in range(5)]
    fatal = executor.submit(die, 1)
    after = [executor.submit(add, number) for number in range(5)]
    note(str(tmp_path), "gate")
    with pytest.raises(WorkerDied, match="killed by signal 9"):
        fatal.result(TIMEOUT)
    assert [future.result(TIMEOUT) for future in before + after] == [*range(5), *range(5)]
    assert all(gate.result(TIMEOUT) for gate in gates)


def test_timeouts_of_waiting_callers_are_honoured(executor: ShoalExecutor, tmp_path: Path) -> None:
    future = executor.submit(wait_for, str(tmp_path), "gate")
    with pytest.raises(TimeoutError):
        future.result(0.05)
    with pytest.raises(TimeoutError):
        list(executor.map(wait_for, [str(tmp_path)], ["gate"], timeout=0.05))
    note(str(tmp_path), "gate")
    assert future.result(TIMEOUT)


# Order and shutdown.


def test_calls_run_concurrently_on_all_workers(executor: ShoalExecutor, tmp_path: Path) -> None:
    """Each waits for a signal of the other."""
    pair = [
        executor.submit(note_and_wait_for, str(tmp_path), *names)
        for names in (("one", "other"), ("other", "one"))
    ]
    assert [future.result(TIMEOUT) for future in pair] == [True, True]


def test_a_call_that_has_not_started_can_be_cancelled(
    executor: ShoalExecutor, tmp_path: Path
) -> None:
    begun = [executor.submit(wait_for, str(tmp_path), "gate") for _ in range(2)]
    assert eventually(lambda: all(future.running() for future in begun))
    queued = [executor.submit(note, str(tmp_path), f"queued {number}") for number in range(3)]
    assert not begun[0].cancel()
    assert queued[1].cancel()
    note(str(tmp_path), "gate")
    assert [queued[0].result(TIMEOUT), queued[2].result(TIMEOUT)] == ["queued 0", "queued 2"]
    with pytest.raises(CancelledError):
        queued[1].result(TIMEOUT)
    assert not (tmp_path / "queued 1").exists()


def test_more_can_be_submitted_from_a_callback(executor: ShoalExecutor) -> None:
    found: Future[int] = Future()

    def go_on(future: Future[int]) -> None:
        again = executor.submit(add, future.result(), 1)
        again.add_done_callback(lambda last: found.set_result(last.result()))

    executor.submit(add, 1).add_done_callback(go_on)
    assert found.result(TIMEOUT) == 2


def test_the_end_of_the_block_waits_for_all_calls(session: Session, tmp_path: Path) -> None:
    with ShoalExecutor(2, session=session) as executor:
        futures = [executor.submit(note, str(tmp_path), str(number)) for number in range(5)]
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1)


def test_shutdown_can_cancel_calls_that_have_not_started(session: Session, tmp_path: Path) -> None:
    executor = ShoalExecutor(1, session=session)
    begun = executor.submit(wait_for, str(tmp_path), "gate")
    assert eventually(begun.running)
    queued = [executor.submit(add, number) for number in range(3)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in queued)
    note(str(tmp_path), "gate")
    assert begun.result(TIMEOUT)


def test_killing_the_workers_ends_running_calls(session: Session, tmp_path: Path) -> None:
    executor = ShoalExecutor(1, session=session)
    begun = executor.submit(wait_for, str(tmp_path), "never")
    queued = executor.submit(add, 1)
    assert eventually(begun.running)
    executor.kill_workers()
    with pytest.raises(BrokenExecutor):
        begun.result(TIMEOUT)
    assert queued.cancelled()
    with pytest.raises(BrokenExecutor, match="workers were killed"):
        executor.submit(add, 1)
    assert ShoalExecutor(1, session=session).submit(add, 1).result(TIMEOUT) == 1


def test_the_end_of_the_session_breaks_the_executor(tmp_path: Path) -> None:
    session = Session(workers=1)
    executor = ShoalExecutor(session=session)
    assert executor.max_workers == 1
    begun = executor.submit(wait_for, str(tmp_path), "never")
    queued = executor.submit(add, 1)
    assert eventually(begun.running)
    session.close()
    for future in (begun, queued):
        with pytest.raises(BrokenExecutor):
            future.result(TIMEOUT)
    with pytest.raises(BrokenExecutor):
        executor.submit(add, 1).result(TIMEOUT)
    executor.shutdown()


def test_a_scripts_functions_run_and_its_exit_waits_for_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import time
            from shoal import ShoalExecutor

            def slow(number):
                time.sleep(0.2)
                return number

            executor = ShoalExecutor(2)
            for number in range(4):
                future = executor.submit(slow, number)
                future.add_done_callback(
                    lambda done: print(f"{done.result()}\\n", end="", flush=True)
                )
        """)
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == ["0", "1", "2", "3"]


def test_max_workers_must_be_at_least_one(session: Session) -> None:
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        ShoalExecutor(0, session=session)


def _freed(reference: weakref.ref[Any]) -> bool:
    gc.collect()
    return reference() is None


def test_a_result_that_was_retrieved_and_dropped_is_freed(executor: ShoalExecutor) -> None:
    for result in executor.map(Held, range(10)):
        freed = weakref.ref(result)
        del result
        assert eventually(partial(_freed, freed))


def test_a_result_is_freed_although_others_of_its_batch_are_not_done() -> None:
    futures: list[Future[Held]] = [Future(), Future()]
    works = [_SubmittedCall(future, call_of(Held, (1,), {}), "held") for future in futures]
    batch = _Batch(works, lambda kind, seconds: None)
    works.clear()
    batch.arrived(0, perform(pickle.dumps((Held, (1,), {}))))
    freed = weakref.ref(futures.pop(0).result(0))
    gc.collect()
    assert freed() is None
    assert list(batch.works) == [1]
