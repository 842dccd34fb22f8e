"""`simulate`: a plan carried out on the virtual clock by the very machines that workers run.

Each effect is answered after its predicted cost; how workers get to the store and back is told in
`simulated_courier.py`. Near the store, a worker's only slot sees to saves before it goes on. Given
`perform`, values flow along too, through the same saving, fetching and forgetting as in a real run,
so that a test can compare them with a sequential evaluation. Who invokes workers does so one after
the other; the fan-out invoker hands on to others like it. Given `faults`, workers and invocations
are lost, and start again a lease later with what the store has of them; what a lost start still had
on its way counts until then. And the store restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from shoal.clock import VirtualClock
from shoal.collector import uncollected
from shoal.errors import WorkflowError
from shoal.execution.costs import Costs
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
    MailCame,
    Marked,
    Recovered,
    Started,
    TimerFired,
)
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.execution.plan import Plan
from shoal.execution.policies import invoked_after
from shoal.execution.pool import WarmPool
from shoal.execution.simulated_courier import AGAIN, Answer, Couriers, Reply, Spans
from shoal.execution.simulated_platform import Invocation, SimulatedPlatform, Start
from shoal.execution.simulated_store import SimulatedStore
from shoal.execution.simulated_worker import Faults, Trip, Worker
from shoal.execution.timeline import Timeline
from shoal.types import Resources, TaskId, WorkerId

Perform = Callable[[TaskId, Mapping[TaskId, Any]], Any]
"""Runs a task, given the outputs of its upstream tasks."""


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
        clock: VirtualClock | None = None,
        workers: int = 0,
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
            clock: Which tells the run's time; for costs that depend on it.
            workers: How many may be at work at once; 0: as many as the pool has room for.
        """
        self.plan = plan
        self.performed: list[tuple[TaskId, WorkerId]] = []
        """Each execution, copies too, in order."""
        self._costs = costs
        self._perform = perform
        self._repeats = repeats
        self._faults = faults
        self._clock = clock or VirtualClock()
        self._store = SimulatedStore(plan.workflow.calls)
        self._platform = SimulatedPlatform(pool, costs, self._clock, workers)
        self._constants = costs.constants
        named = {task: tuple(sizes) for task, sizes in self._constants.items()}
        parts = plan.parts(named)
        self._common = parts[0]
        """In a flexible plan, the part of all workers."""
        self._workers = {} if plan.flexible else {part.worker: Worker(part) for part in parts}
        self._nbytes: dict[TaskId, int] = {}
        for sizes in self._constants.values():
            self._nbytes.update(sizes)
        self._spans = Spans(self._clock, wanted=recorded)
        self._couriers = Couriers(
            self, costs, self._clock, self._store, self._spans, self._nbytes, faults
        )
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
        del self._couriers  # who know this simulation, which the collector would have to find
        if self._unfinished or self._missing_sinks:
            stuck = [
                name for name, w in self._workers.items() if not w.machine or not w.machine.finished
            ]
            raise WorkflowError(f"The plan never ends: workers {stuck} wait for each other.")
        spans = sorted(
            self._spans.found, key=lambda span: (span.start, span.worker, span.task or "")
        )
        return Timeline(tuple(spans), self._makespan)

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
            self._spans.add(kind, worker, None, start.seconds)
            self._after(start.seconds, lambda: self._begin(worker, epoch, start.sandbox))

        first = self._is_first(worker)
        self._platform.invoke(Invocation(worker.part.resources, first, began), count)

    def _lose(self, worker: Worker) -> None:
        """The worker's process is gone, with all that it had in memory."""
        worker.machine = None
        worker.parking = False
        worker.values = {}
        worker.forget_orders()
        self._platform.remove(worker.sandbox)
        self._spans.add("leave", worker, None, 0.0)
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
        worker.away, worker.saving = False, 0.0
        worker.forget_orders()
        worker.asked, worker.leaving = set(), False
        recovered = self._recovered(worker) if worker.lost else None
        if worker.part.flexible:
            worker.machine = FlexibleMachine(worker.part, self.plan.workflow.upstream)
            worker.values = dict(worker.given[0])
            if recovered is not None:
                self.tell(worker, Started(recovered=recovered), epoch)
            first = Arrived(TaskId(worker.part.worker), tuple(worker.values))
            self.tell(worker, first, epoch)
            return
        worker.duties = worker.duties or Duties.of(worker.part)
        worker.machine = WorkerMachine(worker.part, worker.duties)
        if recovered is None:
            worker.values = {}
        worker.read = 0
        self.tell(worker, Started(worker.executed, recovered), epoch)
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
            self.tell(worker, worker.mailbox[worker.read - 1])

    def tell(self, worker: Worker, event: Event, epoch: int | None = None) -> None:
        """Tell a worker, or only a certain start of it, what happened."""
        if worker.machine is None or (epoch is not None and epoch != worker.epoch):
            return
        faults = self._faults
        if faults and not worker.machine.finished and faults.crashes(worker.part.worker):
            self._lose(worker)
            return
        executions: list[TaskId] = []
        for effect in worker.machine.handle(event, self._clock.now()):
            if type(effect) is Execute:
                executions.append(effect.task)
            else:
                self._carry_out(worker, effect)
        if worker.orders:
            self._couriers.see_to(worker)
        for task in executions:
            if worker.machine is not None:
                self._execute(worker, task)

    def _carry_out(self, worker: Worker, effect: Effect) -> None:
        match effect:
            case Mark() | Invoke() | Save() | HandIn() | Park() | Fetch() | Announce() | Finish():
                self._couriers.order(worker, effect)
            case WarmUp(resources, count):
                self._after(
                    self._costs.coordination(), lambda: self._platform.warm_up(resources, count)
                )
            case Forget(outputs):
                for output in outputs:
                    worker.values.pop(output, None)
            case SetTimer(timer, seconds):
                epoch = worker.epoch
                self._after(seconds, lambda: self.tell(worker, TimerFired(timer), epoch))
            case Abort(task):
                raise WorkflowError(f"The simulated task {task!r} failed.")
            case Leave():
                worker.leaving = not (self._couriers.far and worker.saves)
            case Execute():
                raise AssertionError("carried out by tell")
            case _:
                assert_never(effect)

    def arrived(self, trip: Trip, sent: float) -> Answer | None:
        """The store has what was sent; how it answers."""
        worker, epoch = trip.worker, trip.epoch
        if epoch <= worker.refused:
            return None
        replies: list[Reply] = []
        invoked: list[tuple[Invoke, dict[TaskId, Any]]] = []
        starting = False
        for effect, given in trip.load:
            match effect:
                case Save(task):
                    self._store.saved[task] = given[task]
                case Mark(_, None):
                    replies.append(self._mark_free(worker, effect, given, epoch, sent))
                case Mark():
                    starting |= self._mark(worker, effect, given, sent)
                case Announce(task, owner):
                    self._announce(task, owner)
                case Invoke():
                    invoked.append((effect, given))

        def answer() -> None:
            for reply in replies:
                reply()
            self._invoke_all(invoked)

        return Answer(answer, starting or bool(invoked))

    def _invoke_all(self, invoked: Sequence[tuple[Invoke, dict[TaskId, Any]]]) -> None:
        """Start workers one after the other; those of a crowd the fan-out invoker starts."""
        each, one_by_one = self._costs.invocation(), 0.0
        crowd = [start for start in invoked if start[0].many]
        for invoke, given in invoked:
            if not invoke.many:
                one_by_one += each
                self._after(one_by_one, lambda i=invoke, g=given: self._invoke(i.task, g))  # type: ignore[misc]
        if crowd:
            hop = self._costs.coordination()
            delays = invoked_after(len(crowd), hop, each)
            for (invoke, given), after in zip(crowd, delays, strict=True):
                self._after(hop + after, lambda i=invoke, g=given: self._invoke(i.task, g))  # type: ignore[misc]

    def _answer(self, worker: Worker, seconds: float, callback: Callable[[], Event]) -> None:
        epoch = worker.epoch
        self._after(seconds, lambda: self.tell(worker, callback(), epoch))

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
        if worker.part.resources.slots == 1 and not self._couriers.far:
            before = max(0.0, worker.saving - self._clock.now())
        self._spans.add("execute", worker, task, seconds, nbytes, after=before)
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

    def _mark(self, worker: Worker, mark: Mark, values: dict[TaskId, Any], sent: float) -> bool:
        """Mark a task that a worker waits for; whether that worker is to be started."""
        owner, found = mark.owner, self._store.mark(mark, values, worker.part.worker)
        if found is None or owner is None:
            return False
        for delay in self._repeats():
            self._after(delay, lambda: self._deliver(owner, mark.task, found, sent))
        return not self._workers[owner].started

    def _mark_free(
        self, worker: Worker, mark: Mark, values: dict[TaskId, Any], epoch: int, sent: float
    ) -> Reply:
        """Mark a task that is whoever's marks it last."""
        found = self._store.mark(mark, values, worker.part.worker)
        last, given = found is not None, found or {}
        self._leave_with(worker, mark, last)
        refused = mark.held is not None and not last
        event = Marked(mark.task, TaskId(mark.producer or ""), last, tuple(given), refused)
        delay = min(self._repeats())
        return lambda: self._after(
            delay, lambda: self._answer_mark(worker, event, given, epoch, sent)
        )

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
            self.tell(worker, event)

    def _came(self, worker: Worker, task: TaskId, sent: float) -> None:
        """A message came; one that was sent before the worker began says nothing of its way."""
        if worker.reads and sent > worker.began:
            now = self._clock.now()
            self._spans.add("deliver", worker, task, now - sent, after=sent - now)

    def _deliver(
        self, owner: WorkerId, task: TaskId, given: dict[TaskId, Any], sent: float
    ) -> None:
        worker = self._workers[owner]
        self._came(worker, task, sent)
        self._put(worker, Arrived(task, tuple(given)), given)
        if worker.machine is None and not worker.started:
            self._start(worker)

    def _announce(self, task: TaskId, owner: WorkerId) -> None:
        for delay in self._repeats():
            self._after(delay, lambda: self._put(self._workers[owner], Announced((task,)), {}))

    def _put(self, worker: Worker, message: Arrived | Announced, given: dict[TaskId, Any]) -> None:
        worker.mailbox.append(message)
        worker.given.append(given)
        self._read_mail(worker)

    def handed_in(self, trip: Trip, task: TaskId, value: Any) -> None:
        """The client has the output of a sink, unless the start that sent it was given up."""
        if trip.epoch <= trip.worker.refused:
            return
        self._store.results[task] = self._store.saved.get(task, value)
        self._missing_sinks.discard(task)
        if not self._missing_sinks:
            self._makespan = max(self._makespan, self._clock.now())

    def finished(self, trip: Trip, after: float) -> None:
        """A start has told all; its sandbox is free after a while."""
        self._unfinished -= 1
        self._after(after, lambda: self._platform.release(trip.sandbox))

    def parked(self, worker: Worker, park: Park, epoch: int) -> None:
        """A worker leaves, unless there is mail for it."""
        if worker.machine is None or worker.epoch != epoch:
            return
        worker.parking = worker.away = False
        if worker.read < len(worker.mailbox) and not park.again:
            self.tell(worker, MailCame())
            self._read_mail(worker)
            return
        worker.executed = park.executed
        worker.started = worker.lost = False
        worker.machine = None
        sandbox = worker.sandbox
        late = AGAIN if self._couriers.interrupted else 0.0
        self._after(late, lambda: self._platform.release(sandbox))
        if park.again:
            self._start(worker)


def simulate(
    plan: Plan,
    costs: Costs,
    pool: WarmPool[Resources] | None = None,
    clock: VirtualClock | None = None,
    *,
    workers: int = 0,
) -> Timeline:
    """The timeline that a plan is predicted to have; the rest is as in `Simulation`."""
    with uncollected():  # it would look at everything, and find nothing
        return Simulation(plan, costs, pool or WarmPool(), clock=clock, workers=workers).run()


def makespan_of(
    plan: Plan, costs: Costs, pool: WarmPool[Resources] | None = None, *, workers: int = 0
) -> float:
    """The makespan that a plan is predicted to have, for those who don't look at the timeline."""
    pool = pool or WarmPool()
    with uncollected():
        return Simulation(plan, costs, pool, recorded=False, workers=workers).run().makespan
