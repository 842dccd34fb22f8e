"""`Run`: a workflow under way, seen from the client that waits for it.

The client does nothing for a run but start the workers that have something to do from the
beginning, and wait: for the sinks' outputs, for a failure, for the workers' timelines. Whatever
way a run ends, its workers are gone afterwards. If it succeeds, so is everything of it in the
store; else what is finished stays there, for who resumes it, unless that isn't wanted.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.attendance import Attendance
from shoal.clock import RealClock
from shoal.errors import (
    InputChanged,
    PlatformError,
    RunCancelled,
    RunLost,
    RunOver,
    RunStuck,
    RunTimeout,
    ShardLost,
    ShardUnavailable,
    ShoalError,
    StoreError,
    StoreRefused,
    UsageError,
)
from shoal.execution.plan import Plan
from shoal.execution.timeline import Moved, Timeline, decode_records, encode_record
from shoal.interrupts import interruptible
from shoal.launching import first_invocations, opening_of
from shoal.losses import loss_error
from shoal.planning.preview import Preview
from shoal.platform.base import (
    Invocation,
    LogLine,
    Platform,
)
from shoal.progress import Display, State, Status
from shoal.storage.base import Letter, Opening, Store
from shoal.storage.codec import Blob, Buffer, blob_nbytes, decode
from shoal.storage.keys import CLIENT, shared_part, signed_output
from shoal.storage.shared import SharedFolder, worthwhile
from shoal.system import this_host
from shoal.types import RunId, TaskId, WorkerId
from shoal.unfinished import Unfinished
from shoal.worker.failure import failure_error
from shoal.worker.package import Packed, pack

_GLANCE = 0.1
"""Seconds between two looks at the progress, while somebody watches."""
_STUCK = 4
"""Leases without a message, a task that is executing or executed, or a byte that moves."""
_STUCK_SECONDS = 15.0
"""The least that counts as stuck: a gateway may have to be started anew, and then its sandboxes."""
_LAST_SAVES = 1.0
"""Seconds that workers of a run that ends early have to save what they have in memory."""
_LAST_WORDS = 2.0
"""Seconds that workers have to hand in their timelines after the result is there."""


_PARTLY = (ShardLost, ShardUnavailable)
"""Errors of a store that still has all but some outputs of a run."""


class _LetGo(Exception):
    """Nobody here waits for the run any more; it goes on."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run needs of the session it belongs to."""

    store: Store
    platform: Platform
    like: Invocation
    """What all invocations have in common."""
    restarts: int
    """How often a worker is started anew that ended in the same task, or vanished."""
    file: Callable[[Run, str], None]
    """Keeps an ended run; called with its outcome."""
    straggling: float | None
    """How many times as long as predicted a task may take until it is started a second time."""
    keep: float
    """Seconds for which what is finished of a run that isn't is kept."""
    ended: Callable[[Run], None]
    """Is told of an ended run before anybody else is."""
    retired: Callable[[], SharedFolder | None]
    """Gives the folder of an ended run, if there is one to be taken over."""
    retire: Callable[[SharedFolder], None]
    """Takes the folder of an ended run."""
    watch: Callable[[Run], None]
    """Has a detached run watched, if it isn't."""


class Run:
    """A handle on a run: `result()`, `status()`, `cancel()`, `timeline`, `logs()`."""

    def __init__(
        self,
        plan: Plan,
        preview: Preview,
        environment: Environment,
        display: Display | None,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.id = RunId(time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3))
        self._key = secrets.token_bytes(32)
        self.tries = 1
        """How often it has been begun."""
        self.started = 0.0
        """Seconds since the epoch."""
        if unfinished is not None:
            self.id, self._key, self.tries = unfinished.id, unfinished.key, unfinished.tries
            self.started = unfinished.started
        self.plan = plan
        self.preview = preview
        """What the plan is predicted to do."""
        self.workflow = plan.workflow
        self.name = plan.workflow.name
        self.makespan = 0.0
        self.records: list[bytes] = []
        """The workers' timelines, as they were handed in."""
        self._environment = environment
        self._display = display
        self._clock = RealClock()
        self.shared: SharedFolder | None = None
        """Where its large outputs are, if its workers are on this machine."""
        self._begun = unfinished is not None
        """The store may have something of it that is worth keeping."""
        self._detached = False
        """It goes on without this client."""
        self.undeleted = False
        """It has ended, and the store would not delete what is left of it."""
        self._forgotten = False
        """Large outputs of an earlier try went with its client."""
        self._state: State = "running"
        self._outputs: dict[TaskId, Any] = {}
        self._unfinished: set[WorkerId] = set(plan.workers)
        """Workers known of that haven't handed in their timelines."""
        self._finished: set[WorkerId] = set()
        self._error: BaseException | None = None
        self.needs: dict[str, int] = {}
        """Memory that tasks have turned out to need, in MB, by their keys."""
        self.arrived: Callable[[TaskId, Any], None] | None = None
        """Is told of each sink's output as soon as it is there."""
        self._cancelled = threading.Event()
        self._let_go = threading.Event()
        self._ended = threading.Event()
        self._read = ""
        self.remade: frozenset[str] = frozenset()
        """What is made anew when the run is resumed: large constants, the part of all workers."""
        self._stale = ""
        """The last message of an earlier try."""
        self._shards: dict[str, Moved] = {}
        """What the client itself has moved."""

    @property
    def unfinished(self) -> Unfinished:
        """What it takes to go on with the run."""
        return Unfinished(self.id, self._key, self.plan, self.tries, self.started)

    def start(self) -> None:
        """Send the plan off and start the first workers."""
        self.started = self._clock.now()
        self._begin(self._opened)

    def detach(self, data_folder: Path) -> None:
        """Start a run that goes on without this client; who attaches to it finds a file of it."""
        self.started = self._clock.now()
        self._detached = True
        self.unfinished.write(data_folder)
        self._begin(self._opened, alone=True)

    def resume(self) -> None:
        """Go on with a run that has failed or was left alone."""
        self.started = self._clock.now()
        self.tries += 1
        self._begin(self._resumed)

    def attach(self) -> None:
        """Wait for a run that somebody else has started."""
        self._detached = True
        self.started = self.started or self._clock.now()
        self._begin(lambda packed, first: (), alone=True)

    def _begin(
        self,
        begin: Callable[[Packed, list[Invocation]], Sequence[Invocation]],
        *,
        alone: bool = False,
    ) -> None:
        """Have the first workers started.

        Args:
            begin: Tells the store of it; whom to start.
            alone: Whether the run goes on without this client, and its shared memory.
        """
        packed = pack(self.plan, self._key)
        self.remade = frozenset((*packed.constants, shared_part(packed.name)))
        environment = self._environment
        if not alone and self.shared is None and environment.platform.host == this_host():
            self._forgotten = self.tries > 1
            self.shared = SharedFolder.create(self.id, environment.retired())
        try:
            like = replace(
                environment.like,
                run=self.id,
                key=self._key.hex(),
                shared=self.shared.path if self.shared else None,
                detached=int(self._detached),
                sent=self._clock.now(),
                started=self.started,
            )
            first = first_invocations(packed, like)
            self._attendance = Attendance(
                self.plan, self.preview, environment.store, environment.platform, first[0]
            )
            invocations = begin(packed, first)
            self._unfinished.update([job.worker for job in invocations])
            if invocations:
                environment.platform.invoke(invocations)
            self._begun = True
        except BaseException:
            self._clean_up()
            environment.ended(self)
            self._ended.set()
            raise

    def _opened(self, packed: Packed, first: list[Invocation]) -> Sequence[Invocation]:
        self._environment.store.open(self.id, self._opening(packed))
        return first

    def _resumed(self, packed: Packed, first: list[Invocation]) -> Sequence[Invocation]:
        try:
            opening = self._opening(packed)
            store, forgotten = self._environment.store, self._forgotten
            claims, self._stale = store.resume(self.id, opening, forgotten=forgotten)
        except RunOver as error:
            self._begun = False  # nor is there anything to keep
            raise UsageError(
                f"Run {self.id} can't be resumed: the store has nothing of it any more. Run the "
                "workflow again without resume=."
            ) from error
        return self._attendance.starts(claims)

    def _kept(self, constants: Mapping[str, Blob]) -> dict[str, Blob]:
        """Those of the large constants that the store is to have."""
        kept: dict[str, Blob] = {}
        for name, blob in constants.items():
            if not (self.shared and worthwhile(blob) and self.shared.write(name, blob)):
                kept[name] = blob
                self._count(name, Moved(saved=blob_nbytes(blob)))
        return kept

    def _opening(self, packed: Packed) -> Opening:
        if self.shared and packed.common is not None:
            self.shared.write(shared_part(packed.name), packed.common)
        environment = self._environment
        lease, restarts = environment.like.lease, environment.restarts
        return opening_of(packed, self._kept(packed.constants), lease, restarts)

    def watch(self) -> None:
        """Wait until the run has ended, and see to it that nothing is left of it.

        One that is let go stays as it is.
        """
        outcome = "cancelled"
        try:
            self._await_outputs()
            with contextlib.suppress(StoreError):  # the result is there
                self._await_timelines()
            self.makespan = self.makespan or self._clock.now() - self.started
            self._state, outcome = "done", "done"
            if self._attendance.twins:
                self._stop_workers()  # those that came second
        except _LetGo:
            outcome = ""
            self._error = UsageError(
                f"run {self.id} goes on, but the session that waited for it has been closed. "
                f"`shoal attach {self.id}` waits for it."
            )
        except BaseException as error:
            if isinstance(error, RunOver):  # nobody but us ends it
                error = RunLost(self.id).with_traceback(error.__traceback__)
            self._error = error
            self._state = "cancelled" if isinstance(error, RunCancelled) else "failed"
            outcome = str(error).partition("\n")[0] or type(error).__name__
            self.makespan = self._clock.now() - self.started
            self._let_workers_save()
            self._stop_workers()
            if not isinstance(error, ShoalError):
                raise
        finally:
            try:
                self._conclude(outcome)
            finally:
                self._ended.set()

    def _conclude(self, outcome: str) -> None:
        """Clean up after the run and keep a record of it, unless it goes on."""
        if self._display is not None:
            self._display.close()
        if not outcome:
            return
        if self._shards:
            self.records.append(encode_record(WorkerId(CLIENT), (), self._shards))
        if self._detached:
            self.makespan = self._lasted()
        self._clean_up()
        self._environment.file(self, outcome)
        self._environment.ended(self)

    def _lasted(self) -> float:
        """How long a run took that may have ended before anybody looked."""
        with contextlib.suppress(StoreError):
            ends = [span.end for span in self.timeline.spans if span.kind != "leave"]
            return max(ends, default=self.makespan)
        return self.makespan

    def _await_outputs(self) -> None:
        missing = set(self.workflow.sinks)
        tended = heard = looked = time.monotonic()
        while missing:
            if self._cancelled.is_set():
                raise RunCancelled(self.id)
            if self._let_go.is_set():
                raise _LetGo
            letters = self._receive(_GLANCE)
            self._take_all(letters, missing)
            if self._display is not None and missing:
                self._display.show(self._environment.store.progress(self.id))
            if time.monotonic() - tended > self._environment.like.lease / 3:
                tended = time.monotonic()
                self._attendance.tend()
            now = time.monotonic()
            if self._environment.straggling is not None and self.preview.learnt:
                self._attendance.start_twice(self._environment.straggling, now)
            if letters:
                heard = looked = now
            elif now - looked > self._environment.like.lease:
                looked = now
                if self._attendance.goes_on():
                    heard = now
                elif now - heard > max(_STUCK * self._environment.like.lease, _STUCK_SECONDS):
                    self._environment.store.post(self.id, Letter("stuck", ""))  # unless it can't
                    raise RunStuck(self.id, now - heard, self._attendance.awaited(missing))
        self.makespan = self._clock.now() - self.started

    def _receive(self, timeout: float) -> list[Letter]:
        return self._environment.store.receive(self.id, CLIENT, self._read, timeout)

    def _take_all(self, letters: Sequence[Letter], missing: set[TaskId]) -> None:
        """Take letters one by one; what ends the run is still to be read, with all behind it."""
        for letter in letters:
            self._take(letter, missing)
            self._read = letter.id

    def _outdated(self, letter: Letter) -> bool:
        """Whether a letter, which is taken now, is of an earlier try."""
        stale = bool(self._stale)
        if letter.id == self._stale:
            self._stale = ""
        return stale

    def _take(self, letter: Letter, missing: set[TaskId]) -> None:
        task = TaskId(letter.name)
        stale = self._outdated(letter)
        if stale and letter.kind != "output":
            return  # of an earlier try
        if letter.kind == "output":
            if task in missing and not (stale and self._data(task, letter) is None):
                missing.discard(task)
                self._arrive(task, self._output(task, letter))
        elif letter.kind == "failed":
            not_run = self.workflow.after(task)
            raise failure_error(task, letter.parts, not_run, self._key, run=self.id)
        elif letter.kind == "lost":
            if not self._attendance.retried(letter):
                raise loss_error(letter, self.workflow, self.id)
        elif letter.kind == "grown":
            self._grow(json.loads(bytes(letter.parts[0])))
        elif letter.kind in ("finished", "parked"):
            self.records.append(bytes(letter.parts[0]))
            if letter.kind == "finished":
                self._finished.add(WorkerId(letter.name))
                for invoked in letter.parts[1:]:
                    self._unfinished.update(json.loads(bytes(invoked)))
                self._unfinished -= self._finished

    def _arrive(self, task: TaskId, value: Any) -> None:
        self._outputs[task] = value
        if self.arrived is not None:
            self.arrived(task, value)

    def _grow(self, facts: dict[str, Any]) -> None:
        """Remember how much memory the tasks of a worker that ran out of it have got."""
        calls = list(self.workflow.calls.values())
        for key in {calls[number].task.key for number in facts["running"]}:
            self.needs[key] = max(facts["memory_mb"], self.needs.get(key, 0))

    def _output(self, task: TaskId, letter: Letter) -> Any:
        data = self._data(task, letter)
        if data is None:
            raise StoreError(f"The store has lost the output of task {task!r}.")
        return decode(data, self._key, signed_output(task))

    def _data(self, task: TaskId, letter: Letter) -> Buffer | None:
        """A sink's output: in the letter, or where that says that it is."""
        if letter.parts:
            return letter.parts[0]
        data: Buffer | None = self.shared.read(task) if self.shared else None
        if data is None:
            data = self._environment.store.fetch(self.id, [task])[0]
            if data is not None:
                self._count(task, Moved(fetched=memoryview(data).nbytes))
        return data

    def _count(self, output: str, moved: Moved) -> None:
        """Remember what went to or came from a server, if there are several."""
        store = self._environment.store
        place = store.place(self.id, output, moved.saved or moved.fetched)
        if place:
            self._shards[place] = self._shards.get(place, Moved()).and_then(moved)

    def _await_timelines(self) -> None:
        deadline = time.monotonic() + _LAST_WORDS
        nothing: set[TaskId] = set()
        while self._unfinished and time.monotonic() < deadline:
            letters = self._receive(_GLANCE)
            self._take_all([letter for letter in letters if letter.kind != "lost"], nothing)
            self._read = letters[-1].id if letters else self._read

    def _let_workers_save(self) -> None:
        """Have workers save what they have in memory only, if the run may be resumed."""
        if not self.resumable:
            return
        try:
            told = set(self._environment.store.stop(self.id))
            until, waits = time.monotonic() + _LAST_SAVES, True
            while waits:
                waits = bool(told) and time.monotonic() < until
                for letter in self._receive(_GLANCE if waits else 0.0):
                    self._read = letter.id
                    if self._outdated(letter) or letter.kind not in ("finished", "lost"):
                        continue
                    told.discard(WorkerId(letter.name))
                    if letter.kind == "finished":
                        self.records.append(bytes(letter.parts[0]))
        except StoreError:
            return  # it is told of by what happens next

    def tell(self, note: str) -> None:
        """Add a note to the error that the run has ended with."""
        if self._error is not None:
            self._error.add_note(note)

    def give_up(self, error: BaseException) -> None:
        """Stop the run because of an error, which then says what is kept of the run."""
        self.cancel()
        if error is not self._error:
            for note in getattr(self._error, "__notes__", ()):
                error.add_note(note)

    @property
    def resumable(self) -> bool:
        """Whether it isn't finished, and what is finished of it is kept."""
        lost = isinstance(self._error, StoreError) and not isinstance(self._error, _PARTLY)
        spoilt = isinstance(self._error, InputChanged)  # a finished output is no longer what it was
        kept = self._begun and not lost and not spoilt
        return kept and self._state != "done" and self._environment.keep > 0

    def _stop_workers(self) -> None:
        try:
            self._environment.platform.cancel(self.id)
        except PlatformError as error:
            self.tell(f"Its workers could not be stopped: {error}")

    def _clean_up(self) -> None:
        if not self.resumable:
            self.forget()
            return
        with contextlib.suppress(StoreError):  # then it stays for as long as any run
            self._environment.store.expire(self.id, self._environment.keep)

    def forget(self) -> None:
        """Delete everything of the run, wherever it is."""
        self.delete()
        if self.shared is not None:
            self._environment.retire(self.shared)

    def delete(self) -> None:
        """Delete everything of the run in the store, if that is possible."""
        try:
            self._environment.store.close(self.id, list(self.plan.workers))
            self.undeleted = False
        except StoreError as error:
            self.undeleted = isinstance(error, StoreRefused)  # one that is away isn't awaited again
            again = " That is tried again when the session is closed." if self.undeleted else ""
            self.tell(f"What it left could not be deleted: {error}{again}")

    def result(self, timeout: float | None = None) -> Any:
        """The output's value, or a list of values if several outputs were asked for.

        Args:
            timeout: Seconds to wait; after them `RunTimeout` is raised, and the run goes on.
        """
        values = self.values(timeout)
        return values[0] if len(values) == 1 else values

    def values(self, timeout: float | None = None) -> list[Any]:
        """The values of all outputs, in the order asked for."""
        if not self._has_ended(timeout):
            assert timeout is not None
            raise RunTimeout(self.id, timeout, str(self.status()))
        if self._error is not None:
            raise self._error
        return [self._outputs[sink] for sink in self.workflow.sinks]

    def status(self) -> Status:
        """How far the run is."""
        tasks = len(self.workflow)
        if self._state == "done":
            return Status("done", tasks, tasks)
        executed = 0 if self._ended.is_set() else self._environment.store.progress(self.id)
        return Status(self._state, executed, tasks)

    def cancel(self) -> None:
        """Stop the run; its workers are gone when this returns."""
        self._cancelled.set()
        self._environment.store.hang_up(self.id, CLIENT)
        self._has_ended()

    def leave(self) -> None:
        """Wait for the run no more: one that is detached goes on, any other is cancelled."""
        if not self._detached:
            self.cancel()
            return
        self._let_go.set()
        self._environment.store.hang_up(self.id, CLIENT)
        self._ended.wait()

    def _has_ended(self, timeout: float | None = None) -> bool:
        """Wait for the end; a detached run is watched from now on, for nobody else here does."""
        if self._detached and not self._ended.is_set():
            self._environment.watch(self)
        with interruptible():
            return self._ended.wait(timeout)

    def report(self, width: int = 100, color: bool = False) -> str:
        """Plan and reality side by side: what was predicted, what happened, on one chart."""
        from shoal.planning.report import report

        self._has_ended()
        timeline = self.timeline
        makespan = self.predicted(timeline) if self._state == "done" else None
        return report(self.preview, timeline, makespan=makespan, width=width, color=color)

    @property
    def timeline(self) -> Timeline:
        """What ran where and when, as far as it has been handed in."""
        return decode_records(self.records, list(self.workflow.calls), self.started, self.makespan)

    def logs(self) -> Sequence[LogLine]:
        """What the run's tasks have printed."""
        return self._environment.platform.logs(self.id)

    def predicted(self, timeline: Timeline) -> float | None:
        """The makespan that is recorded as predicted for a run that ended well.

        Who attaches to a run or resumes it hasn't seen its beginning.
        """
        if self._detached or self.tries > 1:
            return None
        if not self.preview.learnt or timeline.of_kind("hit"):
            return None
        return self.preview.predicted(max(0.05, self.makespan / 10))

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.name}: {self._state}>"
