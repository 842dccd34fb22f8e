"""What to say of a worker that was lost for good, from what its gateway saw."""

from __future__ import annotations

import json
import signal

from shoal.errors import (
    OutOfMemory,
    StoreError,
    TaskTimeout,
    UsageError,
    WorkerDied,
)
from shoal.platform.base import final_error
from shoal.storage.base import Letter
from shoal.types import RunId, TaskId
from shoal.workflow import Workflow


def loss_error(
    letter: Letter, workflow: Workflow, run: RunId
) -> WorkerDied | OutOfMemory | TaskTimeout | StoreError | UsageError:
    """What to say of a worker that died."""
    facts = json.loads(bytes(letter.parts[0]))
    tasks = list(workflow.calls)
    running = [tasks[number] for number in facts["running"] if number < len(tasks)]
    task = running[0] if running else TaskId("(none was running)")
    not_run = workflow.after(task) if running else ()
    others = f", or {', '.join(running[1:])} beside it" if running[1:] else ""
    if facts["reason"] == "out of memory":
        reason = f"it exceeded the memory limit of {facts['memory_mb']} MB{others}"
        return OutOfMemory(task, letter.name, reason, not_run=not_run, run=run)
    if facts["reason"] == "time limit":
        reason = "it took longer than the platform lets a function run"
        return TaskTimeout(task, letter.name, reason, not_run=not_run, run=run)
    if facts["reason"] == "vanished":
        reason = "it gave no sign of life, again and again after it was started anew"
        return WorkerDied(task, letter.name, reason, run=run)
    if facts["reason"] == "error":
        final = final_error(facts["detail"])
        if final is not None:
            kind, text = final
            return kind(f"{text} Worker {letter.name} was told so.")
        reason = f"the worker crashed: {facts['detail']}"
        return WorkerDied(task, letter.name, reason, run=run)
    code = facts["code"]
    late = [task for task in running if workflow.calls[task].task.timeout is not None]
    if code == -signal.SIGALRM and late:
        limit = workflow.calls[late[0]].task.timeout
        reason = f"it took longer than {limit:g} s"
        not_run = workflow.after(late[0])
        return TaskTimeout(late[0], letter.name, reason, not_run=not_run, run=run)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    reason = f"its process {how}{others}"
    return WorkerDied(task, letter.name, reason, not_run=not_run, run=run)
