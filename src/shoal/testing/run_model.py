"""`RunModel`: one run as a store keeps it, as plain data: no I/O, no lock, and time is an argument.

It follows the rules of `storage/base.py`, and puts together the models in `execution/`: marks and
starts (`store_model.py`), mailboxes (`mail_model.py`), leases and losses (`lease_model.py`).
Differential tests compare it with the scripts on a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.errors import RunOver
from shoal.execution.lease_model import Leases, Losses
from shoal.execution.mail_model import Mailbox
from shoal.execution.store_model import OwnedMarks, Starts, UnownedMarks
from shoal.storage.base import (
    Answer,
    Claim,
    Completion,
    Entry,
    Leftovers,
    MarkRequest,
    Opening,
    Ready,
    Refused,
)
from shoal.storage.keys import CLIENT
from shoal.storage.letters import (
    Letter,
    OutputReady,
    OutputSaved,
    Received,
    StopRequested,
    TaskReady,
    WorkerLost,
)
from shoal.types import Loss, LossReason, RunId, WorkerId

_ORDER = (Claim, Ready, Refused)


@dataclass(kw_only=True)
class _WorkerModel(Starts):
    kind: str | None = None
    executed: bytes | None = None
    """What it left when it parked."""
    given: bytes | None = None
    """What it is started with, if it is flexible."""
    counts: dict[int, int] = field(default_factory=dict)
    """How many tasks each start has executed."""


class RunModel:
    """A run from `open` to `close`."""

    def __init__(self, run: RunId, opening: Opening, now: float) -> None:
        """Open a run.

        Args:
            run: Its name, for errors.
            opening: What it begins with.
            now: The time, by the clock of all later operations.
        """
        self._name = run
        self._parts: dict[WorkerId, bytes] = {}
        self._common: bytes | None = None
        self._outputs: dict[str, bytes] = {}
        self._workers: dict[WorkerId, _WorkerModel] = {}
        self._leases = Leases()
        self._owned: OwnedMarks[bytes] = OwnedMarks()
        self._unowned: UnownedMarks[bytes] = UnownedMarks()
        self._mailboxes: dict[str, Mailbox[Letter]] = {}
        self.moved = 0
        """Bytes that `beat` has reported."""
        self._take_in(opening, now)
        for worker in opening.started:
            self._worker(worker).claim_for_task()
            self._leases.grant(worker)

    def _take_in(self, opening: Opening, now: float) -> None:
        self._parts.update({worker: b"".join(blob) for worker, blob in opening.parts.items()})
        if opening.common is not None:
            self._common = b"".join(opening.common)
        self._outputs.update({name: b"".join(blob) for name, blob in opening.outputs.items()})
        for worker, kind in opening.kinds.items():
            self._worker(worker).kind = kind
        self._kind, self._losses = opening.kind, Losses(opening.restarts)
        self._leases.lease, self._leases.waiting = opening.lease, opening.waiting
        self._expires = now + opening.ttl

    def _worker(self, worker: WorkerId) -> _WorkerModel:
        return self._workers.setdefault(worker, _WorkerModel())

    def _accepted(self, worker: WorkerId, epoch: int) -> _WorkerModel:
        """The record of a worker, provided that the store still listens to this start of it."""
        found = self._workers.get(worker)
        if found is None or not epoch or not found.accepts(epoch):
            raise RunOver(f"Start {epoch} of worker {worker} in run {self._name} is over.")
        return found

    def _enter(self, worker: WorkerId, epoch: int) -> None:
        if not self._workers[worker].enter(epoch):
            raise RunOver(f"Start {epoch} of worker {worker} in run {self._name} is under way.")

    def _granted(self, worker: WorkerId, now: float) -> Claim:
        """The claim of a worker's latest start, whose lease begins."""
        self._leases.begin(worker, now)
        found = self._workers[worker]
        return Claim(worker, found.epoch, self._kind if found.kind is None else found.kind)

    def _next(self, worker: WorkerId, now: float) -> Claim:
        self._workers[worker].claim()
        return self._granted(worker, now)

    def enter(self, worker: WorkerId, epoch: int, now: float, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        if self._common is not None and epoch == 1 and not self._worker(worker).epoch:
            self._workers[worker].claim()
        found = self._accepted(worker, epoch)
        self._enter(worker, epoch)
        self._leases.renew(worker, now)
        return Entry(
            self._parts.get(worker, self._common) if part else None,
            found.executed,
            found.given,
            None if found.clean(epoch) else self._leftovers(worker),
        )

    def _leftovers(self, worker: WorkerId) -> Leftovers:
        handed_in = [e.letter for e in self.letters(CLIENT) if isinstance(e.letter, OutputReady)]
        return Leftovers(
            frozenset(self._outputs),
            dict(self._owned.of(worker).items()),
            frozenset(letter.task for letter in handed_in if letter.output is not None),
            frozenset(name for name, found in self._workers.items() if found.epoch),
        )

    def complete(
        self, worker: WorkerId, epoch: int, completion: Completion, now: float
    ) -> list[Answer]:
        """Save, mark, deliver; claims come first in the answer, then tasks, then refusals."""
        found = self._accepted(worker, epoch)
        if completion.entering:
            self._enter(worker, epoch)
        self._outputs.update({name: b"".join(blob) for name, blob in completion.saves})
        for each in completion.announcements:
            self._deliver(each.owner, OutputSaved(each.task, each.payload))
        answers = [answer for mark in completion.marks for answer in self._mark(mark, worker, now)]
        stays = any(isinstance(answer, Ready | Refused) for answer in answers)
        withheld = completion.finished and stays
        for letter in completion.letters[: -1 if withheld else None]:
            self.post(letter)
        for started, given in completion.starts:
            if not self._worker(started).epoch:
                self._workers[started].given = given
                answers.append(self._next(started, now))
        found.counts[epoch] = completion.executed
        self._leases.renew(worker, now)
        if completion.finished and not stays:
            self._leases.end(worker)
            found.finish(epoch)
        return sorted(answers, key=lambda answer: _ORDER.index(type(answer)))

    def _mark(self, mark: MarkRequest, worker: WorkerId, now: float) -> list[Answer]:
        producer = mark.producer or worker
        if mark.owner is None:
            return self._mark_unowned(mark, producer)
        payloads = self._owned.add(mark.task, mark.producers, producer, mark.payload)
        if payloads is None:
            return []
        parts = tuple(payloads[each] for each in mark.producers)
        self._deliver(mark.owner, TaskReady(mark.task, parts))
        started = not self._worker(mark.owner).claim_for_task()
        return [] if started else [self._granted(mark.owner, now)]

    def _mark_unowned(self, mark: MarkRequest, producer: str) -> list[Answer]:
        task, producers, held = mark.task, mark.producers, mark.held
        if held is None:
            payloads = self._unowned.add(task, producers, producer, mark.payload)
        else:
            payloads = self._unowned.add_held(task, producers, producer, held)
        if payloads is not None:
            return [Ready(task, tuple(payloads[each] or b"" for each in producers))]
        return [] if held is None else [Refused(task, producer)]

    def _deliver(self, mailbox: str, letter: Letter) -> None:
        self._mailboxes.setdefault(mailbox, Mailbox()).append(letter)

    def post(self, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        self._deliver(CLIENT, letter)

    def letters(self, mailbox: str, read: str = "") -> list[Received]:
        """Return the messages in a mailbox behind the one with id `read`."""
        found = self._mailboxes.get(mailbox)
        if found is None:
            return []
        return [Received(str(number), letter) for number, letter in found.after(int(read or 0))]

    def park(self, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        found = self._accepted(worker, epoch)
        if self.letters(worker, read):
            return False
        if found.park(epoch):
            found.executed = executed
            self._leases.end(worker)
        return True

    def hand_over(self, worker: WorkerId, epoch: int, executed: bytes, now: float) -> Claim:
        """Leave, with the right to start the worker again."""
        found = self._worker(worker)
        if not found.handed_over(epoch):
            self._accepted(worker, epoch)
        found.hand_over(epoch)
        found.executed = executed
        return self._granted(worker, now)

    def supervise(self, alive: Sequence[tuple[WorkerId, int]], now: float) -> list[Claim]:
        """Renew the leases of starts that are alive, and claim the workers that are lost."""
        for worker, epoch in alive:
            if worker in self._leases and self._workers[worker].epoch == epoch:
                self._leases.renew(worker, now)
        return [claim for worker in self._leases.expired(now) for claim in self._lost(worker, now)]

    def _lost(self, worker: WorkerId, now: float) -> list[Claim]:
        if self._losses.add(worker):
            return [self._next(worker, now)]
        self._leases.end(worker)
        self.post(WorkerLost(worker, Loss(LossReason.VANISHED)))
        return []

    def beat(self, worker: WorkerId, epoch: int, nbytes: int, now: float) -> None:
        """Renew the lease of a worker that is in the middle of a transfer."""
        self.moved += nbytes
        if worker in self._leases and self._workers[worker].accepts(epoch):
            self._leases.renew(worker, now)

    def restart(
        self, worker: WorkerId, epoch: int, cause: str, kind: str, now: float
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        found = self._accepted(worker, epoch)
        if not self._losses.add(cause):
            self._leases.end(worker)
            return None
        found.kind = kind or found.kind
        return self._next(worker, now)

    def twin(self, worker: WorkerId, now: float) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        if worker in self._leases and self._workers[worker].add_twin():
            return self._granted(worker, now)
        return None

    def stop(self) -> list[WorkerId]:
        """Tell the workers that are at work to leave; return those that have entered."""
        told = self._leases.end_all()
        for worker in told:
            self._deliver(worker, StopRequested(worker))
        return [each for each in told if self._workers[each].epoch in self._workers[each].entered]

    def resume(
        self, opening: Opening, now: float, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started, or of flexible ones those not done.

        Returns:
            The claims, and the id of the last message that the client was sent before.
        """
        self._take_in(opening, now)
        flexible = self._common is not None and not forgotten
        claims: list[Claim] = []
        for worker, found in self._workers.items():
            if found.epoch and not (flexible and found.done):
                found.claimed, found.parked_at = True, None
                if worker in self._mailboxes:
                    self._mailboxes[worker].delete(StopRequested)
                claims.append(self._next(worker, now))
        sent = self._mailboxes[CLIENT].last if CLIENT in self._mailboxes else 0
        return claims, str(sent or "")

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """Return saved outputs; None for those that aren't saved."""
        return [self._outputs.get(name) for name in names]

    def marked(self) -> frozenset[tuple[str, str]]:
        """Return the marks of owned tasks: tasks and producers."""
        return frozenset(self._owned)

    def progress(self) -> int:
        """Return how many tasks have been executed."""
        return sum(count for found in self._workers.values() for count in found.counts.values())

    def expire(self, seconds: float, now: float) -> None:
        """End the run after so many seconds, unless it is resumed."""
        self._expires = now + seconds

    def expired(self, now: float) -> bool:
        """Whether the time of the run has passed."""
        return now > self._expires
