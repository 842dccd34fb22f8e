"""`simulate`: a plan carried out on the virtual clock by the very machines that workers run.

Each effect is answered after its predicted cost. A worker saves and fetches one thing at a time,
beside its executions; but its only slot sees to saves before it goes on. Sandboxes come from a
`WarmPool` with the gateway's rules: one that is warmed up is idle from the request on, and who gets
it early waits until it is up. Given `perform`, values flow along too, through the same saving,
fetching and forgetting as in a real run, so that a test can compare them with a sequential
evaluation. Who invokes workers does so one after the other; the fan-out invoker hands on to others
like it. Given `faults`, workers and invocations are lost, and start again a lease later with what
the store has of them; what a lost start still had on its way counts until then. And the store
restarts: what it was asked for has happened, but nobody was told, and asks again.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from shoal.clock import VirtualClock
from shoal.errors import WorkflowError
from shoal.execution.costs import Costs, Direction
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
    Fetched,
    MailCame,
    Marked,
    Recovered,
    Saved,
    Started,
    TimerFired,
)
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.execution.plan import Part, Plan
from shoal.execution.policies import invoked_after
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import Span, Timeline
from shoal.types import Resources, TaskId, WorkerId

Perform = Callable[[TaskId, Mapping[TaskId, Any]], Any]
"""Runs a task, given the outputs of its upstream tasks."""

_Reply = Callable[[], None]
"""Tells a worker what the store answers."""

_AGAIN = 0.1
"""Seconds after which the store is asked once more, for what wasn't there yet or unanswered."""


class Faults(Protocol):
    """What goes wrong in a simulated run."""

    lease: float
    """Seconds after which a worker that was lost is started again."""

    def crashes(self, worker: WorkerId) -> bool:
        """Whether a worker is lost, just before it is told of an event."""
        ...

    def invocations(self, worker: WorkerId) -> int:
        """How often an invocation is carried out: once, never, or repeatedly."""
        ...

    def interrupts(self) -> bool:
        """Whether the store restarts just before it answers."""
        ...


@dataclass
class _Worker:
    part: Part
    epoch: int = 0
    machine: WorkerMachine | FlexibleMachine | None = None
    """None: not started, or parked."""
    first: WorkerMachine | None = None
    """The one of an earlier start."""
    parking: bool = False
    """It asked the store to let it leave, and reads no mail until that answers."""
    sandbox: int = 0
    moving: float = 0.0
    """Until when it is busy saving and fetching."""
    saving: float = 0.0
    """Until when it is busy saving, which the only slot does before it goes on."""
    invoking: float = 0.0
    """Until when it is busy invoking others."""
    values: dict[TaskId, Any] = field(default_factory=dict)
    mailbox: list[Arrived | Announced] = field(default_factory=list)
    given: list[dict[TaskId, Any]] = field(default_factory=list)
    """The values that came with each message of the mailbox."""
    read: int = 0
    started: bool = False
    """Somebody has claimed its start."""
    entered: int = 0
    """The latest epoch that has begun: an invocation that is repeated does nothing."""
    lost: bool = False
    """A start was lost since it last parked."""
    refused: int = 0
    """The latest epoch that was lost: the store takes nothing more of it."""
    executed: tuple[TaskId, ...] = ()
    asked: set[tuple[TaskId, str | None]] = field(default_factory=set)
    """Marks of a flexible worker that the store hasn't got yet."""
    leaving: bool = False
    """It leaves with those, unless one is the last."""
    left: bool = False
    """It has: the store expects no more of it."""


class Simulation:
    """One simulated run."""

    def __init__(
        self,
        plan: Plan,
        costs: Costs,
        pool: WarmPool[Resources],
        *,
        perform: Perform | None = None,
        repeats: Callable[[], Sequence[float]] = lambda: (0.0,),
        faults: Faults | None = None,
    ) -> None:
        """Prepare a simulation.

        Args:
            plan: What is to be carried out.
            costs: What things are predicted to cost.
            pool: The platform's sandboxes, warm ones among them.
            perform: Runs a task for real, so that `results` are there afterwards.
            repeats: For each message, after which extra delays it arrives: once or more.
            faults: What goes wrong.
        """
        self.plan = plan
        self.results: dict[TaskId, Any] = {}
        self.performed: list[tuple[TaskId, WorkerId]] = []
        """Each execution, copies too, in order."""
        self.warmed: list[Resources] = []
        """Each sandbox that was started by a warm-up, in order."""
        self._costs = costs
        self._pool = pool
        self._perform = perform
        self._repeats = repeats
        self._faults = faults
        self._clock = VirtualClock()
        self._constants = costs.constants
        named = {task: tuple(sizes) for task, sizes in self._constants.items()}
        parts = plan.parts(named)
        self._common = parts[0]
        """In a flexible plan, the part of all workers."""
        self._workers = {} if plan.flexible else {part.worker: _Worker(part) for part in parts}
        self._queue: deque[tuple[WorkerId, int]] = deque()
        """Invocations: workers and their epochs."""
        self._up: dict[int, float] = {}
        """When each sandbox that is being warmed up could have a worker's first event."""
        self._marks: dict[TaskId, dict[str, tuple[dict[TaskId, Any], WorkerId]]] = {}
        """For each task and producer, the values that came with the mark, and who set it."""
        self._last: dict[TaskId, str] = {}
        """Of tasks that the plan gives to nobody: whose mark was the last."""
        self._held: dict[TaskId, set[str]] = {}
        """Of the same tasks: whose outputs are only in the memory of who set the last mark."""
        self._saved: dict[TaskId, Any] = {}
        self._nbytes: dict[TaskId, int] = {}
        for sizes in self._constants.values():
            self._nbytes.update(sizes)
        self._spans: list[Span] = []
        self._makespan = 0.0
        self._unfinished = len(self._workers)
        self._missing_sinks = set(plan.workflow.sinks)

    def run(self) -> Timeline:
        """Carry the plan out."""
        self._after(self._costs.launch(), self._launch)
        self._clock.run()
        if self._unfinished or self._missing_sinks:
            stuck = [
                name for name, w in self._workers.items() if not w.machine or not w.machine.finished
            ]
            raise WorkflowError(f"The plan never ends: workers {stuck} wait for each other.")
        self._spans.sort(key=lambda span: (span.start, span.worker, span.task or ""))
        return Timeline(tuple(self._spans), self._makespan)

    def _launch(self) -> None:
        if self.plan.flexible:
            for task, sources in self.plan.workflow.upstream.items():
                if not sources:
                    self._invoke(task, {})
            return
        for worker in self._workers.values():
            if worker.part.rooted:
                self._start(worker)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + seconds, callback)

    def _invoke(self, task: TaskId, given: dict[TaskId, Any]) -> None:
        """Start a flexible worker with a task and some of its inputs, once."""
        if WorkerId(task) in self._workers:
            return
        worker = _Worker(self._common.begun_with(task), given=[given])
        self._workers[worker.part.worker] = worker
        self._unfinished += 1
        self._start(worker)

    def _start(self, worker: _Worker) -> None:
        worker.started = True
        worker.epoch += 1
        name, count = worker.part.worker, 1
        if self._faults is not None:
            count = self._faults.invocations(name)
            if not count:
                self._restart_later(worker)
        self._queue.extend([(name, worker.epoch)] * count)
        self._serve_queue()

    def _lose(self, worker: _Worker) -> None:
        """The worker's process is gone, with all that it had in memory."""
        worker.machine = None
        worker.parking = False
        worker.values = {}
        self._pool.remove(worker.sandbox)
        self._span("leave", worker, None, 0.0)
        self._restart_later(worker)
        self._serve_queue()

    def _restart_later(self, worker: _Worker) -> None:
        assert self._faults is not None
        worker.lost = True
        epoch = worker.epoch

        def restart() -> None:
            if worker.epoch != epoch:
                return
            if worker.left:
                self._unfinished -= 1
            else:
                worker.refused = epoch
                self._start(worker)

        self._after(self._faults.lease, restart)

    def _serve_queue(self) -> None:
        while self._queue:
            name, epoch = self._queue[0]
            worker = self._workers[name]
            now = self._clock.now()
            self._pool.expire(now)
            acquired = self._pool.acquire(worker.part.resources, now)
            if acquired is None:
                return
            self._queue.popleft()
            warm = acquired.start == "warm"
            seconds = self._costs.startup(
                worker.part.resources, warm=warm, first=self._is_first(worker)
            )
            seconds = max(seconds, self._up.pop(acquired.sandbox, 0.0) - now)
            kind = "warm start" if warm else "cold start"
            self._span(kind, worker, None, seconds)
            sandbox = acquired.sandbox
            self._after(seconds, lambda w=worker, e=epoch, s=sandbox: self._begin(w, e, s))  # type: ignore[misc]

    def _is_first(self, worker: _Worker) -> bool:
        """Whether the client starts the worker, with the run."""
        if worker.part.flexible:
            return not self.plan.workflow.upstream[TaskId(worker.part.worker)]
        return worker.epoch == 1 and worker.part.rooted

    def _begin(self, worker: _Worker, epoch: int, sandbox: int) -> None:
        if epoch != worker.epoch or worker.entered == epoch:
            self._pool.release(sandbox, self._clock.now())
            self._serve_queue()
            return
        worker.entered, worker.sandbox = epoch, sandbox
        worker.moving = worker.saving = 0.0
        worker.asked, worker.leaving = set(), False
        recovered = self._recovered(worker) if worker.lost else None
        if worker.part.flexible:
            worker.machine = FlexibleMachine(worker.part, self.plan.workflow.upstream)
            worker.values = dict(worker.given[0])
            if recovered is not None:
                self._tell(worker, Started(recovered=recovered), epoch)
            first = Arrived(TaskId(worker.part.worker), tuple(worker.values))
            self._tell(worker, first, epoch)
            return
        worker.machine = WorkerMachine(worker.part, worker.first)
        if recovered is None:
            worker.first = worker.machine
            worker.values = {}
        worker.read = 0
        self._tell(worker, Started(worker.executed, recovered), epoch)
        self._read_mail(worker)

    def _recovered(self, worker: _Worker) -> Recovered:
        """What the store has of a worker that was lost."""
        me = worker.part.worker
        worker.values = {}
        marked: set[TaskId] = set()
        for target, done in self._marks.items():
            if me in done and done[me][1] == me:
                marked.add(target)
                worker.values.update(done[me][0])
        return Recovered(
            frozenset(self._saved),
            tuple(worker.values),
            frozenset(marked),
            frozenset(self.results),
            frozenset(self._workers),
        )

    def _read_mail(self, worker: _Worker) -> None:
        while self._reads(worker) and worker.read < len(worker.mailbox):
            worker.values.update(worker.given[worker.read])
            worker.read += 1
            self._tell(worker, worker.mailbox[worker.read - 1])

    def _reads(self, worker: _Worker) -> bool:
        machine = worker.machine
        return machine is not None and not machine.finished and not worker.parking

    def _tell(self, worker: _Worker, event: Event, epoch: int | None = None) -> None:
        if worker.machine is None or (epoch is not None and epoch != worker.epoch):
            return
        faults = self._faults
        if faults and not worker.machine.finished and faults.crashes(worker.part.worker):
            self._lose(worker)
            return
        crowd: list[tuple[TaskId, dict[TaskId, Any]]] = []
        for effect in worker.machine.handle(event, self._clock.now()):
            if type(effect) is Invoke and effect.many:
                crowd.append((effect.task, _taken(worker, effect.inline)))
            else:
                self._carry_out(worker, effect)
        if crowd:
            self._invoke_crowd(worker, crowd)

    def _carry_out(self, worker: _Worker, effect: Effect) -> None:
        match effect:
            case Execute(task):
                self._execute(worker, task)
            case Fetch(outputs):
                self._fetch(worker, outputs)
            case Save(task):
                value = worker.values.get(task)
                self._move("save", worker, (task,), lambda: self._save(worker, task, value))
                worker.saving = worker.moving
            case Mark() | Invoke() | Announce() | HandIn() | WarmUp():
                self._send(worker, effect)
            case Forget(outputs):
                for output in outputs:
                    worker.values.pop(output, None)
            case SetTimer(timer, seconds):
                epoch = worker.epoch
                self._after(seconds, lambda: self._tell(worker, TimerFired(timer), epoch))
            case Park(executed, again):
                worker.parking = True
                epoch = worker.epoch
                self._after(
                    self._costs.coordination(), lambda: self._park(worker, executed, epoch, again)
                )
            case Abort(task):
                raise WorkflowError(f"The simulated task {task!r} failed.")
            case Leave():
                worker.leaving = True
            case Finish():
                self._unfinished -= 1
                self._leave(worker, worker.sandbox)
            case _:
                assert_never(effect)

    def _send(self, worker: _Worker, effect: Mark | Invoke | Announce | HandIn | WarmUp) -> None:
        match effect:
            case Mark():
                self._mark(worker, effect)
            case Invoke(task, inline):
                given, now = _taken(worker, inline), self._clock.now()
                worker.invoking = max(now, worker.moving, worker.invoking)
                worker.invoking += self._costs.invocation()
                self._after(worker.invoking - now, lambda: self._invoke(task, given))
            case Announce(task, owner):
                self._announce(worker, task, owner)
            case HandIn(task, saved):
                self._hand_in(worker, task, saved=saved)
            case WarmUp(resources, count):
                self._after(self._costs.coordination(), lambda: self._warm_up(resources, count))

    def _ask(self, seconds: float, operation: Callable[[], _Reply | None]) -> None:
        """Have the store do something after a while; `operation` returns how it is answered."""

        def asked() -> None:
            answer = operation()
            if self._interrupted():
                self._ask(_AGAIN, operation)
            elif answer is not None:
                answer()

        self._after(seconds, asked)

    def _interrupted(self) -> bool:
        return self._faults is not None and self._faults.interrupts()

    def _invoke_crowd(
        self, worker: _Worker, crowd: Sequence[tuple[TaskId, dict[TaskId, Any]]]
    ) -> None:
        """Have the fan-out invoker start workers."""
        waiting = max(0.0, worker.moving - self._clock.now())
        hop, each = self._costs.coordination(), self._costs.invocation()
        delays = invoked_after(len(crowd), hop, each)
        for (task, given), after in zip(crowd, delays, strict=True):
            self._after(waiting + hop + after, lambda t=task, g=given: self._invoke(t, g))  # type: ignore[misc]

    def _answer(self, worker: _Worker, seconds: float, callback: Callable[[], Event]) -> None:
        epoch = worker.epoch
        self._after(seconds, lambda: self._tell(worker, callback(), epoch))

    def _execute(self, worker: _Worker, task: TaskId) -> None:
        sources = self.plan.workflow.upstream[task]
        input_nbytes = sum([self._nbytes[source] for source in sources])
        constants = self._constants.get(task)
        if constants:
            input_nbytes += sum(constants.values())
        seconds = self._costs.execution(task, input_nbytes, worker.part.resources)
        nbytes = self._costs.output_nbytes(task, input_nbytes)
        self._nbytes[task] = nbytes
        before = 0.0
        if worker.part.resources.slots == 1:
            before = max(0.0, worker.saving - self._clock.now())
        self._span("execute", worker, task, seconds, nbytes, after=before)
        self.performed.append((task, worker.part.worker))
        returned = None
        if self._perform is not None:
            inputs = {source: worker.values[source] for source in sources}
            returned = self._perform(task, inputs)
        epoch = worker.epoch

        def executed() -> Event:
            if worker.epoch == epoch:
                worker.values[task] = returned
            return Executed(task, nbytes)

        self._answer(worker, before + seconds, executed)

    def _fetch(self, worker: _Worker, outputs: tuple[TaskId, ...]) -> None:
        calls, epoch = self.plan.workflow.calls, worker.epoch
        if any([o in calls and o not in self._saved for o in outputs]):
            self._after(_AGAIN, lambda: self._fetch_again(worker, outputs, epoch))
            return
        for output in outputs:
            worker.values[output] = self._saved.get(output)
        self._move("fetch", worker, outputs, lambda: Fetched(outputs))

    def _fetch_again(self, worker: _Worker, outputs: tuple[TaskId, ...], epoch: int) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            self._fetch(worker, outputs)

    def _move(
        self,
        direction: Direction,
        worker: _Worker,
        outputs: tuple[TaskId, ...],
        callback: Callable[[], Event],
    ) -> None:
        now = self._clock.now()
        start = max(now, worker.moving)
        for output in outputs:
            nbytes = self._nbytes[output]
            seconds = self._costs.transfer(direction, nbytes, worker.part.resources)
            self._span(direction, worker, output, seconds, nbytes, after=start - now)
            start += seconds
        worker.moving = start
        self._answer(worker, start - now, callback)

    def _save(self, worker: _Worker, task: TaskId, value: Any) -> Event:
        self._saved[task] = value
        return Saved(task)

    def _mark(self, worker: _Worker, mark: Mark) -> None:
        values = _taken(worker, mark.inline)
        owner, me, epoch = mark.owner, worker.part.worker, worker.epoch

        def marked() -> _Reply | None:
            if epoch <= worker.refused:
                return None
            done = self._marks.setdefault(mark.task, {})
            if owner is None:
                last = self._mark_free(mark, done, values, me)
            else:
                before = len(done)
                done.setdefault(mark.producer or me, (values, me))
                last = before < len(mark.producers) == len(done)
            given: dict[TaskId, Any] = {}
            if last:
                given = {o: value for values, _ in done.values() for o, value in values.items()}
            if owner is None:
                self._leave_with(worker, mark, last)
                refused = mark.held is not None and not last
                event = Marked(mark.task, TaskId(mark.producer or ""), last, tuple(given), refused)
                delay = min(self._repeats())
                return lambda: self._after(
                    delay, lambda: self._answer_mark(worker, event, given, epoch)
                )
            if last:
                for delay in self._repeats():
                    self._after(delay, lambda: self._deliver(owner, mark.task, given))
            return None

        if owner is None:
            worker.asked.add((mark.task, mark.producer))
        waiting = max(0.0, worker.moving - self._clock.now())
        self._ask(waiting + self._costs.coordination(), marked)

    def _leave_with(self, worker: _Worker, mark: Mark, last: bool) -> None:
        """The store has a mark; who leaves with it does so unless it is the last."""
        worker.asked.discard((mark.task, mark.producer))
        worker.leaving = worker.leaving and not last
        worker.left = worker.left or (worker.leaving and not worker.asked)

    def _mark_free(
        self,
        mark: Mark,
        done: dict[str, tuple[dict[TaskId, Any], WorkerId]],
        values: dict[TaskId, Any],
        me: WorkerId,
    ) -> bool:
        """Mark a task that the plan gives to nobody; whether it is the sender's (see `Store`)."""
        task, producer = mark.task, str(mark.producer)
        count, held = len(mark.producers), self._held.setdefault(task, set())
        if mark.held is None:
            if producer not in done:
                done[producer] = (values, me)
                if len(done) == count:
                    self._last[task] = producer
            elif producer in held:
                held.remove(producer)
                done[producer] = (values, me)
            if self._last.get(task) == producer and held:
                self._last[task] = min(held)
            return self._last.get(task) == producer
        fresh = [output for output in mark.held if output not in done]
        if fresh and len(done) + len(fresh) == count:
            done.update({output: ({}, me) for output in fresh})
            held.update(fresh)
            self._last[task] = producer
        return self._last.get(task) in mark.held and held.issubset(mark.held)

    def _answer_mark(
        self, worker: _Worker, event: Marked, given: dict[TaskId, Any], epoch: int
    ) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            worker.values.update(given)
            self._tell(worker, event)

    def _deliver(self, owner: WorkerId, task: TaskId, given: dict[TaskId, Any]) -> None:
        worker = self._workers[owner]
        self._put(worker, Arrived(task, tuple(given)), given)
        if worker.machine is None and not worker.started:
            self._start(worker)

    def _announce(self, worker: _Worker, task: TaskId, owner: WorkerId) -> None:
        def announced() -> None:
            for delay in self._repeats():
                self._after(delay, lambda: self._put(self._workers[owner], Announced((task,)), {}))

        waiting = max(0.0, worker.moving - self._clock.now())
        self._ask(waiting + self._costs.coordination(), announced)

    def _put(self, worker: _Worker, message: Arrived | Announced, given: dict[TaskId, Any]) -> None:
        worker.mailbox.append(message)
        worker.given.append(given)
        self._read_mail(worker)

    def _warm_up(self, resources: Resources, count: int) -> None:
        now = self._clock.now()
        self._pool.expire(now)
        ready: list[int] = []
        for _ in range(count):
            acquired = self._pool.acquire(resources, now)
            if acquired is None:
                break
            if acquired.start == "cold":
                self.warmed.append(resources)
                self._up[acquired.sandbox] = now + self._costs.startup(resources, warm=False)
            ready.append(acquired.sandbox)
        for sandbox in ready:
            self._pool.release(sandbox, now)

    def _hand_in(self, worker: _Worker, task: TaskId, *, saved: bool) -> None:
        value = self._saved[task] if saved else worker.values.get(task)
        waiting = max(0.0, worker.moving - self._clock.now())
        seconds = waiting + self._costs.hand_in(self._nbytes[task], worker.part.resources)
        epoch = worker.epoch

        def handed_in() -> None:
            if epoch <= worker.refused:
                return
            self.results[task] = value
            self._missing_sinks.discard(task)
            if not self._missing_sinks:
                self._makespan = max(self._makespan, self._clock.now())

        self._ask(seconds, handed_in)

    def _park(self, worker: _Worker, executed: tuple[TaskId, ...], epoch: int, again: bool) -> None:
        if worker.machine is None or worker.epoch != epoch:
            return
        worker.parking = False
        if worker.read < len(worker.mailbox) and not again:
            self._tell(worker, MailCame())
            self._read_mail(worker)
            return
        worker.executed = executed
        worker.started = worker.lost = False
        worker.machine = None
        if self._interrupted():
            sandbox = worker.sandbox
            self._after(_AGAIN, lambda: self._leave(worker, sandbox))
        else:
            self._leave(worker, worker.sandbox)
        if again:
            self._start(worker)

    def _leave(self, worker: _Worker, sandbox: int) -> None:
        self._span("leave", worker, None, 0.0)
        self._pool.release(sandbox, self._clock.now())
        self._serve_queue()

    def _span(
        self,
        kind: str,
        worker: _Worker,
        task: TaskId | None,
        seconds: float,
        nbytes: int = 0,
        *,
        after: float = 0.0,
    ) -> None:
        start = self._clock.now() + after
        self._spans.append(
            Span(kind, worker.part.worker, task, start, start + seconds, 0.0, nbytes)
        )


def _taken(worker: _Worker, outputs: Sequence[TaskId]) -> dict[TaskId, Any]:
    """What travels of a worker's memory."""
    return {output: worker.values.get(output) for output in outputs}


def simulate(plan: Plan, costs: Costs, pool: WarmPool[Resources] | None = None) -> Timeline:
    """The timeline that a plan is predicted to have."""
    collecting = gc.isenabled()
    gc.disable()  # it would look at everything again and again, and find nothing
    try:
        return Simulation(plan, costs, pool or WarmPool()).run()
    finally:
        if collecting:
            gc.enable()
