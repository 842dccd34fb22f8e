"""What can happen to a worker: facts, in the past tense."""

from dataclasses import dataclass

from shoal.types import TaskId, WorkerId


@dataclass(slots=True)
class Recovered:
    """What a start of the worker that was lost had done, as far as the store knows."""

    saved: frozenset[TaskId] = frozenset()
    """Outputs that can be fetched."""
    held: tuple[TaskId, ...] = ()
    """Own outputs that had travelled with marks, and are in memory again."""
    marked: frozenset[TaskId] = frozenset()
    """Tasks that the worker has done its share for."""
    handed_in: frozenset[TaskId] = frozenset()
    """Sinks whose outputs the client has."""
    started: frozenset[WorkerId] = frozenset()
    """Flexible workers that were invoked."""


@dataclass(slots=True)
class Started:
    """The worker began: for the first time, again after it parked, or after a start was lost."""

    executed: tuple[TaskId, ...] = ()
    """What was executed before it parked, copies too; what is still needed of it is saved."""
    recovered: Recovered | None = None
    """After a start was lost; then this alone counts."""


@dataclass(slots=True)
class Arrived:
    """A task that others were waited for became ready; repeats are ignored."""

    task: TaskId
    held: tuple[TaskId, ...] = ()
    """Its inputs that came with the message; the others are to be fetched."""


@dataclass(slots=True)
class Announced:
    """Outputs for a task that hasn't arrived are saved; repeats are ignored."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class Fetched:
    """Saved outputs or constants are now in this worker's memory."""

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
    """Another try would be no use."""


@dataclass(slots=True)
class Saved:
    """An output can be fetched by others."""

    task: TaskId


@dataclass(slots=True)
class Unsaved:
    """An output can't be pickled, so it stays in this worker's memory."""

    task: TaskId


@dataclass(slots=True)
class Marked:
    """A mark of a task without an owner is set."""

    task: TaskId
    producer: TaskId
    """The upstream task whose mark it was."""
    claimed: bool
    """It was the last: the task is this worker's, and nobody else's."""
    held: tuple[TaskId, ...] = ()
    """The task's inputs that came with the answer; the others are saved, or here."""
    refused: bool = False
    """It was to be set only if it was the last, and isn't set."""


@dataclass(slots=True)
class TimerFired:
    """The time of a `SetTimer` has come."""

    timer: str


@dataclass(slots=True)
class MailCame:
    """Parking was refused: a message had just come, and will be reported."""


@dataclass(slots=True)
class Stopped:
    """The run is to end before it is done: what is in memory only is saved, for who resumes it."""


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
