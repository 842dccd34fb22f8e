"""`Event`: what can happen to a worker, as its driver reports it to the machine."""

from dataclasses import dataclass

from shoal.execution.timers import Timer
from shoal.types import TaskId, WorkerId


@dataclass(slots=True)
class Recovered:
    """What lost starts of the worker had done, as far as the store knows."""

    saved: frozenset[TaskId] = frozenset()
    """Outputs that can be fetched."""
    held: tuple[TaskId, ...] = ()
    """Own outputs that had travelled with marks and are in memory again."""
    marked: frozenset[TaskId] = frozenset()
    """Tasks for which the worker has done its share."""
    handed_in: frozenset[TaskId] = frozenset()
    """Sinks whose outputs the client has."""
    started: frozenset[WorkerId] = frozenset()
    """Flexible workers that had been invoked."""


@dataclass(slots=True)
class Started:
    """The worker started: for the first time, after it had parked, or after a start was lost."""

    executed: tuple[TaskId, ...] = ()
    """Tasks and copies executed before it parked; outputs that are still needed are saved."""
    recovered: Recovered | None = None
    """What is left of lost starts; if given, `executed` is ignored."""


@dataclass(slots=True)
class Arrived:
    """A task that waited for other workers became ready; repeats are ignored."""

    task: TaskId
    held: tuple[TaskId, ...] = ()
    """Inputs that came with the message; the others can be fetched."""


@dataclass(slots=True)
class Announced:
    """Outputs for a task that hasn't arrived are saved; repeats are ignored."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class Fetched:
    """Saved outputs or constants are in memory now."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class Executed:
    """A task returned."""

    task: TaskId
    nbytes: int
    """The size of its output."""


@dataclass(slots=True)
class Failed:
    """A task raised, or took too long."""

    task: TaskId
    final: bool = False
    """Whether a retry is pointless."""


@dataclass(slots=True)
class Saved:
    """Others can fetch an output."""

    task: TaskId


@dataclass(slots=True)
class Unsaved:
    """An output can't be pickled, so it stays in memory."""

    task: TaskId


@dataclass(slots=True)
class Marked:
    """The store answered a mark of a task without an owner."""

    task: TaskId
    producer: TaskId
    """The upstream task whose mark it was."""
    claimed: bool
    """Whether it was the last mark, so that the task belongs to this worker alone."""
    held: tuple[TaskId, ...] = ()
    """Inputs of the task that came with the answer; the others are saved, or here."""
    refused: bool = False
    """Whether it isn't set, because it was to be set only as the last one."""


@dataclass(slots=True)
class TimerFired:
    """The time of a `SetTimer` is up."""

    timer: Timer


@dataclass(slots=True)
class MailCame:
    """The store refused parking: a message had just come, and will be reported."""


@dataclass(slots=True)
class Stopped:
    """The run ends early: outputs that are only in memory are saved, so that it can be resumed."""


Event = (
    Started
    | Arrived
    | Announced
    | Fetched
    | Executed
    | Failed
    | Saved
    | Unsaved
    | Marked
    | TimerFired
    | MailCame
    | Stopped
)
