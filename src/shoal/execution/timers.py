"""`Timer`: what a machine sets a timer for. `TimerFired` returns the value that `SetTimer` gave."""

from dataclasses import dataclass

from shoal.types import TaskId


@dataclass(frozen=True, slots=True)
class RetryTimer:
    """A task that failed may be tried again."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class CopyTimer:
    """A copy becomes worth running, unless its output has come by then."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class WarmUpTimer:
    """Sandboxes are to be warmed up."""

    number: int
    """Tells the timers of one worker apart."""


@dataclass(frozen=True, slots=True)
class ParkTimer:
    """The worker parks if it has been idle since the timer was set."""

    idle_spell: int
    """The worker's idle spells are numbered from 1; the timer of an earlier one is ignored."""


@dataclass(frozen=True, slots=True)
class HoldTimer:
    """A flexible worker has held an output back for long enough."""

    output: TaskId


@dataclass(frozen=True, slots=True)
class LimitTimer:
    """The time that one start of the worker may take is nearly up."""


Timer = RetryTimer | CopyTimer | WarmUpTimer | ParkTimer | HoldTimer | LimitTimer
