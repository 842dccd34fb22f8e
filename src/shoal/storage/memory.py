"""`MemoryStore`: the store's rules within one process, for tests and simulation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.errors import RunOver
from shoal.storage.base import (
    Answer,
    Claim,
    Completion,
    Entry,
    Leftovers,
    Letter,
    MarkRequest,
    Opening,
    Ready,
    Refused,
)
from shoal.storage.codec import Blob, Buffer
from shoal.storage.keys import CLIENT
from shoal.types import RunId, TaskId, WorkerId


@dataclass
class _Run:
    parts: dict[WorkerId, bytes]
    outputs: dict[str, bytes]
    common: bytes | None
    kinds: dict[WorkerId, str]
    kind: str
    lease: float
    restarts: int
    epochs: dict[WorkerId, int] = field(default_factory=dict)
    claimed: set[WorkerId] = field(default_factory=set)
    entered: set[tuple[WorkerId, int]] = field(default_factory=set)
    executed: dict[WorkerId, bytes] = field(default_factory=dict)
    marks: dict[TaskId, dict[str, bytes]] = field(default_factory=dict)
    last: dict[TaskId, str] = field(default_factory=dict)
    """Of tasks without an owner: whose mark was the last."""
    held: dict[TaskId, set[str]] = field(default_factory=dict)
    """Of the same tasks: whose outputs only the worker has that set the last mark."""
    mailboxes: dict[str, list[Letter]] = field(default_factory=dict)
    given: dict[WorkerId, bytes] = field(default_factory=dict)
    parked_at: dict[WorkerId, int] = field(default_factory=dict)
    leases: dict[WorkerId, float] = field(default_factory=dict)
    """Until when workers count as alive."""
    losses: Counter[str] = field(default_factory=Counter)
    done: set[WorkerId] = field(default_factory=set)
    twins: dict[WorkerId, int] = field(default_factory=dict)
    """The older epochs of workers that have two starts."""
    progress: dict[tuple[WorkerId, int], int] = field(default_factory=dict)
    moved: int = 0


def _flat(blob: Blob) -> bytes:
    return b"".join(blob)


def _stays(answers: Sequence[Answer]) -> bool:
    """Whether a worker has something to do that has said that it has nothing."""
    return any(isinstance(answer, Ready | Refused) for answer in answers)


class MemoryStore:
    """A store that lives and dies with its process."""

    url = "memory://"

    def __init__(self) -> None:
        self._runs: dict[RunId, _Run] = {}
        self._changed = threading.Condition()
        self._waiting: Counter[tuple[RunId, str]] = Counter()
        self._hung_up: set[tuple[RunId, str]] = set()

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        with self._changed:
            state = _Run(
                {worker: _flat(blob) for worker, blob in opening.parts.items()},
                {name: _flat(blob) for name, blob in opening.outputs.items()},
                None if opening.common is None else _flat(opening.common),
                dict(opening.kinds),
                opening.kind,
                opening.lease,
                opening.restarts,
            )
            state.leases.update(dict.fromkeys(opening.started, time.monotonic() + opening.lease))
            state.claimed.update(opening.started)
            state.epochs.update(dict.fromkeys(opening.started, 1))
            self._runs[run] = state

    def _run(self, run: RunId, worker: WorkerId | None = None, epoch: int = 0) -> _Run:
        state = self._runs.get(run)
        if state is None:
            raise RunOver(f"Run {run} is over.")
        valid = (state.epochs.get(worker), state.twins.get(worker)) if worker else (epoch,)
        if epoch not in valid:
            raise RunOver(f"Start {epoch} of worker {worker} in run {run} is over.")
        return state

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        with self._changed:
            state = self._run(run)
            if state.common is not None and epoch == 1:
                state.epochs.setdefault(worker, 1)
            self._run(run, worker, epoch)
            self._enter(state, run, worker, epoch)
            state.leases[worker] = time.monotonic() + state.lease
            clean = epoch == 1 or state.parked_at.get(worker) == epoch - 1
            return Entry(
                state.parts.get(worker, state.common) if part else None,
                state.executed.get(worker),
                state.given.get(worker),
                None if clean else self._leftovers(state, worker),
            )

    def _enter(self, state: _Run, run: RunId, worker: WorkerId, epoch: int) -> None:
        if (worker, epoch) in state.entered:
            raise RunOver(f"Start {epoch} of worker {worker} in run {run} is under way.")
        state.entered.add((worker, epoch))

    def _leftovers(self, state: _Run, worker: WorkerId) -> Leftovers:
        handed_in = [each for each in state.mailboxes.get(CLIENT, []) if each.kind == "output"]
        return Leftovers(
            frozenset(state.outputs),
            {task: done[worker] for task, done in state.marks.items() if worker in done},
            frozenset(letter.name for letter in handed_in if letter.parts),
            frozenset(state.epochs),
        )

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver."""
        answers: list[Answer] = []
        with self._changed:
            state = self._run(run, worker, epoch)
            if completion.entering:
                self._enter(state, run, worker, epoch)
            for name, blob in completion.saves:
                state.outputs[name] = _flat(blob)
            for found in completion.announcements:
                self._append(state, found.owner, Letter("saved", found.task, (found.payload,)))
            for mark in completion.marks:
                if mark.owner is None:
                    answers.extend(self._mark_free(state, mark))
                    continue
                payloads = self._mark(state, mark, worker)
                if payloads is None:
                    continue
                self._append(state, mark.owner, Letter("ready", mark.task, payloads))
                if mark.owner not in state.claimed:
                    state.claimed.add(mark.owner)
                    answers.append(self._claim(state, mark.owner))
            leaves = completion.finished and not _stays(answers)
            withheld = completion.finished and not leaves
            for letter in completion.letters[: -1 if withheld else None]:
                self._append(state, CLIENT, letter)
            for started, given in completion.starts:
                if started not in state.epochs:
                    state.given[started] = given
                    answers.append(self._claim(state, started))
            state.progress[worker, epoch] = completion.executed
            state.leases[worker] = time.monotonic() + state.lease
            if leaves:
                self._let_go(state, worker, epoch)
            self._changed.notify_all()
        return answers

    def _let_go(self, state: _Run, worker: WorkerId, epoch: int) -> None:
        del state.leases[worker]
        state.done.add(worker)
        if state.twins.pop(worker, None) is not None:
            state.epochs[worker] = epoch

    def _mark(self, state: _Run, mark: MarkRequest, worker: WorkerId) -> tuple[bytes, ...] | None:
        """The payloads of all marks if that made the task ready."""
        done = state.marks.setdefault(mark.task, {})
        producer = mark.producer or worker
        if producer in done:
            return None
        done[producer] = mark.payload
        if len(done) < len(mark.producers):
            return None
        return tuple(done[producer] for producer in mark.producers)

    def _mark_free(self, state: _Run, mark: MarkRequest) -> list[Answer]:
        """The answer to a mark without an owner, if it has one."""
        task, producer = mark.task, str(mark.producer)
        done, held = state.marks.setdefault(task, {}), state.held.setdefault(task, set())
        if mark.held is None:
            new = producer not in done
            if new or producer in held:
                done[producer] = mark.payload
                held.discard(producer)
            if new and len(done) == len(mark.producers):
                state.last[task] = producer
            if state.last.get(task) == producer and held:
                state.last[task] = min(held)
            claimed = state.last.get(task) == producer
        else:
            fresh = [each for each in mark.held if each not in done]
            if fresh and len(done) + len(fresh) == len(mark.producers):
                done.update(dict.fromkeys(fresh, b""))
                held.update(fresh)
                state.last[task] = producer
            claimed = state.last.get(task) in mark.held and held.issubset(mark.held)
            if not claimed:
                return [Refused(task, producer)]
        return [Ready(task, tuple(done[each] for each in mark.producers))] if claimed else []

    def _claim(self, state: _Run, worker: WorkerId) -> Claim:
        state.epochs[worker] = state.epochs.get(worker, 0) + 1
        state.leases[worker] = time.monotonic() + state.lease
        return Claim(worker, state.epochs[worker], state.kinds.get(worker, state.kind))

    def _append(self, state: _Run, mailbox: str, letter: Letter) -> None:
        letters = state.mailboxes.setdefault(mailbox, [])
        letters.append(replace(letter, id=str(len(letters) + 1)))

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        with self._changed:
            self._append(self._run(run), CLIENT, letter)
            self._changed.notify_all()

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind `after`."""
        position, place = int(after or 0), (run, mailbox)
        with self._changed:
            state = self._run(run)

            def awaited() -> bool:
                come = len(state.mailboxes.get(mailbox, ())) > position
                return come or place in self._hung_up or self._runs.get(run) is not state

            self._waiting[place] += 1
            try:
                self._changed.wait_for(awaited, timeout)
            finally:
                self._waiting[place] -= 1
                if not self._waiting[place]:
                    del self._waiting[place]
                    self._hung_up.discard(place)
            over = self._runs.get(run) is not state
            letters = [] if over else state.mailboxes.get(mailbox, [])[position:]
            return [letter for letter in letters if letter.kind]

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever waits for that mailbox, or is about to."""
        with self._changed:
            self._hung_up.add((run, mailbox))
            self._changed.notify_all()

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        with self._changed:
            state = self._run(run, worker, epoch)
            if len(state.mailboxes.get(worker, [])) > int(read or 0):
                return False
            twin = state.twins.pop(worker, None)
            if twin is not None:
                state.epochs[worker] = state.epochs[worker] if epoch == twin else twin
                return True
            state.claimed.discard(worker)
            state.executed[worker] = executed
            state.parked_at[worker] = epoch
            state.leases.pop(worker, None)
            return True

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with the right to start the worker again."""
        with self._changed:
            state = self._run(run, worker, epoch)
            state.executed[worker] = executed
            state.parked_at[worker] = epoch
            return self._claim(state, worker)

    def tend(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of those whose lease is over."""
        claims: list[Claim] = []
        with self._changed:
            state, now = self._run(run), time.monotonic()
            for worker, epoch in alive:
                if state.epochs.get(worker) == epoch and worker in state.leases:
                    state.leases[worker] = now + state.lease
            for worker in [w for w, until in state.leases.items() if until < now]:
                state.losses[worker] += 1
                if state.losses[worker] > state.restarts:
                    del state.leases[worker]
                    vanished = b'{"reason":"vanished","running":[]}'
                    self._append(state, CLIENT, Letter("lost", worker, (vanished,)))
                    self._changed.notify_all()
                else:
                    claims.append(self._claim(state, worker))
        return claims

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker that is in the middle of a transfer."""
        with self._changed:
            state = self._runs.get(run)
            if state is None:
                return
            state.moved += nbytes
            valid = (state.epochs.get(worker), state.twins.get(worker))
            if epoch in valid and worker in state.leases:
                state.leases[worker] = time.monotonic() + state.lease

    def moved(self, run: RunId) -> int:
        """The bytes that have moved in transfers which have taken long."""
        with self._changed:
            state = self._runs.get(run)
            return state.moved if state else 0

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        with self._changed:
            state = self._run(run, worker, epoch)
            state.losses[cause] += 1
            if state.losses[cause] > state.restarts:
                state.leases.pop(worker, None)
                return None
            if kind:
                state.kinds[worker] = kind
            return self._claim(state, worker)

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        with self._changed:
            state = self._run(run)
            if worker in state.twins or worker not in state.leases:
                return None
            state.twins[worker] = state.epochs[worker]
            return self._claim(state, worker)

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the workers that are at work to leave."""
        with self._changed:
            state = self._run(run)
            told = list(state.leases)
            for worker in told:
                self._append(state, worker, Letter("stop", worker))
            state.leases.clear()
            self._changed.notify_all()
            return [worker for worker in told if (worker, state.epochs[worker]) in state.entered]

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started."""
        with self._changed:
            state = self._run(run)
            state.parts = {worker: _flat(blob) for worker, blob in opening.parts.items()}
            state.common = None if opening.common is None else _flat(opening.common)
            state.outputs.update({name: _flat(blob) for name, blob in opening.outputs.items()})
            state.kinds, state.kind = dict(opening.kinds), opening.kind
            state.lease, state.restarts = opening.lease, opening.restarts
            state.losses.clear()
            done = state.done if state.common is not None and not forgotten else ()
            claims = []
            for worker in [worker for worker in state.epochs if worker not in done]:
                state.claimed.add(worker)
                state.parked_at.pop(worker, None)
                mail = state.mailboxes.get(worker, [])
                mail[:] = [
                    replace(letter, kind="") if letter.kind == "stop" else letter for letter in mail
                ]
                claims.append(self._claim(state, worker))
            return claims, str(len(state.mailboxes.get(CLIENT, [])))

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs."""
        with self._changed:
            state = self._run(run)
            return [state.outputs.get(name) for name in names]

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """The marks that are set."""
        with self._changed:
            marks = self._run(run).marks
            return frozenset((task, producer) for task, done in marks.items() for producer in done)

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Nowhere else: there is no server."""
        return ""

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed."""
        with self._changed:
            state = self._runs.get(run)
            return sum(state.progress.values()) if state else 0

    def expire(self, run: RunId, seconds: float) -> None:
        """Nothing: it ends with its process."""

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        with self._changed:
            self._runs.pop(run, None)
            self._hung_up = {place for place in self._hung_up if place[0] != run}
            self._changed.notify_all()

    def disconnect(self) -> None:
        """Nothing to give up."""
