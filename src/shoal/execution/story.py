"""`Log`: what a machine was told and what it asked for, and a task's story in it."""

from __future__ import annotations

from collections import deque

from shoal.errors import ProtocolViolation
from shoal.execution.effects import Effect
from shoal.execution.events import Event
from shoal.types import TaskId, WorkerId

REMEMBERED = 10_000
"""How many events back a story goes, so that a long life doesn't fill the memory."""

Log = deque[tuple[float, Event, list[Effect]]]
"""Each event, when it happened, and the effects that it had."""


def new_log() -> Log:
    """A log without entries, which forgets the oldest."""
    return deque(maxlen=REMEMBERED)


def story_of(task: TaskId, log: Log) -> list[str]:
    """What happened to a task, a line for each event and effect that names it."""
    return [
        f"{now:.6f} {step}"
        for now, event, effects in log
        for step in (event, *effects)
        if _names(step, task)
    ]


def violation(worker: WorkerId, task: TaskId, what: str, log: Log) -> ProtocolViolation:
    """An event didn't fit the state of a worker; the task's story says how it came about."""
    lines = "\n".join(story_of(task, log))
    return ProtocolViolation(f"worker {worker}, task {task!r}: {what}\n{lines}")


def _names(step: Event | Effect, task: TaskId) -> bool:
    for name in ("task", "outputs", "executed", "held", "inline", "saved", "producer"):
        value = getattr(step, name, None)
        if value == task or (isinstance(value, tuple) and task in value):
            return True
    return False
