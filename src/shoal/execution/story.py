"""`Log`: the events and effects of a machine, and the story of a task in them."""

from __future__ import annotations

from collections import deque

from shoal.errors import ProtocolViolation
from shoal.execution.effects import Effect
from shoal.execution.events import Event
from shoal.types import TaskId, WorkerId

REMEMBERED = 10_000
"""The number of events that a log keeps, so that a long run doesn't fill the memory."""

Log = deque[tuple[float, Event, list[Effect]]]
"""When each event happened, the event, and its effects."""


def new_log() -> Log:
    """An empty log, which drops its oldest entries when it is full."""
    return deque(maxlen=REMEMBERED)


def story_of(task: TaskId, log: Log) -> list[str]:
    """What happened to a task: a line for each event and effect that names it."""
    return [
        f"{now:.6f} {step}"
        for now, event, effects in log
        for step in (event, *effects)
        if _names(step, task)
    ]


def violation(worker: WorkerId, task: TaskId, what: str, log: Log) -> ProtocolViolation:
    """The error for an event that doesn't fit the state; the story says how it came about."""
    lines = "\n".join(story_of(task, log))
    return ProtocolViolation(f"worker {worker}, task {task!r}: {what}\n{lines}")


def _names(step: Event | Effect, task: TaskId) -> bool:
    for name in ("task", "outputs", "executed", "held", "inline", "saved", "producer"):
        value = getattr(step, name, None)
        if value == task or (isinstance(value, tuple) and task in value):
            return True
    return False
