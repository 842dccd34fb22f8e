"""`MemoryStore`: a store within one process: a lock, a clock and waiting around `RunModel`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.clock import RealClock
from shoal.errors import RunOver
from shoal.storage.base import Answer, Claim, Completion, Entry, Opening
from shoal.storage.codec import Buffer
from shoal.storage.letters import Letter, Received
from shoal.testing.run_model import RunModel
from shoal.types import RunId, WorkerId


class MemoryStore:
    """A store that lives and dies with its process."""

    url = "memory://"

    def __init__(self) -> None:
        self._runs: dict[RunId, RunModel] = {}
        self._changed = threading.Condition()
        self._waiting: Counter[tuple[RunId, str]] = Counter()
        self._hung_up: set[tuple[RunId, str]] = set()

    @contextmanager
    def _locked(self, run: RunId) -> Iterator[tuple[RunModel, float]]:
        """Lock the store; the run and the time."""
        with self._changed:
            model, now = self._open_run(run), time.monotonic()
            if model is None:
                raise RunOver(f"Run {run} is over.")
            yield model, now
            self._changed.notify_all()

    def _open_run(self, run: RunId) -> RunModel | None:
        model = self._runs.get(run)
        return None if model is None or model.expired(time.monotonic()) else model

    def clock(self, run: RunId, sent: float | None = None) -> RealClock:
        """Return the process's clock."""
        return RealClock()

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        with self._changed:
            self._runs[run] = RunModel(run, opening, time.monotonic())

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        with self._locked(run) as (model, now):
            return model.enter(worker, epoch, now, part=part)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver."""
        with self._locked(run) as (model, now):
            return model.complete(worker, epoch, completion, now)

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        with self._locked(run) as (model, _):
            model.post(letter)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Received]:
        """Return the messages behind `after`; wait for one up to `timeout` seconds."""
        key = (run, mailbox)
        with self._locked(run) as (model, _):

            def awaited() -> bool:
                over = self._runs.get(run) is not model
                return over or key in self._hung_up or bool(model.letters(mailbox, after))

            self._waiting[key] += 1
            try:
                self._changed.wait_for(awaited, timeout)
            finally:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key]
                    self._hung_up.discard(key)
            return model.letters(mailbox, after) if self._runs.get(run) is model else []

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End the waiting for a mailbox, including one that is about to begin."""
        with self._changed:
            self._hung_up.add((run, mailbox))
            self._changed.notify_all()

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        with self._locked(run) as (model, _):
            return model.park(worker, epoch, read, executed)

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with the right to start the worker again."""
        with self._locked(run) as (model, now):
            return model.hand_over(worker, epoch, executed, now)

    def supervise(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of workers that are lost."""
        with self._locked(run) as (model, now):
            return model.supervise(alive, now)

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker that is in the middle of a transfer."""
        with self._changed:
            model = self._open_run(run)
            if model is not None:
                model.beat(worker, epoch, nbytes, time.monotonic())

    def moved(self, run: RunId) -> int:
        """Return the bytes that have moved in long transfers."""
        with self._changed:
            model = self._open_run(run)
            return 0 if model is None else model.moved

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        with self._locked(run) as (model, now):
            return model.restart(worker, epoch, cause, kind, now)

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        with self._locked(run) as (model, now):
            return model.twin(worker, now)

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the workers that are at work to leave; return those that have entered."""
        with self._locked(run) as (model, _):
            return model.stop()

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started."""
        with self._locked(run) as (model, now):
            return model.resume(opening, now, forgotten=forgotten)

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Return saved outputs."""
        with self._locked(run) as (model, _):
            return [*model.fetch(names)]

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """Return the marks of owned tasks."""
        with self._locked(run) as (model, _):
            return model.marked()

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Return the empty name: there is no other server."""
        return ""

    def progress(self, run: RunId) -> int:
        """Return how many tasks have been executed."""
        with self._changed:
            model = self._open_run(run)
            return 0 if model is None else model.progress()

    def expire(self, run: RunId, seconds: float) -> None:
        """Delete a run after so many seconds."""
        with self._changed:
            model = self._open_run(run)
            if model is not None:
                model.expire(seconds, time.monotonic())

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete it."""
        with self._changed:
            self._runs.pop(run, None)
            self._hung_up = {key for key in self._hung_up if key[0] != run}
            self._changed.notify_all()

    def disconnect(self) -> None:
        """Do nothing: there is no connection."""
