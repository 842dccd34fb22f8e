"""`simulate`: a plan carried out on the virtual clock by the very machines that workers run.

Each effect is answered after its predicted cost. A worker saves and fetches one thing at a time,
beside its executions; but its only slot sees to saves before it goes on. Given `perform`, values
flow along too, through the same saving, fetching and forgetting as in a real run, so that a test
can compare them with a sequential evaluation. Who invokes workers does so one after the other; the
fan-out invoker hands on to others like it. Given `faults`, workers and invocations are lost, and
start again a lease later with what the store has of them; what a lost start still had on its way
counts until then. And the store restarts: what it was asked for has happened, but nobody was told,
and asks again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from shoal.clock import VirtualClock
from shoal.errors import WorkflowError
from shoal.execution.costs import Costs, Direction
from shoal.execution.duties import Duties
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
from shoal.execution.plan import Plan
from shoal.execution.policies import invoked_after
from shoal.execution.pool import WarmPool
from shoal.execution.simulated_platform import Invocation, SimulatedPlatform, Start
from shoal.execution.simulated_store import SimulatedStore
from shoal.execution.simulated_worker import Faults, Worker
from shoal.execution.timeline import Span, Timeline
from shoal.types import Resources, TaskId, WorkerId

Perform = Callable[[TaskId, Mapping[TaskId, Any]], Any]
"""Runs a task, given the outputs of its upstream tasks."""

_Reply = Callable[[], None]
"""Tells a worker what the store answers."""

_AGAIN = 0.1
"""Seconds after which the store is asked once more, for what wasn't there yet or unanswered."""


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
        recorded: bool = True,
    ) -> None:
        """Prepare a simulation.

        Args:
            plan: What is to be carried out.
            costs: What things are predicted to cost.
            pool: The platform's sandboxes, warm ones among them.
            perform: Runs a task for real, so that `results` are there afterwards.
            repeats: For each message, after which extra delays it arrives: once or more.
            faults: What goes wrong.
            recorded: Whether the timeline has spans, and not the makespan alone.
        """
        self.plan = plan
        self.performed: list[tuple[TaskId, WorkerId]] = []
        """Each execution, copies too, in order."""
        self._costs = costs
        self._perform = perform
        self._repeats = repeats
        self._faults = faults
        self._recorded = recorded
        self._clock = VirtualClock()
        self._store = SimulatedStore()
        self._platform = SimulatedPlatform(pool, costs, self._clock)
        self._constants = costs.constants
        named = {task: tuple(sizes) for task, sizes in self._constants.items()}
        parts = plan.parts(named)
        self._common = parts[0]
        """In a flexible plan, the part of all workers."""
        self._workers = {} if plan.flexible else {part.worker: Worker(part) for part in parts}
        self._nbytes: dict[TaskId, int] = {}
        for sizes in self._constants.values():
            self._nbytes.update(sizes)
        self._ways: dict[TaskId, float] = {}
        """How long marks of each task are on their way. What is known of messages tells of the
        last mark of each task, so the first one's time counts for all."""
        self._spans: list[Span] = []
        self._makespan = 0.0
        self._unfinished = len(self._workers)
        self._missing_sinks = set(plan.workflow.sinks)

    @property
    def results(self) -> Mapping[TaskId, Any]:
        """The sinks' outputs, given `perform`."""
        return self._store.results

    @property
    def warmed(self) -> Sequence[Resources]:
        """Each sandbox that was started by a warm-up, in order."""
        return self._platform.warmed

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
        worker = Worker(self._common.begun_with(task), given=[given])
        self._workers[worker.part.worker] = worker
        self._unfinished += 1
        self._start(worker)

    def _start(self, worker: Worker) -> None:
        worker.started = True
        worker.epoch += 1
        count = 1
        if self._faults is not None:
            count = self._faults.invocations(worker.part.worker)
            if not count:
                self._restart_later(worker)
        epoch = worker.epoch

        def began(start: Start) -> None:
            kind = "warm start" if start.warm else "cold start"
            self._span(kind, worker, None, start.seconds)
            self._after(start.seconds, lambda: self._begin(worker, epoch, start.sandbox))

        first = self._is_first(worker)
        self._platform.invoke(Invocation(worker.part.resources, first, began), count)

    def _lose(self, worker: Worker) -> None:
        """The worker's process is gone, with all that it had in memory."""
        worker.machine = None
        worker.parking = False
        worker.values = {}
        self._platform.remove(worker.sandbox)
        self._span("leave", worker, None, 0.0)
        self._restart_later(worker)
        self._platform.serve()

    def _restart_later(self, worker: Worker) -> None:
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

    def _is_first(self, worker: Worker) -> bool:
        """Whether the client starts the worker, with the run."""
        if worker.part.flexible:
            return not self.plan.workflow.upstream[TaskId(worker.part.worker)]
        return worker.epoch == 1 and worker.part.rooted

    def _begin(self, worker: Worker, epoch: int, sandbox: int) -> None:
        if epoch != worker.epoch or worker.entered == epoch:
            self._platform.release(sandbox)
            return
        worker.entered, worker.sandbox, worker.began = epoch, sandbox, self._clock.now()
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
        worker.duties = worker.duties or Duties.of(worker.part)
        worker.machine = WorkerMachine(worker.part, worker.duties)
        if recovered is None:
            worker.values = {}
        worker.read = 0
        self._tell(worker, Started(worker.executed, recovered), epoch)
        self._read_mail(worker)

    def _recovered(self, worker: Worker) -> Recovered:
        """What the store has of a worker that was lost."""
        started = frozenset(self._workers)
        recovered, worker.values = self._store.recovered(worker.part.worker, started)
        return recovered

    def _read_mail(self, worker: Worker) -> None:
        while worker.reads and worker.read < len(worker.mailbox):
            worker.values.update(worker.given[worker.read])
            worker.read += 1
            self._tell(worker, worker.mailbox[worker.read - 1])

    def _tell(self, worker: Worker, event: Event, epoch: int | None = None) -> None:
        if worker.machine is None or (epoch is not None and epoch != worker.epoch):
            return
        faults = self._faults
        if faults and not worker.machine.finished and faults.crashes(worker.part.worker):
            self._lose(worker)
            return
        crowd: list[tuple[TaskId, dict[TaskId, Any]]] = []
        for effect in worker.machine.handle(event, self._clock.now()):
            if type(effect) is Invoke and effect.many:
                crowd.append((effect.task, worker.taken(effect.inline)))
            else:
                self._carry_out(worker, effect)
        if crowd:
            self._invoke_crowd(worker, crowd)

    def _carry_out(self, worker: Worker, effect: Effect) -> None:
        match effect:
            case Execute(task):
                self._execute(worker, task)
            case Fetch(outputs):
                self._fetch(worker, outputs)
            case Save(task):
                value = worker.values.get(task)
                self._move("save", worker, (task,), lambda: self._save(task, value))
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

    def _send(self, worker: Worker, effect: Mark | Invoke | Announce | HandIn | WarmUp) -> None:
        match effect:
            case Mark():
                self._mark(worker, effect)
            case Invoke(task, inline):
                given, now = worker.taken(inline), self._clock.now()
                worker.invoking = max(now, worker.moving, worker.invoking)
                worker.invoking += self._costs.invocation()
                self._after(worker.invoking - now, lambda: self._invoke(task, given))
            case Announce(task, owner):
                self._announce(worker, task, owner)
            case HandIn(task, saved):
                self._hand_in(worker, task, saved=saved)
            case WarmUp(resources, count):
                self._after(
                    self._costs.coordination(), lambda: self._platform.warm_up(resources, count)
                )

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
        self, worker: Worker, crowd: Sequence[tuple[TaskId, dict[TaskId, Any]]]
    ) -> None:
        """Have the fan-out invoker start workers."""
        waiting = max(0.0, worker.moving - self._clock.now())
        hop, each = self._costs.coordination(), self._costs.invocation()
        delays = invoked_after(len(crowd), hop, each)
        for (task, given), after in zip(crowd, delays, strict=True):
            self._after(waiting + hop + after, lambda t=task, g=given: self._invoke(t, g))  # type: ignore[misc]

    def _answer(self, worker: Worker, seconds: float, callback: Callable[[], Event]) -> None:
        epoch = worker.epoch
        self._after(seconds, lambda: self._tell(worker, callback(), epoch))

    def _execute(self, worker: Worker, task: TaskId) -> None:
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

    def _fetch(self, worker: Worker, outputs: tuple[TaskId, ...]) -> None:
        calls, epoch = self.plan.workflow.calls, worker.epoch
        if any([o in calls and o not in self._store.saved for o in outputs]):
            self._after(_AGAIN, lambda: self._fetch_again(worker, outputs, epoch))
            return
        for output in outputs:
            worker.values[output] = self._store.saved.get(output)
        self._move("fetch", worker, outputs, lambda: Fetched(outputs))

    def _fetch_again(self, worker: Worker, outputs: tuple[TaskId, ...], epoch: int) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            self._fetch(worker, outputs)

    def _move(
        self,
        direction: Direction,
        worker: Worker,
        outputs: tuple[TaskId, ...],
        callback: Callable[[], Event],
    ) -> None:
        """Outputs that are moved together are one transfer, which is told of the first."""
        now = self._clock.now()
        after = max(0.0, worker.moving - now)
        nbytes = sum([self._nbytes[output] for output in outputs])
        seconds = self._costs.transfer(direction, nbytes, worker.part.resources)
        worker.moving = now + after + seconds
        self._answer(worker, after + seconds, callback)
        for output in outputs:
            self._span(direction, worker, output, seconds, nbytes, after=after)
            after, seconds, nbytes = after + seconds, 0.0, 0

    def _save(self, task: TaskId, value: Any) -> Event:
        self._store.saved[task] = value
        return Saved(task)

    def _mark(self, worker: Worker, mark: Mark) -> None:
        values = worker.taken(mark.inline)
        owner, me, epoch = mark.owner, worker.part.worker, worker.epoch
        sent = max(self._clock.now(), worker.moving)

        def marked() -> _Reply | None:
            if epoch <= worker.refused:
                return None
            found = self._store.mark(mark, values, me)
            last, given = found is not None, found or {}
            if owner is None:
                self._leave_with(worker, mark, last)
                refused = mark.held is not None and not last
                event = Marked(mark.task, TaskId(mark.producer or ""), last, tuple(given), refused)
                delay = min(self._repeats())
                return lambda: self._after(
                    delay, lambda: self._answer_mark(worker, event, given, epoch, sent)
                )
            if last:
                for delay in self._repeats():
                    self._after(delay, lambda: self._deliver(owner, mark.task, given, sent))
            return None

        if owner is None:
            worker.asked.add((mark.task, mark.producer))
        way = self._ways.setdefault(mark.task, self._costs.coordination())
        self._ask(sent - self._clock.now() + way, marked)

    def _leave_with(self, worker: Worker, mark: Mark, last: bool) -> None:
        """The store has a mark; who leaves with it does so unless it is the last."""
        worker.asked.discard((mark.task, mark.producer))
        worker.leaving = worker.leaving and not last
        worker.left = worker.left or (worker.leaving and not worker.asked)

    def _answer_mark(
        self, worker: Worker, event: Marked, given: dict[TaskId, Any], epoch: int, sent: float
    ) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            if event.claimed:
                self._came(worker, event.task, sent)
            worker.values.update(given)
            self._tell(worker, event)

    def _came(self, worker: Worker, task: TaskId, sent: float) -> None:
        """A message came; one that was sent before the worker began says nothing of its way."""
        if worker.reads and sent > worker.began:
            now = self._clock.now()
            self._span("deliver", worker, task, now - sent, after=sent - now)

    def _deliver(
        self, owner: WorkerId, task: TaskId, given: dict[TaskId, Any], sent: float
    ) -> None:
        worker = self._workers[owner]
        self._came(worker, task, sent)
        self._put(worker, Arrived(task, tuple(given)), given)
        if worker.machine is None and not worker.started:
            self._start(worker)

    def _announce(self, worker: Worker, task: TaskId, owner: WorkerId) -> None:
        def announced() -> None:
            for delay in self._repeats():
                self._after(delay, lambda: self._put(self._workers[owner], Announced((task,)), {}))

        waiting = max(0.0, worker.moving - self._clock.now())
        self._ask(waiting + self._costs.coordination(), announced)

    def _put(self, worker: Worker, message: Arrived | Announced, given: dict[TaskId, Any]) -> None:
        worker.mailbox.append(message)
        worker.given.append(given)
        self._read_mail(worker)

    def _hand_in(self, worker: Worker, task: TaskId, *, saved: bool) -> None:
        value = self._store.saved[task] if saved else worker.values.get(task)
        waiting = max(0.0, worker.moving - self._clock.now())
        seconds = waiting + self._costs.hand_in(self._nbytes[task], worker.part.resources)
        epoch = worker.epoch

        def handed_in() -> None:
            if epoch <= worker.refused:
                return
            self._store.results[task] = value
            self._missing_sinks.discard(task)
            if not self._missing_sinks:
                self._makespan = max(self._makespan, self._clock.now())

        self._ask(seconds, handed_in)

    def _park(self, worker: Worker, executed: tuple[TaskId, ...], epoch: int, again: bool) -> None:
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

    def _leave(self, worker: Worker, sandbox: int) -> None:
        self._span("leave", worker, None, 0.0)
        self._platform.release(sandbox)

    def _span(
        self,
        kind: str,
        worker: Worker,
        task: TaskId | None,
        seconds: float,
        nbytes: int = 0,
        *,
        after: float = 0.0,
    ) -> None:
        if not self._recorded:
            return
        start = self._clock.now() + after
        self._spans.append(
            Span(kind, worker.part.worker, task, start, start + seconds, 0.0, nbytes)
        )


def simulate(plan: Plan, costs: Costs, pool: WarmPool[Resources] | None = None) -> Timeline:
    """The timeline that a plan is predicted to have."""
    return _uncollected(Simulation(plan, costs, pool or WarmPool()))


def makespan_of(plan: Plan, costs: Costs, pool: WarmPool[Resources] | None = None) -> float:
    """The makespan that a plan is predicted to have, for those who don't look at the timeline."""
    return _uncollected(Simulation(plan, costs, pool or WarmPool(), recorded=False)).makespan


def _uncollected(simulation: Simulation) -> Timeline:
    """Run without the garbage collector: it would look at everything, and find nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return simulation.run()
    finally:
        if collecting:
            gc.enable()
