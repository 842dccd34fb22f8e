"""`Store`: how workers coordinate. Every operation is atomic. All but rare ones take one trip.

1. A run exists from `open` to `close`. After that the store refuses all its messages (`RunOver`),
   so nothing of a run reappears. Every key also has a time to live: that of the run.
2. Each start of a worker has an epoch. The store refuses messages of an older epoch, unless it is a
   twin; of several invocations of one start it accepts only the first to enter. A client that
   doesn't know whether an operation was carried out may repeat it, and gets the same answer.
3. Within one `complete`, outputs are saved before they are announced and tasks are marked.
4. Marks are idempotent: a set of the producers that are done, not a counter.
5. A mailbox keeps its messages until the run ends. Reading removes nothing.
6. A task without an owner belongs to the sender of its last mark; only the answer to that mark says
   so, and a repetition of the mark gets the same answer. Marks of outputs that stay with their
   worker are set only if they complete the task. If that worker is lost, the task goes to a sender
   that has all of those outputs, or that marks the last of them with its output.
7. In a run with a common part, the first start of any worker may enter, even one that the store
   doesn't know yet. Otherwise only a claimed start may.
8. A claimed start has a lease until it parks or finishes. Each message renews it, also during a
   long transfer, and so does a supervisor that sees the worker alive. A supervisor of
   the run restarts workers whose leases have expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.clock import Clock
from shoal.storage.codec import Blob, Buffer
from shoal.storage.letters import Letter, Received
from shoal.types import RunId, TaskId, WorkerId

DEFAULT_TTL = 24 * 3600
"""Seconds after which a run that wasn't closed is deleted."""
LEASE = 15.0
"""Seconds without a heartbeat after which a worker counts as lost."""
RESTARTS = 3
"""How often a worker is restarted after the same cause."""


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """A producer's outputs for a task are done."""

    task: TaskId
    owner: WorkerId | None
    """The worker that runs the task, which gets a message after the last mark; None: the sender
    of that mark runs it."""
    producers: tuple[str, ...]
    payload: bytes
    """What the worker that runs the task gets from this producer."""
    producer: str | None = None
    """The producer; None: the sender. Only the first mark of a producer counts."""
    held: tuple[str, ...] | None = None
    """If given, all these producers' outputs stay with the sender: their marks are set only if they
    complete the task, else the answer is `Refused`. Only for a task without an owner."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Tells a worker that an output is saved; doesn't start the worker."""

    task: TaskId
    """The task that made the output."""
    owner: WorkerId
    """The worker that gets the message."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class Completion:
    """What a worker reports in one round trip."""

    saves: Sequence[tuple[str, Blob]] = ()
    marks: Sequence[MarkRequest] = ()
    letters: Sequence[Letter] = ()
    """To the client."""
    executed: int = 0
    """How many tasks this start of the worker has executed so far."""
    announcements: Sequence[Announcement] = ()
    starts: Sequence[tuple[WorkerId, bytes]] = ()
    """Flexible workers to start, and their inputs. One that was started before isn't again."""
    finished: bool = False
    """The worker leaves for good, and the last letter says so. If a mark gives it a task, or is
    refused, it stays, and that letter isn't sent."""
    entering: bool = False
    """This start of the worker hasn't entered yet, and enters with this message."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right, and the duty, to start a worker."""

    worker: WorkerId
    epoch: int
    kind: str = field(default="", compare=False)
    """Its resources: those of the opening, or larger ones since."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender set the last mark of a task without an owner, and runs the task."""

    task: TaskId
    payloads: tuple[Buffer, ...]
    """The payloads of its marks, in the order of the producers; empty for outputs that the
    sender has."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Marks weren't set, because they don't complete the task."""

    task: TaskId
    producer: str


Answer = Claim | Ready | Refused


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What the lost starts of a worker have left."""

    saved: frozenset[str]
    """All saved outputs of the run."""
    marks: Mapping[str, Buffer]
    """The payloads of the marks set in the worker's name, by task."""
    handed_in: frozenset[str]
    """All tasks whose outputs the client has received, not only their locations."""
    started: frozenset[str]
    """All workers that were ever started."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a worker gets when it enters."""

    part: Buffer | None
    """The worker's part of the plan, or the common part."""
    executed: bytes | None
    """What it had executed when it parked."""
    given: Buffer | None = None
    """The inputs of a flexible worker."""
    leftovers: Leftovers | None = None
    """Given if the previous start was lost."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a run starts with."""

    started: Sequence[WorkerId]
    """Workers that the client starts itself, with epoch 1."""
    parts: Mapping[WorkerId, Blob] = field(default_factory=dict)
    outputs: Mapping[str, Blob] = field(default_factory=dict)
    """Large constants."""
    ttl: int = DEFAULT_TTL
    common: Blob | None = None
    """The part of all workers, in a run with flexible workers."""
    kinds: Mapping[WorkerId, str] = field(default_factory=dict)
    """The resources of each worker, for restarts."""
    kind: str = ""
    """The resources of all other workers."""
    lease: float = LEASE
    waiting: float = 0.0
    """Seconds that a start may wait for its platform, on top of its first lease."""
    restarts: int = RESTARTS


class Store(Protocol):
    """Durable mailboxes, idempotent marks, saved outputs; safe to use from several threads."""

    @property
    def url(self) -> str:
        """The URL by which workers reach it."""
        ...

    def clock(self, run: RunId, sent: float | None = None) -> Clock:
        """Return a clock that never jumps, and tells the same time in all processes of a run.

        This takes round trips only at first, and when the time may have become wrong.

        Args:
            run: The run.
            sent: When a message was sent that has just arrived, if any; it checks the clock.
        """
        ...

    def open(self, run: RunId, opening: Opening) -> None:
        """Start a run."""
        ...

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker; only the first invocation with an epoch may enter.

        Args:
            run: The run.
            worker: The worker.
            epoch: The start's epoch.
            part: Whether to return the worker's part.
        """
        ...

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver; return workers to start and tasks that the caller runs."""
        ...

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        ...

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Received]:
        """Return the messages after the one with id `after`; wait up to `timeout` seconds for one.

        If this process closes the run meanwhile, there is none.
        """
        ...

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """Wake this process's thread that waits in `receive` for a mailbox.

        If there is none, the next call doesn't wait.
        """
        ...

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after the one with id `read`; return whether it may."""
        ...

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, whatever waits, with a claim to start the worker again."""
        ...

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Return saved outputs; None for a missing one."""
        ...

    def supervise(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew the leases of starts that are alive; return the workers to restart.

        A worker that was lost too often isn't restarted: the client gets a message.
        """
        ...

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker during a transfer; never raises.

        Args:
            run: The run.
            worker: The worker.
            epoch: The start's epoch; of one that was replaced only the bytes count.
            nbytes: The bytes transferred since the last call.
        """
        ...

    def moved(self, run: RunId) -> int:
        """Return the bytes that long transfers have moved so far, as far as known."""
        ...

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that has ended; None after too many of the same cause.

        Args:
            run: The run.
            worker: The worker.
            epoch: The epoch of the start that ended.
            cause: Why it ended.
            kind: Its resources from now on, if they change.
        """
        ...

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the running workers to leave, and let none start.

        Returns:
            The workers that have entered: they may have outputs to save before they leave.
        """
        ...

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started, except flexible ones that are done.

        Args:
            run: A run that was stopped, or whose client is gone.
            opening: What it resumes with; `started` is ignored.
            forgotten: Whether outputs outside the store are lost, so that flexible workers that are
                done may have to repeat them.

        Returns:
            The workers to start, and the id of the client's last message so far.
        """
        ...

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """Return the marks of tasks with owners: each task, and the producer."""
        ...

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker beside the running one; None if it has two already.

        The first to finish ends the other.
        """
        ...

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Return the server that holds an output of so many bytes; empty if there is only one."""
        ...

    def progress(self, run: RunId) -> int:
        """Return how many tasks have been executed, as far as known; 0 after the run has ended."""
        ...

    def expire(self, run: RunId, seconds: float) -> None:
        """Delete a run after so many seconds, unless it is resumed."""
        ...

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete all its data."""
        ...

    def disconnect(self) -> None:
        """Close the connections."""
        ...
