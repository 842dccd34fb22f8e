"""`Machine`: what the machines of planned and of flexible workers have in common."""

from __future__ import annotations

from shoal.errors import ProtocolViolation
from shoal.execution.effects import Abort, Effect, SetTimer
from shoal.execution.events import Event, Failed
from shoal.execution.memory import Memory
from shoal.execution.plan import Part
from shoal.execution.retries import Retries
from shoal.execution.story import new_log, story_of, violation
from shoal.execution.timers import LimitTimer
from shoal.types import TaskId

IN_TIME = 0.7
"""The share of its time limit after which a worker begins nothing more."""


class Machine:
    """The state of one start of a worker."""

    def __init__(self, part: Part, memory: Memory) -> None:
        self.part = part
        self.finished = False
        """Whether the last effect has been given. Later events are logged and have no effect."""
        self._memory = memory
        """What is in memory, and for whom. Inputs of ready, running and pausing tasks are held."""
        self._slots = part.resources.slots
        """How many tasks may run at once."""
        self._running: set[TaskId] = set()
        """Tasks and copies that are being executed: at most as many as there are slots."""
        self._retries = Retries(part.retries)
        """Which tasks have failed. None of those that pause is in `_running`."""
        self._log = new_log()
        """The latest events and their effects, for stories."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take note of what happened; the effects are to be carried out in order."""
        effects: list[Effect] = []
        self._log.append((now, event, effects))
        if not self.finished:
            self._react(event, effects, now)
        return effects

    def _react(self, event: Event, effects: list[Effect], now: float) -> None:
        raise NotImplementedError

    def story(self, task: TaskId) -> list[str]:
        """What happened to a task here: a line for each event and effect that names it."""
        return story_of(task, self._log)

    def _violation(self, task: TaskId, what: str) -> ProtocolViolation:
        return violation(self.part.worker, task, what, self._log)

    def _set_limit(self, effects: list[Effect]) -> None:
        """Have a timer fire when the time limit is near, if there is one."""
        if self.part.limit is not None:
            effects.append(SetTimer(LimitTimer(), self.part.limit * IN_TIME))

    def _stopped_running(self, task: TaskId, how: str) -> None:
        if task not in self._running:
            raise self._violation(task, f"{how}, but not running")
        self._running.remove(task)

    def _retry_or_abort(self, event: Failed, effects: list[Effect]) -> None:
        """Try a task again after a pause, or end the run."""
        pause = self._retries.failed(event.task, final=event.final)
        if pause is not None:
            effects.append(pause)
        else:
            self._end(effects, Abort(event.task))

    def _end(self, effects: list[Effect], last: Effect) -> None:
        """Save own outputs that are only in memory, and do no more."""
        self.finished = True
        self._memory.save_all(self.part.tasks, effects)
        effects.append(last)
