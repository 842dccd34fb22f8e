"""The error that a run ends with when one of its workers is lost for good."""

from __future__ import annotations

import signal
from typing import assert_never

from shoal.errors import OutOfMemory, TaskTimeout, WorkerDied
from shoal.execution.restart_policy import FinalError, final_error
from shoal.types import Loss, LossReason, RunId, TaskId, WorkerId
from shoal.workflow import Workflow

LossError = WorkerDied | OutOfMemory | TaskTimeout | FinalError


def loss_error(worker: WorkerId, loss: Loss, workflow: Workflow, run: RunId) -> LossError:
    """What to raise for a lost worker, from what its gateway or the store saw."""
    running = workflow.numbered(loss.running)
    task = running[0] if running else TaskId("(none was running)")
    not_run = workflow.after(task) if running else ()
    others = f", or {', '.join(running[1:])} beside it" if running[1:] else ""
    match loss.reason:
        case LossReason.OUT_OF_MEMORY:
            reason = f"it exceeded the memory limit of {loss.memory_mb} MB{others}"
            return OutOfMemory(task, worker, reason, not_run=not_run, run=run)
        case LossReason.TIME_LIMIT:
            reason = "it took longer than the platform lets a function run"
            return TaskTimeout(task, worker, reason, not_run=not_run, run=run)
        case LossReason.VANISHED:
            reason = "it gave no sign of life, again and again after it was restarted"
            return WorkerDied(task, worker, reason, run=run)
        case LossReason.ERROR:
            return _after_error(worker, loss, task, run)
        case LossReason.DIED:
            return _after_end(worker, loss, running, workflow, run) or WorkerDied(
                task, worker, f"its process {_ended(loss)}{others}", not_run=not_run, run=run
            )
        case _:
            assert_never(loss.reason)


def _after_error(worker: WorkerId, loss: Loss, task: TaskId, run: RunId) -> LossError:
    """What to raise when Shoal's own code failed in the worker, or an engine did not start it."""
    final = final_error(loss.detail)
    if final is not None:
        kind, text = final
        return kind(f"{text} This happened on worker {worker}.")
    what = "crashed" if loss.code is None else "could not be started"
    return WorkerDied(task, worker, f"the worker {what}: {loss.detail}", run=run)


def _after_end(
    worker: WorkerId, loss: Loss, running: list[TaskId], workflow: Workflow, run: RunId
) -> TaskTimeout | None:
    """What to raise if the worker's process ended because a task exceeded its timeout."""
    late = [task for task in running if workflow.calls[task].task.timeout is not None]
    if loss.code != -signal.SIGALRM or not late:
        return None
    reason = f"it took longer than {workflow.calls[late[0]].task.timeout:g} s"
    return TaskTimeout(late[0], worker, reason, not_run=workflow.after(late[0]), run=run)


def _ended(loss: Loss) -> str:
    """How a process ended."""
    if loss.code is None:
        return f"ended: {loss.detail}" if loss.detail else "ended"
    return (
        f"was killed by signal {-loss.code}"
        if loss.code < 0
        else f"ended with exit code {loss.code}"
    )
