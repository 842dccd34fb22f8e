"""`Effect`: what a machine asks its driver to do. Drivers carry effects out in the order given."""

from dataclasses import dataclass

from shoal.execution.timers import Timer
from shoal.types import Resources, TaskId, WorkerId


@dataclass(slots=True)
class Fetch:
    """Bring saved outputs or constants into memory; answered by `Fetched`."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class Execute:
    """Run a task whose inputs are all in memory; answered by `Executed` or `Failed`."""

    task: TaskId


@dataclass(slots=True)
class Save:
    """Put an output where others can fetch it; answered by `Saved` or `Unsaved`."""

    task: TaskId


@dataclass(slots=True)
class Mark:
    """Tell the store that this worker has done its share for a task."""

    task: TaskId
    owner: WorkerId | None
    """The worker that runs the task, and gets a message when this mark is the last one. None:
    the worker that sets the last mark gets the task, and `Marked` answers each mark."""
    producers: tuple[str, ...]
    """Whose marks the task needs: those of workers, or of upstream tasks if there is no owner."""
    inline: tuple[TaskId, ...]
    """Outputs of this worker for the task that travel with the mark."""
    saved: tuple[TaskId, ...]
    """Outputs of this worker for the task that its owner fetches."""
    producer: str | None = None
    """Whose share the mark is for, if not this worker's own; the first mark of a share counts."""
    held: tuple[TaskId, ...] | None = None
    """If given: set the marks of all these outputs, which stay in this worker's memory, but only if
    they complete the task's marks. Otherwise `Marked` says that the mark was refused."""


@dataclass(slots=True)
class Invoke:
    """Start a flexible worker that begins with a task; not answered."""

    task: TaskId
    inline: tuple[TaskId, ...]
    """Inputs that travel with the invocation; the worker fetches the others."""
    many: bool = False
    """Whether the fan-out invoker starts it, which is given names of workers and no values."""


@dataclass(slots=True)
class Announce:
    """Tell the owner of a preloaded task that an output for it is saved, without starting it."""

    task: TaskId
    """The task whose output is saved."""
    owner: WorkerId


@dataclass(slots=True)
class HandIn:
    """Give the client the output of a sink."""

    task: TaskId
    saved: bool
    """Whether the client fetches it; otherwise it travels with the message."""


@dataclass(slots=True)
class Forget:
    """Drop outputs that this worker doesn't need any more."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class SetTimer:
    """Report `TimerFired` with this timer after so many seconds."""

    timer: Timer
    seconds: float


@dataclass(slots=True)
class WarmUp:
    """Have this many idle sandboxes ready; not answered."""

    resources: Resources
    count: int = 1


@dataclass(slots=True)
class Park:
    """Leave if no message is waiting, else `MailCame`. The next message restarts the worker."""

    executed: tuple[TaskId, ...]
    """Executed tasks and copies, for the next start."""
    again: bool = False
    """Leave even if messages wait, and restart at once: the time limit is near."""


@dataclass(slots=True)
class Abort:
    """End the run: this task failed and isn't retried."""

    task: TaskId


@dataclass(slots=True)
class Leave:
    """Leave with the marks of this event, unless one is the last: nothing else is left to do.

    `Marked` still answers each of them, and `Finish` follows if none was the last.
    """


@dataclass(slots=True)
class Finish:
    """Leave: every task of this worker is executed and released, or the run ends early."""


Effect = (
    Fetch
    | Execute
    | Save
    | Mark
    | Invoke
    | Announce
    | HandIn
    | Forget
    | SetTimer
    | WarmUp
    | Park
    | Abort
    | Leave
    | Finish
)
