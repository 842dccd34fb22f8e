"""`WorkerRuntime`: drives the machine of a worker in real time.

1. A slot is a thread that runs tasks. After each task it tells the machine and takes the next one,
   so a tiny task costs no switch between threads.
2. Everything that leaves the worker goes through the `Courier`. A slot lets it do its work before
   the next task, because no other thread gets far while a task computes. After a short task it
   leaves that to the courier's own thread, which handles the results of several tasks at once.
3. A thread blocks on the mailbox and reads messages. A worker that waits for no other worker starts
   this thread only after a while, for it might be told to stop.
4. The machine is only used under the lock. I/O never runs under it, and no code of users but
   reactions, which the machine asks.
5. A task that exceeds its timeout is given up together with its thread, and the process isn't
   reused.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, assert_never

from shoal.clock import Clock
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
from shoal.execution.plan import FlexiblePart, Part, PlannedPart
from shoal.execution.reacting import planned_machine
from shoal.platform.base import Platform
from shoal.platform.invocation import Invocation
from shoal.storage.base import Entry, Store
from shoal.storage.codec import Blob
from shoal.storage.letters import (
    Failure,
    Letter,
    OutputSaved,
    StopRequested,
    TaskFailed,
    TaskReady,
    WorkerLetter,
    misaddressed,
)
from shoal.storage.shared_memory import SharedFolder
from shoal.types import TaskId
from shoal.worker.caller import TaskCaller
from shoal.worker.courier import Courier
from shoal.worker.heartbeat import alive
from shoal.worker.messages import Messages
from shoal.worker.outputs import Outputs
from shoal.worker.package import Unpacked
from shoal.worker.recorder import Recorder
from shoal.worker.recovery import recovered
from shoal.worker.timeouts import Attempt, GivenUp, Timeouts

_RECEIVE_SECONDS = 10.0
_LISTEN_SECONDS = 0.3
"""Seconds after which a worker that waits for no other worker begins to read its mailbox."""
_LAST_WORDS = 0.1
"""Seconds that slots have to notice that the worker has ended."""


class Running(Protocol):
    """Notes the numbers of running tasks, so that they are known if the worker dies."""

    def set(self, slot: int, number: int) -> None:
        """Note that a task begins."""
        ...

    def clear(self, slot: int) -> None:
        """Note that nothing runs in a slot."""
        ...


class _LeaveState(Enum):
    """How a worker stands with the store about leaving."""

    STAYING = "it hasn't asked to leave"
    ASKING = "the store hasn't answered: messages wait for that"
    REFUSED = "it may not leave, because of a message that is still to be read"


@dataclass(slots=True)
class _Mail:
    """What a worker has read of its mailbox."""

    read: str = ""
    """The last message that the machine got."""
    leave: _LeaveState = _LeaveState.STAYING
    """Whether messages have to wait, because the worker may be about to leave."""
    stop: bool = False
    """Whether a message has told the worker to stop, because the run is to end early."""
    reader: threading.Thread | None = None
    """The thread that waits for messages, once there is one."""


@dataclass(slots=True)
class _Slots:
    """The threads that run tasks."""

    todo: deque[TaskId] = field(default_factory=deque)
    """Tasks that wait for a thread."""
    alive: int = 0
    """Those that run tasks or wait for one; threads of tasks that were given up don't count."""
    idle: int = 0
    """Those that wait for a task."""
    made: int = 0
    """All that were ever started: the number of the latest."""


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
        clock: Clock,
    ) -> None:
        """Prepare a start. Without an entry, it enters with its first message to the store."""
        self._invocation = invocation
        self._unpacked = unpacked
        self._part = part = unpacked.part
        self._entry = entry or Entry(None, None)
        self._store = store
        self._running = running
        self._now = clock.now
        self.recorder = Recorder(part.worker, unpacked.numbers, clock)
        context = invocation.context
        self._outputs = Outputs(part, context.key)
        self._caller = TaskCaller(context, unpacked, self._outputs, self.recorder)
        self._timeouts = Timeouts()
        self._failures: dict[TaskId, Failure] = {}
        """Why tasks failed the last time, or could not be saved."""
        self.executed = 0
        """How many tasks this start has executed."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._machine = _machine(part)
        self._slots = _Slots()
        self._mail = _Mail()
        self._over = False
        """The worker has ended, well or not: no event is handled any more."""
        self._broken: BaseException | None = None
        """Why the worker had to give up."""
        self._shared = SharedFolder(context.shared) if context.shared else None
        self._messages = Messages(part, context.key, self.recorder)
        entered = entry is not None
        self._courier = Courier(
            invocation, part, store, platform, self._shared, self, self._messages, entered=entered
        )
        self._background = self._courier.background

    def run(self, start: str, sent: float) -> bool:
        """Run the worker until it has finished; whether this process can run another one.

        Args:
            start: How the sandbox started: "cold" or "warm".
            sent: When this start was sent, by the store's clock.
        """
        try:
            for event in self._beginning():
                self.tell(event)
            self.recorder.started(start, sent, self._now())
            if isinstance(self._part, PlannedPart) and self._part.waits:
                self._listen()
            else:
                self._background.after(_LISTEN_SECONDS, self._listen)
            self._background.start()
            self._run_slots()
            self._background.stop()
            self._courier.settle()
        except RunOver as error:
            self.give_up(error)
        finally:
            self._stop()
            self._background.stop()
            self._caller.close()
            if self._mail.reader is not None:
                self._store.hang_up(self._invocation.run, self._part.worker)
                self._mail.reader.join()
        with self._lock:
            self._changed.wait_for(lambda: not self._slots.alive, _LAST_WORDS)
        if self._broken is not None and not isinstance(self._broken, RunOver):
            raise self._broken
        return not self._timeouts.abandoned and not self._slots.alive

    def _listen(self) -> None:
        """Start the thread that reads the mailbox."""
        with self._lock:
            if not self._over:
                reader = threading.Thread(target=self._receive, name="shoal-mail", daemon=True)
                self._mail.reader = reader
                reader.start()

    def _beginning(self) -> list[Event]:
        part, entry = self._part, self._entry
        found = None
        if entry.leftovers is not None:
            key = self._invocation.context.key
            found, values = recovered(entry.leftovers, part, self._shared, key)
            self._outputs.add(values)
        match part:
            case PlannedPart():
                numbers = frozenset(json.loads(bytes(entry.executed))) if entry.executed else ()
                known = self._unpacked.numbers.items()
                executed = [task for task, number in known if number in numbers]
                return [Started(tuple(executed), found)]
            case FlexiblePart():
                given = self._invocation.start.inputs
                inputs = self._messages.opened_inputs(entry.given if given is None else given)
                self._outputs.values = inputs
                first = Arrived(TaskId(part.worker), tuple(inputs))
                return [first] if found is None else [Started((), found), first]
            case _:
                assert_never(part)

    def _run_slots(self) -> None:
        """Run tasks in this thread, or in others if a timeout may have to give them up."""
        limited = bool(self._unpacked.calls.timeouts)
        with self._lock:
            if limited:
                self._timeouts.use_alarm()
            wanted = min(self._caller.slots, max(1, len(self._slots.todo)))
            for _ in range(wanted if limited else wanted - 1):
                self._add_slot()
            if limited:
                self._changed.wait_for(lambda: self._over)
                self._timeouts.clear()
                return
            self._slots.alive += 1
        self._slot(0)

    def _add_slot(self) -> None:
        """Start one more thread for tasks; the lock is held."""
        self._slots.alive += 1
        self._slots.made += 1
        number = self._slots.made
        threading.Thread(target=self._slot, args=(number,), name="shoal-slot", daemon=True).start()

    def _slot(self, slot: int) -> None:
        try:
            task, since = self._next_task(), self._now()
            while task is not None:
                task, since = self._run_task(task, slot, since)
                if task is None:
                    self._running.clear(slot)
                    task, since = self._next_task(), self._now()
        except GivenUp:
            return
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self.give_up(error)
        with self._lock:
            self._slots.alive -= 1
            self._changed.notify_all()

    def _next_task(self) -> TaskId | None:
        """Wait for a task, after sending what others wait for; None: the worker has ended."""
        while True:
            worked = self._courier.work()
            with self._lock:
                if not worked and not self._slots.todo and not self._over:
                    self._slots.idle += 1
                    self._changed.wait_for(lambda: self._slots.todo or self._over)
                    self._slots.idle -= 1
                if self._over:
                    return None
                if self._slots.todo:
                    return self._slots.todo.popleft()

    def _run_task(self, task: TaskId, slot: int, start: float) -> tuple[TaskId | None, float]:
        """Run a task, tell the machine, and return what to run next, if anything, since when."""
        number = self._unpacked.numbers[task]
        self._running.set(slot, number)
        seconds = self._unpacked.calls.timeouts.get(task)
        attempt: Attempt | None = None

        def watch() -> None:
            nonlocal attempt
            if seconds is not None:
                attempt = self._watch(task, slot, seconds)

        done = self._caller.call(task, start, watch)
        end = done.end
        with self._lock:
            if attempt is not None:
                self._timeouts.end(attempt)
            row = (done.kind, number, done.start, end, done.cpu, done.nbytes)
            self.recorder.rows.append(row)
            if done.failure is None:
                self._outputs.values[task] = done.value
                self.executed += task in self._part.upstream
                effects = self._handle(Executed(task, done.nbytes), end)
            else:
                self._failures[task] = done.failure
                effects = self._handle(Failed(task, done.final), end)
            following = self._perform(effects, taking=True)
        took = end - done.start
        if following is not None and self._courier.pending and self._courier.work(took):
            end = self._now()
        return following, end

    def _watch(self, task: TaskId, slot: int, seconds: float) -> Attempt:
        with self._lock:
            attempt = self._timeouts.begin(task, slot, seconds)
        self._background.after(seconds, lambda: self._time_out(attempt, seconds))
        return attempt

    def _time_out(self, attempt: Attempt, seconds: float) -> None:
        """Give up a task that took too long; another thread takes its slot."""
        task = attempt.task
        error = TaskTimeout(task, self._part.worker, f"it took longer than {seconds:g} s")
        failure = self._caller.failure(error, task)
        with self._lock:
            if self._over or not self._timeouts.give_up(attempt):
                return
            self._slots.alive -= 1
            self._running.clear(attempt.slot)
            self._failures[task] = failure
            self._add_slot()
            self._perform(self._handle(Failed(task), self._now()))

    def blob(self, task: TaskId) -> Blob:
        """The pickled form of an own output."""
        with self._lock:
            blob = self._outputs.take_blob(task)
            value = self._outputs.values.get(task)
        return blob or self._outputs.encoded(task, value)

    def unsaved(self, task: TaskId, error: NotPicklable) -> None:
        """Tell the machine that an own output can't be pickled."""
        self._failures[task] = self._caller.failure(error, task)
        self.tell(Unsaved(task))

    def failure(self, task: TaskId, error: BaseException) -> TaskFailed:
        """The message to the client about a task that can't be run."""
        return TaskFailed(task, self._caller.failure(error, task))

    def tell(self, event: Event) -> None:
        """Tell the machine what happened. The caller's thread lets the courier work afterwards."""
        with self._lock:
            if not self._over:
                self._perform(self._handle(event, self._now()))

    def _handle(self, event: Event, now: float) -> list[Effect]:
        """Pass an event to the machine, whose time counts from the run's start."""
        return self._machine.handle(event, now - self._invocation.context.started)

    def keep(self, outputs: dict[TaskId, Any]) -> None:
        """Hold outputs of other workers."""
        with self._lock:
            self._outputs.add(outputs)

    def parked(self, *, left: bool) -> None:
        """Note whether the store let the worker leave; if not, a message comes first."""
        with self._lock:
            self._mail.leave = _LeaveState.STAYING if left else _LeaveState.REFUSED
            self._over = self._over or left
            self._changed.notify_all()

    def give_up(self, error: BaseException) -> None:
        """Stop, because of an error that isn't the user's fault."""
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
                self._outputs.forget(effect.outputs)
            else:
                self._pass_on(effect)
        return taken

    def _hand_to_slot(self, task: TaskId) -> None:
        self._slots.todo.append(task)
        if len(self._slots.todo) <= self._slots.idle:
            self._changed.notify_all()  # not only slots wait for changes
        elif 0 < self._slots.alive < self._caller.slots:
            self._add_slot()

    def _pass_on(self, effect: Effect) -> None:
        courier = self._courier
        match effect:
            case Fetch() | Save() | Announce() | WarmUp() | Leave():
                courier.order(effect)
            case Mark() | Invoke():
                courier.order(effect, self._outputs.inline(effect.inline))
            case HandIn(task, saved):
                courier.order(effect, self._outputs.inline(() if saved else (task,)))
            case SetTimer(timer, seconds):
                self._background.after(seconds, lambda: self.tell(TimerFired(timer)))
            case Park(executed):
                self._mail.leave = _LeaveState.ASKING
                numbers = [self._unpacked.numbers[task] for task in executed]
                courier.order(effect, (json.dumps(numbers).encode(), self._mail.read))
            case Abort(task):
                courier.order(effect, self._failures[task])
                self._finish(done=False)
            case Finish():
                self._finish(done=not self._mail.stop)
            case Execute() | Forget():
                raise AssertionError("carried out by _perform")
            case _:
                assert_never(effect)

    def _finish(self, *, done: bool) -> None:
        self._courier.order(Finish(), done)
        self._over = True
        self._changed.notify_all()

    def _receive(self) -> None:
        """Read the mailbox until the worker has ended."""
        run, me = self._invocation.run, self._part.worker
        try:
            while not self._over:
                with alive(self._store, self._invocation):
                    received = self._store.receive(run, me, self._mail.read, _RECEIVE_SECONDS)
                for id_, letter in received:
                    if not self._read_letter(id_, letter):
                        return
                    self._courier.work()
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self.give_up(error)

    def _read_letter(self, id_: str, letter: Letter) -> bool:
        """Tell the machine about a message; False if the worker has ended."""
        if not isinstance(letter, WorkerLetter):
            raise misaddressed(letter)
        held: dict[TaskId, Any] = {}
        event: Event
        match letter:
            case TaskReady(task):
                held = self._messages.opened(letter)
                event = Arrived(task, tuple(held))
            case OutputSaved(task):
                self._messages.learn(letter)
                event = Announced((task,))
            case StopRequested():
                self._mail.stop = True
                self.tell(Stopped())
                self._courier.work()
                return False
            case _:
                assert_never(letter)
        with self._lock:
            self._changed.wait_for(lambda: self._mail.leave is not _LeaveState.ASKING or self._over)
            if self._over:
                return False
            self._mail.read = id_
            self._outputs.add(held)
            self._perform(self._handle(event, self._now()))
            if self._mail.leave is _LeaveState.REFUSED:
                self._mail.leave = _LeaveState.STAYING
                self._perform(self._handle(MailCame(), self._now()))
        return True


def _machine(part: Part) -> WorkerMachine | FlexibleMachine:
    match part:
        case PlannedPart():
            return planned_machine(part)
        case FlexiblePart():
            return FlexibleMachine(part)
        case _:
            assert_never(part)
