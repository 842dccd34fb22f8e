"""The restart policy as data: the facts about a loss in, a decision out."""

from __future__ import annotations

import signal
import traceback

import pytest

from shoal.errors import (
    EnvironmentMismatch,
    ReactionError,
    ShardLost,
    ShardUnavailable,
    ShoalError,
    StoreRefused,
    StoreUnavailable,
    Tampered,
    UsageError,
)
from shoal.execution.restart_policy import (
    FARM_LOSSES,
    PLATFORM_GRACE_PERIOD,
    STRAGGLER_SECONDS,
    STUCK_LEASES,
    STUCK_SECONDS,
    GiveUp,
    Replace,
    Restart,
    RunningTask,
    StartTwin,
    Wait,
    WorkerEnded,
    after_end,
    after_farm_loss,
    after_gateway_gave_up,
    final_error,
    while_idle,
    while_running,
    while_unreachable,
)
from shoal.types import Loss, LossReason, Resources, TaskId, WorkerId

W0 = WorkerId("w0")
A, B = TaskId("a#0"), TaskId("b#0")


def ended(reason: LossReason, limit_mb: int = 4096, **facts: object) -> WorkerEnded:
    loss = Loss(reason, **{"memory_mb": 1024, "epoch": 1} | facts)  # type: ignore[arg-type]
    return WorkerEnded(W0, loss, 0.5, limit_mb)


def reported(error: BaseException, cause: BaseException | None = None) -> str:
    """Return an error as a worker reports it."""
    error.__cause__ = cause
    return "".join(traceback.format_exception(error))


# The gateway's decisions.


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_killed_worker_restarts_with_the_same_resources(name: str) -> None:
    code = -signal.Signals[name]
    assert after_end(ended(LossReason.DIED, code=code)) == Restart("worker w0")


@pytest.mark.parametrize("code", [0, 1, 70, -signal.SIGSEGV, -signal.SIGALRM, -signal.SIGABRT])
def test_a_worker_that_crashed_or_exited_is_not_restarted(code: int) -> None:
    assert after_end(ended(LossReason.DIED, code=code)) == GiveUp()


def test_loss_is_attributed_to_the_first_task_that_was_running() -> None:
    loss = ended(LossReason.DIED, code=-signal.SIGKILL, running=(7, 3))
    assert after_end(loss) == Restart("task 7")


def test_worker_that_ran_out_of_memory_restarts_with_twice_as_much() -> None:
    found = after_end(ended(LossReason.OUT_OF_MEMORY, code=-signal.SIGKILL, running=(2,)))
    assert found == Restart("task 2", Resources(2048, 0.5))


def test_memory_grows_up_to_the_limit_of_the_platform() -> None:
    found = after_end(ended(LossReason.OUT_OF_MEMORY, 1500, code=-signal.SIGKILL))
    assert found == Restart("worker w0", Resources(1500, 0.5))


@pytest.mark.parametrize("limit_mb", [1024, 512])
def test_a_worker_that_had_all_available_memory_is_not_restarted(limit_mb: int) -> None:
    assert after_end(ended(LossReason.OUT_OF_MEMORY, limit_mb, code=-9)) == GiveUp()


def test_exit_code_of_a_worker_that_ran_out_of_memory_does_not_matter() -> None:
    found = after_end(ended(LossReason.OUT_OF_MEMORY, code=1))
    assert found == Restart("worker w0", Resources(2048, 0.5))


def test_worker_that_was_killed_at_the_time_limit_restarts() -> None:
    found = after_end(ended(LossReason.TIME_LIMIT, code=-signal.SIGKILL, running=(1,)))
    assert found == Restart("task 1")


def test_a_worker_with_a_transient_error_is_restarted() -> None:
    detail = reported(StoreUnavailable("nobody answers"))
    assert after_end(ended(LossReason.ERROR, detail=detail)) == Restart("worker w0")


FINAL = [
    EnvironmentMismatch("numpy"),
    StoreRefused("full"),
    ShardUnavailable("a"),
    ShardLost("a"),
    Tampered("x"),
    ReactionError("x"),
    UsageError("x"),
]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_an_error_that_a_restart_cannot_cure_is_final(error: ShoalError) -> None:
    lost = ended(LossReason.ERROR, detail=reported(error))
    assert after_end(lost) == GiveUp()
    assert after_gateway_gave_up(lost.loss, [RunningTask(A, retries=3, retried=0)]) == GiveUp()


def test_the_error_that_ended_a_worker_is_found_among_its_causes() -> None:
    refused, away = StoreRefused("memory\nis full"), StoreUnavailable("not answered")
    assert final_error(reported(refused, away)) == (StoreRefused, "memory\nis full")
    assert final_error(reported(away, StoreRefused("CLUSTERDOWN for now"))) is None
    assert final_error("ValueError: no") is None


# The client's decisions.

CRASHED = Loss(LossReason.DIED, (0, 1), 1024, 1, -signal.SIGSEGV)


def test_task_with_retries_left_survives_the_loss_of_its_worker() -> None:
    found = after_gateway_gave_up(CRASHED, [RunningTask(A, retries=2, retried=1)])
    assert found == Restart("try 2 of a#0", retried=A)


def test_each_attempt_of_a_task_is_a_separate_cause() -> None:
    tries = [RunningTask(A, retries=3, retried=number) for number in range(3)]
    causes = {after_gateway_gave_up(CRASHED, [each]) for each in tries}
    assert len(causes) == 3


def test_first_task_with_retries_left_is_retried() -> None:
    running = [RunningTask(A, retries=1, retried=1), RunningTask(B, retries=1, retried=0)]
    assert after_gateway_gave_up(CRASHED, running) == Restart("try 1 of b#0", retried=B)


@pytest.mark.parametrize("running", [[], [RunningTask(A, 0, 0)], [RunningTask(A, 2, 2)]])
def test_client_gives_up_when_no_running_task_has_retries_left(running: list[RunningTask]) -> None:
    assert after_gateway_gave_up(CRASHED, running) == GiveUp()


# A farm's decisions.


def test_farm_replaces_lost_workers_until_too_many_are_lost_in_a_row() -> None:
    found = [after_farm_loss(CRASHED, losses) for losses in range(1, FARM_LOSSES + 2)]
    assert found == [Replace()] * FARM_LOSSES + [GiveUp()]


def test_farm_gives_up_after_an_error_that_the_next_worker_would_meet_too() -> None:
    loss = Loss(LossReason.ERROR, detail=reported(EnvironmentMismatch("Python 3.12")))
    assert after_farm_loss(loss, 1) == GiveUp()


# Decisions that all share.


def test_an_unreachable_service_is_waited_for_but_not_forever() -> None:
    assert while_unreachable(PLATFORM_GRACE_PERIOD, PLATFORM_GRACE_PERIOD) == Wait()
    assert while_unreachable(PLATFORM_GRACE_PERIOD + 0.1, PLATFORM_GRACE_PERIOD) == GiveUp()


def test_a_platform_that_rejects_the_token_is_not_waited_for() -> None:
    assert while_unreachable(0.0, PLATFORM_GRACE_PERIOD, rejected=True) == GiveUp()


def test_task_that_takes_many_times_as_long_as_predicted_gets_a_twin() -> None:
    assert while_running(6.1, predicted=2.0, factor=3.0) == StartTwin()
    assert while_running(6.0, predicted=2.0, factor=3.0) == Wait()


def test_short_task_never_gets_a_twin() -> None:
    assert while_running(STRAGGLER_SECONDS - 0.01, predicted=0.001, factor=3.0) == Wait()
    assert while_running(STRAGGLER_SECONDS, predicted=0.001, factor=3.0) == StartTwin()


@pytest.mark.parametrize("lease", [0.1, 15.0])
def test_run_without_progress_for_several_leases_is_stuck(lease: float) -> None:
    most = max(STUCK_LEASES * lease, STUCK_SECONDS)
    assert while_idle(most, lease) == Wait()
    assert while_idle(most + 0.1, lease) == GiveUp()
