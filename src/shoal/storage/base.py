"""`Store`: what workers coordinate through. Every operation is one round trip, and atomic.

1. A run exists from `open` to `close`; after that the store refuses what is said of it (`RunOver`),
   so that nothing of a run can come back. Every key also has a time to live: that of the run.
2. A worker's start has an epoch. What an older epoch sends is refused.
3. Within one `complete`, outputs are saved before they are announced and tasks are marked.
4. Marks are idempotent: a set of those who have done their share, not a counter.
5. A mailbox keeps its messages until the run ends: reading takes nothing out.
6. A task without an owner goes to whoever sets its last mark: only the answer to that mark says so.
7. In a run with a common part the first start of any worker may enter: who it is becomes known
   then. Otherwise only a start that somebody has claimed may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.storage.codec import Blob, Buffer
from shoal.types import RunId, TaskId, WorkerId

DEFAULT_TTL = 24 * 3600
"""Seconds after which a run that nobody ended is forgotten."""


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
    """`ready` and `saved` to workers; `output`, `failed`, `lost` and `finished` to the client."""
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


@dataclass(frozen=True, slots=True)
class Claim:
    """The right, and the duty, to start a worker."""

    worker: WorkerId
    epoch: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A task without an owner whose last mark was the sender's: the task is the sender's now."""

    task: TaskId
    payloads: tuple[Buffer, ...]
    """Those of its marks, in the order of the producers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a worker finds when it begins."""

    part: Buffer | None
    """Its own, else the common one."""
    executed: bytes | None
    """What it left when it parked."""


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


class Store(Protocol):
    """Durable mailboxes, idempotent marks, saved outputs; safe to use from several threads."""

    @property
    def url(self) -> str:
        """Where workers find it."""
        ...

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        ...

    def enter(self, run: RunId, worker: WorkerId, epoch: int) -> Entry:
        """Begin a start of a worker; only the first to enter with an epoch may go on."""
        ...

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Claim | Ready]:
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

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs; None for what isn't there."""
        ...

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed, as far as is known; 0 of a run that is over."""
        ...

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        ...

    def disconnect(self) -> None:
        """Give up the connections."""
        ...
