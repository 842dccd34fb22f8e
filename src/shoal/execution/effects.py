"""What a worker does next: orders to its driver, to be carried out in the order given."""

from dataclasses import dataclass

from shoal.types import Resources, TaskId, WorkerId


@dataclass(slots=True)
class Fetch:
    """Bring saved outputs or constants into memory; answered by `Fetched`."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class Execute:
    """Run a task, whose inputs are all in memory; answered by `Executed` or `Failed`."""

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
    """Who runs the task, and is told when this mark is the last one; None: whoever sets the last
    one gets the task. A mark without an owner is answered by `Marked`."""
    producers: tuple[str, ...]
    """Whose marks it needs: workers', or upstream tasks' if there is no owner."""
    inline: tuple[TaskId, ...]
    """This worker's outputs for it that travel with the mark."""
    saved: tuple[TaskId, ...]
    """This worker's outputs for it that are to be fetched."""
    producer: str | None = None
    """Whose share it is, if it isn't this worker's own; the first mark of a share counts."""
    held: tuple[TaskId, ...] | None = None
    """Not None: set the marks of all these outputs, which stay in this worker's memory, and only if
    the task gets its last marks thereby; else `Marked` says that it was refused."""


@dataclass(slots=True)
class Invoke:
    """Start a flexible worker that begins with a task; not answered."""

    task: TaskId
    inline: tuple[TaskId, ...]
    """Its inputs that travel with the invocation; the others are to be fetched."""
    many: bool = False
    """Through the fan-out invoker, which is told the worker's name and no values."""


@dataclass(slots=True)
class Announce:
    """Tell the owner of a preloaded task that an output for it is saved; it isn't started."""

    task: TaskId
    """Whose output it is."""
    owner: WorkerId


@dataclass(slots=True)
class HandIn:
    """Give the client the output of a sink."""

    task: TaskId
    saved: bool
    """Whether it is to be fetched; else it travels with the message."""


@dataclass(slots=True)
class Forget:
    """Free the memory of outputs that this worker needs no more."""

    outputs: tuple[TaskId, ...]


@dataclass(slots=True)
class SetTimer:
    """Report `TimerFired` after so many seconds."""

    timer: str
    seconds: float


@dataclass(slots=True)
class WarmUp:
    """Have so many idle sandboxes ready; not answered."""

    resources: Resources
    count: int = 1


@dataclass(slots=True)
class Park:
    """Leave if no message waits (else `MailCame`); the next one starts the worker again."""

    executed: tuple[TaskId, ...]
    """What the next start needs to be told."""
    again: bool = False
    """Leave whatever waits, and be started again at once: the function's time is nearly over."""


@dataclass(slots=True)
class Abort:
    """End the run: this task failed for good."""

    task: TaskId


@dataclass(slots=True)
class Leave:
    """Leave with the marks just asked for, unless one is the last: nothing else is to be done.

    Each is answered by `Marked` all the same; `Finish` follows if none was the last.
    """


@dataclass(slots=True)
class Finish:
    """Leave: every task of this worker is executed and released, or the run is to end."""


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
