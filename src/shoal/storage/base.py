"""`Store`: what workers coordinate through. Every operation is one round trip, and atomic.

1. A run exists from `open` to `close`; after that the store refuses what is said of it (`RunOver`),
   so that nothing of a run can come back. Every key also has a time to live: that of the run.
2. A worker's start has an epoch. What an older epoch sends is refused, unless it has a twin; so is
   what a repetition of the start sends that wasn't the first to enter. Every operation may be
   repeated by who isn't sure that it was carried out: the answer is the same.
3. Within one `complete`, outputs are saved before they are announced and tasks are marked.
4. Marks are idempotent: a set of those who have done their share, not a counter.
5. A mailbox keeps its messages until the run ends: reading takes nothing out.
6. A task without an owner goes to whoever sets its last mark: only the answer to that mark says so.
   Whoever repeats that mark is told so again. Marks of outputs that stay with their worker are set
   only if they are the last; should that worker be lost, the task is given again only to who has
   all of those outputs, or marks the last of them that wasn't marked with its output.
7. In a run with a common part the first start of any worker may enter: who it is becomes known
   then. Otherwise only a start that somebody has claimed may.
8. A start that is claimed has a lease, renewed by all that it sends, while it sends it, and by
   whoever sees that it is alive, until it parks or finishes. Whoever tends the run starts those
   anew whose lease is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.storage.codec import Blob, Buffer
from shoal.types import RunId, TaskId, WorkerId

DEFAULT_TTL = 24 * 3600
"""Seconds after which a run that nobody ended is forgotten."""
LEASE = 15.0
"""Seconds without a sign of life after which a worker counts as lost."""
RESTARTS = 3
"""How often one thing may be the end of a worker that is started again."""


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """A worker has done its share for a task."""

    task: TaskId
    owner: WorkerId | None
    """Is told when the last of the producers has marked; None: the sender of that mark is."""
    producers: tuple[str, ...]
    payload: bytes
    """What whoever runs the task is to get from this worker."""
    producer: str | None = None
    """Whose share it is; None: the sender's. The first mark of a share counts."""
    held: tuple[str, ...] | None = None
    """Not None: set the marks of all these producers, whose outputs stay with the sender, if the
    task is complete thereby; else none, and the answer is `Refused`. Only without an owner."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An output is saved of which a worker is told if it is there; it isn't started."""

    task: TaskId
    """Whose output it is."""
    owner: WorkerId
    """Who is told."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class Letter:
    """A message in a mailbox."""

    kind: str
    """`ready`, `saved` and `stop` to workers; `output`, `failed`, `lost`, `grown`, `parked` and
    `finished` to the client."""
    name: str
    """The task or worker it is about."""
    parts: tuple[Buffer, ...] = ()
    id: str = ""
    """Where it stands in its mailbox."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a worker tells the store in one round trip."""

    saves: Sequence[tuple[str, Blob]] = ()
    marks: Sequence[MarkRequest] = ()
    letters: Sequence[Letter] = ()
    """To the client."""
    executed: int = 0
    """How many tasks this start of the worker has executed so far."""
    announcements: Sequence[Announcement] = ()
    starts: Sequence[tuple[WorkerId, bytes]] = ()
    """Flexible workers to be started, and what they are given; who was already isn't again."""
    finished: bool = False
    """The worker leaves for good, and the last letter says so; unless it is given a task by one of
    the marks, or one is refused: then it stays, and that letter isn't sent."""
    entering: bool = False
    """This start of the worker hasn't entered, and does so with this."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right, and the duty, to start a worker."""

    worker: WorkerId
    epoch: int
    kind: str = field(default="", compare=False)
    """What it is to have, as the run was opened with, or as it has grown since."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A task without an owner whose last mark was the sender's: the task is the sender's now."""

    task: TaskId
    payloads: tuple[Buffer, ...]
    """Those of its marks, in the order of the producers; empty for outputs that the sender has."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Marks that were to be the last ones of a task aren't, and weren't set."""

    task: TaskId
    producer: str


Answer = Claim | Ready | Refused


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What the starts of a worker have left that were lost."""

    saved: frozenset[str]
    """Everything that is saved, by whomever."""
    marks: Mapping[str, Buffer]
    """The payloads of the marks set in its name, by task."""
    handed_in: frozenset[str]
    """All tasks whose outputs the client was given, not only told where they are."""
    started: frozenset[str]
    """All workers that were ever started."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a worker finds when it begins."""

    part: Buffer | None
    """Its own, else the common one."""
    executed: bytes | None
    """What it left when it parked."""
    given: Buffer | None = None
    """What it was to be started with, if it is flexible."""
    leftovers: Leftovers | None = None
    """If the start before this one was lost."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a run begins with."""

    started: Sequence[WorkerId]
    """Workers that the client starts itself, with epoch 1."""
    parts: Mapping[WorkerId, Blob] = field(default_factory=dict)
    outputs: Mapping[str, Blob] = field(default_factory=dict)
    """Large constants."""
    ttl: int = DEFAULT_TTL
    common: Blob | None = None
    """The part of all workers, in a run whose workers aren't known in advance."""
    kinds: Mapping[WorkerId, str] = field(default_factory=dict)
    """What workers are to have, for who starts them again."""
    kind: str = ""
    """What those have that aren't named."""
    lease: float = LEASE
    restarts: int = RESTARTS


class Store(Protocol):
    """Durable mailboxes, idempotent marks, saved outputs; safe to use from several threads."""

    @property
    def url(self) -> str:
        """Where workers find it."""
        ...

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        ...

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker; only the first to enter with an epoch may go on.

        Args:
            run: Its run.
            worker: Who begins.
            epoch: Which start of it.
            part: Whether it doesn't have its part already.
        """
        ...

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver; the answer says whom to start, and which tasks are the caller's."""
        ...

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        ...

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind the one with id `after`; waits for one up to `timeout` seconds.

        Who waits while the run is closed by this process gets none.
        """
        ...

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever of this process waits in `receive` for that mailbox.

        If nobody does, the next one to come doesn't wait.
        """
        ...

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after the one with id `read`."""
        ...

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, whatever waits, with the right to start the worker again."""
        ...

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs; None for what isn't there."""
        ...

    def tend(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew the leases of starts that are alive; the answer says whom to start anew.

        Whoever was lost too often isn't: the client gets a message that says so.
        """
        ...

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker that is in the middle of a transfer; never raises.

        Args:
            run: Its run.
            worker: Who moves bytes.
            epoch: Which start of it; of one that is over only the bytes count.
            nbytes: How many have moved since the last time.
        """
        ...

    def moved(self, run: RunId) -> int:
        """The bytes that have moved in transfers which have taken long, as far as is known."""
        ...

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end.

        Args:
            run: Its run.
            worker: Who ended.
            epoch: Which start of it.
            cause: What it is put down to; None is answered if that has happened too often.
            kind: What it is to have from now on.
        """
        ...

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the workers that are at work to leave, and let none start.

        Returns:
            Those that have begun: they may have something to save before they leave.
        """
        ...

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started, or of flexible ones those not done.

        Args:
            run: A run that was stopped, or that nobody looks after any more.
            opening: What it goes on with; `started` isn't looked at.
            forgotten: Whether outputs that weren't in the store are lost, so that flexible workers
                that are done may have to repeat them.

        Returns:
            Whom to start, and the last message that the client was sent before.
        """
        ...

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """The marks that are set: tasks, and whose marks they are; of owned tasks only."""
        ...

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work; None if it has two already.

        Whichever finishes first ends the other.
        """
        ...

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """The server that has an output of so many bytes; empty if there is only one."""
        ...

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed, as far as is known; 0 of a run that is over."""
        ...

    def expire(self, run: RunId, seconds: float) -> None:
        """Have everything of a run deleted after so many seconds, unless it is resumed."""
        ...

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        ...

    def disconnect(self) -> None:
        """Give up the connections."""
        ...
