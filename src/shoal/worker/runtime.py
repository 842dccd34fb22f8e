"""`WorkerRuntime`: drives the worker machine in real time.

1. A slot is a thread that runs tasks. After each it tells the machine itself and takes the next
   one, so that a tiny task costs no hand-over between threads.
2. What leaves the worker goes through the `Courier`. A slot sees to it before it goes on, for
   while it computes no other thread gets far; after a short task it lets the courier's thread do
   it, which takes what several tasks have left in one go.
3. Messages come in by a thread that blocks on the mailbox. A worker that waits for nobody has one
   only if it is at work for a while: it might be told to stop.
4. The machine is only touched under the lock; user code and I/O never run under it.
5. A task that exceeds its timeout is given up together with its thread, and the process isn't
   used again.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from shoal.clock import RealClock
from shoal.errors import NotPicklable, RunOver, TaskTimeout
from shoal.execution.effects import (
    Abort,
    Announce,
    Effect,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Invoke,
    Leave,
    Mark,
    Park,
    Save,
    SetTimer,
    WarmUp,
)
from shoal.execution.events import (
    Announced,
    Arrived,
    Event,
    Executed,
    Failed,
    MailCame,
    Started,
    Stopped,
    TimerFired,
    Unsaved,
)
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.platform.base import Invocation, Platform
from shoal.storage.base import Entry, Letter, Store
from shoal.storage.codec import Blob, blob_nbytes, encode, estimated_nbytes, quick_nbytes
from shoal.storage.keys import signed_output
from shoal.storage.shared import SharedFolder
from shoal.types import TaskId
from shoal.worker.cache import TaskCache
from shoal.worker.checking import InputCheck
from shoal.worker.courier import Courier
from shoal.worker.failure import described_failure
from shoal.worker.package import Unpacked
from shoal.worker.pulse import alive
from shoal.worker.recorder import EXECUTE, HIT, LOAD, MISS, Recorder
from shoal.worker.recovery import recovered

_RECEIVE_SECONDS = 10.0
_LISTEN_SECONDS = 0.3
"""Seconds after which a worker that waits for nobody begins to read its mailbox."""
_LAST_WORDS = 0.1
"""Seconds that slots have to notice that the worker is done."""
_SHORT = 0.002
"""Seconds: after a task that took less, the slot goes on with the next at once."""
_GRACE = 2.0
"""Seconds after which a task whose timeout could not be told to its worker ends the process."""


class Running(Protocol):
    """Where the numbers of running tasks are noted, for whoever finds the worker dead."""

    def set(self, slot: int, number: int) -> None:
        """A task begins."""
        ...

    def clear(self, slot: int) -> None:
        """Nothing runs in the slot."""
        ...


@dataclass(slots=True)
class _Try:
    """One execution of a task that has a timeout."""

    task: TaskId
    until: float
    """When it is given up, on the monotonic clock."""
    given_up: bool = False


class _GivenUp(Exception):
    """This thread's task has been given up, and the thread with it."""


class WorkerRuntime:
    """One start of a worker."""

    def __init__(
        self,
        invocation: Invocation,
        unpacked: Unpacked,
        entry: Entry | None,
        store: Store,
        platform: Platform,
        running: Running,
        *,
        start: str = "cold",
    ) -> None:
        """Begin a start; without an entry it enters with what it first tells the store."""
        self._invocation = invocation
        self._unpacked = unpacked
        self._store = store
        self._running = running
        self._entry = entry or Entry(None, None)
        self._key = bytes.fromhex(invocation.key)
        self._clock = RealClock()
        self._part = part = unpacked.part
        self._numbers = unpacked.numbers
        self.recorder = Recorder(part.worker, self._numbers)
        self._start = start
        self._machine: FlexibleMachine | WorkerMachine = (
            FlexibleMachine(part, unpacked.upstream) if part.flexible else WorkerMachine(part)
        )
        self._values: dict[TaskId, Any] = {}
        self._blobs: dict[TaskId, Blob] = {}
        """Outputs that were pickled to learn their size."""
        self._failures: dict[TaskId, tuple[bytes, bytes]] = {}
        self.executed = 0
        """How many tasks this start has executed."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._todo: deque[TaskId] = deque()
        self._slots = 0
        self._idle = 0
        """Slots that wait for a task."""
        self._slot_count = 0
        self._used = time.process_time if part.resources.slots == 1 else time.thread_time
        """CPU seconds; a library's own threads count where tasks don't share the process."""
        self._tries: dict[int, _Try] = {}
        self._alarming = False
        """The process is the worker's own, and may be ended."""
        self._abandoned = 0
        self._leaving = False
        """The store has been asked to let us go: messages wait for its answer."""
        self._refused = False
        """It didn't, because of a message that is still to be read."""
        self._over = False
        self._mail: threading.Thread | None = None
        self._stopping = False
        """The run is to end before it is done."""
        self._broken: BaseException | None = None
        self._read = ""
        """The last message that the machine was told of."""
        self._check = InputCheck(unpacked) if invocation.check_inputs else None
        self._call = unpacked.run if self._check is None else self._check.run
        self._most_slots = part.resources.slots if self._check is None else 1
        self._cache = TaskCache(invocation.cache_place, unpacked, invocation.latency)
        shared = SharedFolder(invocation.shared) if invocation.shared else None
        self._shared = shared
        self._courier = Courier(
            invocation,
            part,
            store,
            platform,
            shared,
            self,
            self._entry.given,
            entered=entry is not None,
        )

    def run(self) -> bool:
        """Do everything there is to do; whether this process can run another worker."""
        try:
            for event in self._beginning():
                self._tell(event)
            self.recorder.started(self._start, self._invocation.sent, self._clock.now())
            if self._part.waits:
                self._listen()
            else:
                self._courier.after(_LISTEN_SECONDS, self._listen)
            self._courier.start()
            self._run_slots()
            self._courier.stop()
            self._courier.settle()
        except RunOver as error:
            self.give_up(error)
        finally:
            self._stop()
            self._courier.stop()
            self._cache.close()
            if self._mail is not None:
                self._store.hang_up(self._invocation.run, self._part.worker)
                self._mail.join()
        with self._lock:
            self._changed.wait_for(lambda: not self._slots, _LAST_WORDS)
        if self._broken is not None and not isinstance(self._broken, RunOver):
            raise self._broken
        return not self._abandoned and not self._slots

    def _listen(self) -> None:
        """Begin to read the mailbox."""
        with self._lock:
            if not self._over:
                self._mail = threading.Thread(target=self._receive, name="shoal-mail", daemon=True)
                self._mail.start()

    def _beginning(self) -> list[Event]:
        part, entry = self._part, self._entry
        found = None
        if entry.leftovers is not None:
            found, self._values = recovered(entry.leftovers, part, self._shared, self._key)
        if not part.flexible:
            numbers = frozenset(json.loads(bytes(entry.executed))) if entry.executed else ()
            executed = [task for task, number in self._numbers.items() if number in numbers]
            return [Started(tuple(executed), found)]
        self._values = self._courier.inputs()
        first = Arrived(TaskId(part.worker), tuple(self._values))
        return [first] if found is None else [Started((), found), first]

    def _run_slots(self) -> None:
        """Run tasks in this thread; in another one where a timeout may have to give it up."""
        limited = self._unpacked.limited
        with self._lock:
            if limited and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                self._alarming = True
            wanted = min(self._most_slots, max(1, len(self._todo)))
            for _ in range(wanted if limited else wanted - 1):
                self._add_slot()
            if limited:
                self._changed.wait_for(lambda: self._over)
                self._tries.clear()
                self._set_alarm()
                return
            self._slots += 1
        self._slot(0)

    def _add_slot(self) -> None:
        """One more thread for tasks; the lock is held."""
        self._slots += 1
        self._slot_count += 1
        threading.Thread(
            target=self._slot, args=(self._slot_count,), name="shoal-slot", daemon=True
        ).start()

    def _slot(self, slot: int) -> None:
        try:
            task, since = self._next_task(), self._clock.now()
            while task is not None:
                task, since = self._run_task(task, slot, since)
                if task is None:
                    self._running.clear(slot)
                    task, since = self._next_task(), self._clock.now()
        except _GivenUp:
            return
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self.give_up(error)
        with self._lock:
            self._slots -= 1
            self._changed.notify_all()

    def _next_task(self) -> TaskId | None:
        """Wait for a task; before that, see that nobody waits for what is done."""
        while True:
            worked = self._courier.work()
            with self._lock:
                if not worked and not self._todo and not self._over:
                    self._idle += 1
                    self._changed.wait_for(lambda: self._todo or self._over)
                    self._idle -= 1
                if self._over:
                    return None
                if self._todo:
                    return self._todo.popleft()

    def _run_task(self, task: TaskId, slot: int, start: float) -> tuple[TaskId | None, float]:
        """Run a task, tell the machine, and return what to run next, if anything, since when.

        A task's time is all that its slot spends on it: measuring its output, too.
        """
        number, now, used = self._numbers[task], self._clock.now, self._used
        self._running.set(slot, number)
        limit = self._unpacked.calls[task][5]
        attempt, kind = None, EXECUTE
        value, nbytes, failure, final = None, 0, None, False
        cpu = used()
        try:
            if self._unpacked.load(task):  # importing the user's module isn't the task's time
                self.recorder.rows.append((LOAD, number, start, now(), 0.0, 0))
                start, cpu = now(), used()
            looked_up = self._cache.look_up(task, self._values)
            if looked_up is not None and looked_up.hit:
                kind, value = HIT, looked_up.value
            else:
                if looked_up is not None:
                    self.recorder.rows.append((MISS, number, start, now(), 0.0, 0))
                    start, cpu = now(), used()
                if limit is not None:
                    attempt = self._watch(task, slot, limit)
                value = self._call(task, self._values)
                if looked_up is not None:
                    self._cache.keep(task, looked_up, value)
            nbytes = self._measure(task, value)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            failure = described_failure(error, task, self._unpacked, self._key)
            final = not self._unpacked.worth_another(task, error)
        end, cpu = now(), used() - cpu
        if self._check is not None:
            spent = self._check.spent()
            start, cpu = start + spent, max(0.0, cpu - spent)
        with self._lock:
            if attempt is not None:
                self._conclude(attempt, slot)
            self.recorder.rows.append((kind, number, start, end, cpu, nbytes))
            if failure is None:
                self._values[task] = value
                self.executed += task not in self._part.copies
                effects = self._handle(Executed(task, nbytes), end)
            else:
                self._failures[task] = failure
                effects = self._handle(Failed(task, final), end)
            following = self._perform(effects, taking=True)
        if following is not None and self._courier.pending:
            if end - start < _SHORT:
                self._courier.wake()
            else:
                self._courier.work()
                end = now()
        return following, end

    def _watch(self, task: TaskId, slot: int, limit: float) -> _Try:
        attempt = _Try(task, time.monotonic() + limit)
        with self._lock:
            self._tries[slot] = attempt
            self._set_alarm()
        self._courier.after(limit, lambda: self._time_out(attempt, slot, limit))
        return attempt

    def _conclude(self, attempt: _Try, slot: int) -> None:
        if attempt.given_up:
            self._abandoned -= 1
            raise _GivenUp
        self._tries.pop(slot, None)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have the system end the process for a late task that lets no other thread run."""
        if self._alarming:
            late = min((attempt.until for attempt in self._tries.values()), default=None)
            seconds = 0.0 if late is None else max(0.001, late + _GRACE - time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _time_out(self, attempt: _Try, slot: int, limit: float) -> None:
        """Give up a try that took too long; another thread takes its slot."""
        error = TaskTimeout(attempt.task, self._part.worker, f"it took longer than {limit:g} s")
        failure = described_failure(error, attempt.task, self._unpacked, self._key)
        with self._lock:
            if self._tries.get(slot) is not attempt or self._over:
                return
            del self._tries[slot]
            self._set_alarm()
            attempt.given_up = True
            self._abandoned += 1
            self._slots -= 1
            self._running.clear(slot)
            self._failures[attempt.task] = failure
            self._add_slot()
            self._perform(self._handle(Failed(attempt.task), self._clock.now()))

    def _measure(self, task: TaskId, value: Any) -> int:
        """The size of an output; it is pickled right away if it may have to travel."""
        if not self._part.travels(task):
            return estimated_nbytes(value)
        nbytes = quick_nbytes(value)
        if nbytes is not None:
            return nbytes
        blob = self._encoded(task, value)
        self._blobs[task] = blob
        return blob_nbytes(blob)

    def blob(self, task: TaskId) -> Blob:
        """An own output as it is saved."""
        with self._lock:
            blob = self._blobs.pop(task, None)
            value = self._values.get(task)
        return blob or self._encoded(task, value)

    def unsaved(self, task: TaskId, error: NotPicklable) -> None:
        """An own output can't be pickled."""
        self._failures[task] = described_failure(error, task, self._unpacked, self._key)
        self._tell(Unsaved(task))

    def failure(self, task: TaskId, error: BaseException) -> Letter:
        """What to tell the client of a task that can't be run."""
        return Letter("failed", task, described_failure(error, task, self._unpacked, self._key))

    def _encoded(self, task: TaskId, value: Any) -> Blob:
        what = f"the output of task {task!r}"
        return encode(value, self._key, signed_output(task), what=what)

    def tell(self, event: Event) -> None:
        """Tell the machine what happened, from a thread that sees to the orders afterwards."""
        self._tell(event)

    def _tell(self, event: Event) -> None:
        with self._lock:
            if not self._over:
                self._perform(self._handle(event, self._clock.now()))

    def _handle(self, event: Event, now: float) -> list[Effect]:
        """The machine's time is that since the run's start."""
        return self._machine.handle(event, now - self._invocation.started)

    def keep(self, outputs: dict[TaskId, Any]) -> None:
        """Outputs of others came in."""
        with self._lock:
            self._values.update(outputs)

    def parked(self, *, left: bool) -> None:
        """Whether the store let us go; if it didn't, a message is there and told first."""
        with self._lock:
            self._leaving = False
            self._refused = not left
            self._over = self._over or left
            self._changed.notify_all()

    def give_up(self, error: BaseException) -> None:
        """Something that isn't the user's fault went wrong: stop."""
        with self._lock:
            if self._broken is None:
                self._broken = error
        self._courier.drop()
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._over = True
            self._changed.notify_all()

    def _perform(self, effects: list[Effect], *, taking: bool = False) -> TaskId | None:
        """Carry effects out or pass them on; the lock is held. A slot takes the first task."""
        taken: TaskId | None = None
        for effect in effects:
            if type(effect) is Execute:
                if taking and taken is None:
                    taken = effect.task
                else:
                    self._hand_to_slot(effect.task)
            elif type(effect) is Forget:
                for output in effect.outputs:
                    self._values.pop(output, None)
                    self._blobs.pop(output, None)
            else:
                self._pass_on(effect)
        return taken

    def _hand_to_slot(self, task: TaskId) -> None:
        self._todo.append(task)
        if len(self._todo) <= self._idle:
            self._changed.notify_all()  # who waits isn't only slots
        elif 0 < self._slots < self._most_slots:
            self._add_slot()

    def _pass_on(self, effect: Effect) -> None:
        courier = self._courier
        match effect:
            case Fetch(outputs):
                courier.fetch(outputs)
            case Save(task):
                courier.save(task)
            case Mark() | Invoke() | Announce() | HandIn() | WarmUp():
                self._send(effect)
            case SetTimer(timer, seconds):
                courier.after(seconds, lambda: self._tell(TimerFired(timer)))
            case Park(executed, again):
                self._leaving = True
                numbers = [self._numbers[task] for task in executed]
                courier.park(json.dumps(numbers).encode(), self._read, again=again)
            case Abort(task):
                courier.post(Letter("failed", task, self._failures[task]))
                self._finish(done=False)
            case Leave():
                courier.leave()
            case Finish():
                self._finish(done=not self._stopping)
            case Execute() | Forget():
                raise AssertionError("carried out by _perform")
            case _:
                assert_never(effect)

    def _send(self, effect: Mark | Invoke | Announce | HandIn | WarmUp) -> None:
        courier = self._courier
        match effect:
            case Mark():
                courier.mark(effect, *self._inline(effect.inline))
            case Invoke(task, inline, many):
                courier.invoke(task, *self._inline(inline), many=many)
            case Announce(task, owner):
                courier.announce(task, owner)
            case HandIn(task, saved):
                courier.hand_in(task, self._values.get(task), self._blobs.get(task), saved=saved)
            case WarmUp(resources, count):
                courier.warm_up(resources, count)

    def _inline(self, outputs: tuple[TaskId, ...]) -> tuple[dict[TaskId, Any], dict[TaskId, Blob]]:
        """Outputs that are to travel along: those that aren't pickled, and those that are."""
        blobs, values = self._blobs, self._values
        pickled = {output: blobs[output] for output in outputs if output in blobs}
        return {o: values[o] for o in outputs if o not in blobs}, pickled

    def _finish(self, *, done: bool) -> None:
        self._courier.finish(done=done)
        self._over = True
        self._changed.notify_all()

    def _receive(self) -> None:
        """Read the mailbox until the worker is done."""
        run, me = self._invocation.run, self._part.worker
        try:
            while not self._over:
                with alive(self._store, self._invocation):
                    letters = self._store.receive(run, me, self._read, _RECEIVE_SECONDS)
                for letter in letters:
                    if not self._read_letter(letter):
                        return
                    self._courier.work()
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self.give_up(error)

    def _read_letter(self, letter: Letter) -> bool:
        """Tell the machine of a message; False if the worker is done."""
        if letter.kind == "stop":
            self._stopping = True
            self._tell(Stopped())
            self._courier.work()
            return False
        task, held = TaskId(letter.name), self._courier.opened(letter)
        event = Announced((task,)) if letter.kind == "saved" else Arrived(task, tuple(held))
        with self._lock:
            self._changed.wait_for(lambda: not self._leaving or self._over)
            if self._over:
                return False
            self._read = letter.id
            self._values.update(held)
            self._perform(self._handle(event, self._clock.now()))
            if self._refused:
                self._refused = False
                self._perform(self._handle(MailCame(), self._clock.now()))
        return True
