"""`simulate`: carries a plan out on the virtual clock, with the machines that real workers run.

1. Each effect is answered after its predicted cost. `simulated_courier.py` does what a worker sends
   and fetches. A slot that carries orders out runs its next task afterwards.
2. A worker invokes others one after the other; the fan-out invoker shares the work with more
   invokers.
3. Given `perform`, values flow along, and are saved, fetched and freed as in a real run. So a test
   can compare them with a sequential evaluation.
4. The store keeps to its model: it claims the start of a task's owner with the last mark, and that
   worker can't park from then on, even if it has yet to see the message.
5. Given `faults`, workers and invocations are lost. `simulated_supervisor.py` restarts a lost
   worker, with what the store has of it; until then the store still accepts what the lost start had
   sent. The store may restart, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, assert_never

from shoal.clock import VirtualClock
from shoal.errors import WorkflowError
from shoal.execution.costs import Costs
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
from shoal.execution.obligations import Obligations
from shoal.execution.outbox import Trip
from shoal.execution.plan import FlexiblePart, Plan, PlannedPart
from shoal.execution.policies import invoked_after
from shoal.execution.pool import WarmPool
from shoal.execution.reacting import planned_machine
from shoal.execution.simulated_courier import AGAIN, Couriers, Spans, TripAnswer
from shoal.execution.simulated_platform import (
    SimulatedInvocation,
    SimulatedPlatform,
    SimulatedStart,
)
from shoal.execution.simulated_store import SimulatedStore, Values
from shoal.execution.simulated_supervisor import SimulatedSupervisor
from shoal.execution.simulated_worker import Faults, Message, SimulatedWorker
from shoal.execution.timeline import Timeline
from shoal.gc_pause import gc_paused
from shoal.types import Loss, LossReason, Resources, TaskId, WorkerId

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
            plan: What to carry out.
            costs: What everything is predicted to cost.
            pool: The platform's sandboxes, including warm ones.
            perform: Runs a task for real, so that there are `results` afterwards.
            repeats: The extra delays after which a message is seen, once or more often.
            faults: What goes wrong.
            recorded: Whether to record spans; otherwise the timeline has only a makespan.
            clock: The clock of the run, for costs that depend on the time.
            workers: How many workers may run at once; 0: as many as the pool has room for.
        """
        self.plan = plan
        self.performed: list[tuple[TaskId, WorkerId]] = []
        """Each execution in order, including copies."""
        self._costs = costs
        self._perform = perform
        self._repeats = repeats
        self._faults = faults
        self._clock = clock or VirtualClock()
        self._store = SimulatedStore(plan.workflow.calls)
        self._platform = SimulatedPlatform(pool, costs, self._clock, workers)
        self._constants = costs.constants
        named = {task: tuple(sizes) for task, sizes in self._constants.items()}
        self._common = plan.common_part(named) if plan.flexible else None
        """In a flexible plan, the part that all workers share."""
        self._workers = {part.worker: SimulatedWorker(part) for part in plan.parts(named)}
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
        self._supervisor = SimulatedSupervisor(self._clock, self._workers, self._restart, faults)

    @property
    def results(self) -> Mapping[TaskId, Any]:
        """The sinks' outputs, given `perform`."""
        return self._store.results

    @property
    def warmed(self) -> Sequence[Resources]:
        """The resources of each sandbox that a warm-up started, in order."""
        return self._platform.warmed

    def run(self) -> Timeline:
        """Carry the plan out."""
        self._after(self._costs.launch(), self._launch)
        self._clock.run()
        del self._couriers, self._supervisor  # they refer to this simulation: a cycle
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
        if self._common is not None:
            for task in self._common.roots:
                self._invoke(task, {})
            return
        for worker in self._workers.values():
            if worker.part.rooted:
                worker.claim_for_task()
                self._supervisor.launched(worker)
                self._start(worker)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + seconds, callback)

    def _invoke(self, task: TaskId, given: dict[TaskId, Any]) -> None:
        """Start a flexible worker with a task and some of its inputs, once."""
        if WorkerId(task) in self._workers or self._common is None:
            return
        worker = SimulatedWorker(self._common.begun_with(task), given=given)
        self._workers[worker.part.worker] = worker
        self._unfinished += 1
        self._restart(worker)

    def _start(self, worker: SimulatedWorker) -> None:
        """Invoke the start of a worker that was claimed last."""
        count = 1
        if self._faults is not None:
            count = self._faults.invocations(worker.part.worker)
        worker.alive = worker.alive or count > 0
        epoch = worker.epoch

        def began(start: SimulatedStart) -> None:
            kind = "warm start" if start.warm else "cold start"
            self._spans.add(kind, worker, None, start.seconds)
            self._after(start.seconds, lambda: self._begin(worker, epoch, start.sandbox))

        first = self._is_first(worker)
        self._platform.invoke(SimulatedInvocation(worker.part.resources, first, began), count)

    def _lose(self, worker: SimulatedWorker, loss: Loss) -> None:
        """Lose the worker's process and everything in its memory."""
        worker.machine = None
        worker.alive = False
        worker.parking = False
        worker.values = {}
        worker.begin(self._couriers.outbox(worker))
        self._platform.remove(worker.sandbox)
        self._spans.add("leave", worker, None, 0.0)
        if worker.done:
            self._unfinished -= 1
        elif loss.reason is not LossReason.VANISHED:
            self._supervisor.ended(worker, loss)
        self._platform.serve()

    def _restart(self, worker: SimulatedWorker) -> None:
        """Claim the next start of a worker, and invoke it."""
        worker.claim()
        self._supervisor.claimed(worker)
        self._start(worker)

    def _is_first(self, worker: SimulatedWorker) -> bool:
        """Whether the client starts the worker when it launches the run."""
        again = isinstance(worker.part, PlannedPart) and worker.epoch > 1
        return worker.part.rooted and not again

    def _begin(self, worker: SimulatedWorker, epoch: int, sandbox: int) -> None:
        if not worker.accepts(epoch) or not worker.enter(epoch):
            self._platform.release(sandbox)
            return
        self._supervisor.heard_from(worker)
        worker.sandbox, worker.began = sandbox, self._clock.now()
        worker.begin(self._couriers.outbox(worker))
        recovered = None if worker.clean(epoch) else self._recovered(worker)
        match worker.part:
            case FlexiblePart() as part:
                worker.machine = FlexibleMachine(part)
                worker.values = dict(worker.given)
                if recovered is not None:
                    self.tell(worker, Started(recovered=recovered), epoch)
                first = Arrived(TaskId(part.worker), tuple(worker.values))
                self.tell(worker, first, epoch, took=inf)
            case PlannedPart() as part:
                worker.obligations = worker.obligations or Obligations.of(part)
                worker.machine = planned_machine(part, worker.obligations)
                if recovered is None:
                    worker.values = {}
                worker.read = 0
                self.tell(worker, Started(worker.executed, recovered), epoch, took=inf)
                self._read_mail(worker)
            case _:
                assert_never(worker.part)

    def _recovered(self, worker: SimulatedWorker) -> Recovered:
        """What the store has of a lost worker."""
        started = frozenset(self._workers)
        recovered, worker.values = self._store.recovered(worker.part.worker, started)
        return recovered

    def _read_mail(self, worker: SimulatedWorker) -> None:
        unread = worker.mailbox.after(worker.read) if worker.reads else ()
        for number, (event, given) in unread:
            worker.read = number
            worker.values.update(given)
            self.tell(worker, event)
            if not worker.reads:
                return

    def tell(
        self,
        worker: SimulatedWorker,
        event: Event,
        epoch: int | None = None,
        took: float | None = None,
    ) -> None:
        """Tell a worker what happened.

        Args:
            worker: The worker.
            event: What happened.
            epoch: The start that it happened to; None: whichever is under way.
            took: Seconds of the task that the slot that reports this has run; None: no slot does.
        """
        if worker.machine is None or (epoch is not None and epoch != worker.epoch):
            return
        if self._faults is not None and not worker.machine.finished:
            part = worker.part
            loss = self._faults.loss(part.worker, part.resources.memory_mb)
            if loss is not None:
                self._lose(worker, loss)
                return
        executions: list[TaskId] = []
        for effect in worker.machine.handle(event, self._clock.now()):
            if type(effect) is Execute:
                executions.append(effect.task)
            else:
                self._carry_out(worker, effect)
        if worker.outbox.pending:
            if not worker.away:
                took = inf if took is not None and not executions else took
                worker.attended = took is not None and worker.outbox.slot_waits(took)
            self._couriers.see_to(worker)
        for task in executions:
            if worker.machine is None:
                return
            if self._is_held_up(worker, own=took is not None):
                worker.waiting = task
            else:
                self._execute(worker, task)

    def _is_held_up(self, worker: SimulatedWorker, *, own: bool) -> bool:
        """Whether a task has to wait for the slot that carries orders out.

        A slot runs the first task that it made ready by itself. Other tasks wait for it only if no
        other slot is free.
        """
        if not (worker.attended and worker.away) or worker.waiting is not None:
            return False
        return own or worker.running >= worker.part.resources.slots - 1

    def resume(self, worker: SimulatedWorker) -> None:
        """Let the slot that carried orders out run its next task."""
        task, worker.waiting = worker.waiting, None
        if task is not None:
            self._execute(worker, task)

    def _carry_out(self, worker: SimulatedWorker, effect: Effect) -> None:
        match effect:
            case (
                Fetch()
                | Save()
                | Mark()
                | Invoke()
                | Announce()
                | HandIn()
                | Park()
                | Leave()
                | Finish()
            ):
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
            case Execute():
                raise AssertionError("carried out by tell")
            case _:
                assert_never(effect)

    def arrived(
        self, worker: SimulatedWorker, trip: Trip[Values], epoch: int, sent: float
    ) -> TripAnswer | None:
        """The store has received a trip; how it answers."""
        if not worker.accepts(epoch):
            return None
        marked: list[tuple[Marked, Values]] = []
        invoked: list[tuple[Invoke, Values]] = []
        claimed: list[SimulatedWorker] = []
        for effect, given in trip.load:
            match effect:
                case Save(task):
                    self._store.saved[task] = given[task]
                case Mark(_, None):
                    marked.append(self._mark_free(worker, effect, given))
                case Mark():
                    claimed += self._mark(worker, effect, given, sent)
                case Announce(task, owner):
                    self._deliver(self._workers[owner], (Announced((task,)), {}))
                case Invoke():
                    invoked.append((effect, given))

        stays = any([event.claimed or event.refused for event, _ in marked])
        self._supervisor.heard_from(worker)
        if trip.leaving and not stays:
            worker.finish(epoch)
            self._supervisor.left(worker)
        return TripAnswer(
            lambda: self._start_all(claimed, invoked),
            bool(claimed or invoked),
            lambda: self._answer_marks(worker, marked, epoch, sent),
            stays,
        )

    def _start_all(
        self, claimed: Sequence[SimulatedWorker], invoked: Sequence[tuple[Invoke, Values]]
    ) -> None:
        """Start planned workers at once, and flexible ones one after the other.

        If there are many of those, the fan-out invoker does it.
        """
        for worker in claimed:
            self._after(0.0, lambda w=worker: self._start(w))  # type: ignore[misc]
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

    def _execute(self, worker: SimulatedWorker, task: TaskId) -> None:
        sources = self.plan.workflow.upstream[task]
        input_nbytes = sum([self._nbytes[source] for source in sources])
        constants = self._constants.get(task)
        if constants:
            input_nbytes += sum(constants.values())
        seconds = self._costs.execution(task, input_nbytes, worker.part.resources)
        nbytes = self._costs.output_nbytes(task, input_nbytes)
        self._nbytes[task] = nbytes
        worker.running += 1
        self._spans.add("execute", worker, task, seconds, nbytes)
        self.performed.append((task, worker.part.worker))
        returned = None
        if self._perform is not None:
            inputs = {source: worker.values[source] for source in sources}
            returned = self._perform(task, inputs)
        epoch = worker.epoch

        def executed() -> None:
            if worker.epoch == epoch:
                worker.running -= 1
                worker.values[task] = returned
                self.tell(worker, Executed(task, nbytes), took=seconds)

        self._after(seconds, executed)

    def _mark(
        self, worker: SimulatedWorker, mark: Mark, values: Values, sent: float
    ) -> Sequence[SimulatedWorker]:
        """Mark a task of another worker; return that worker if the sender has to start it."""
        found = self._store.mark(mark, values, worker.part.worker)
        if found is None or mark.owner is None:
            return ()
        owner = self._workers[mark.owner]
        self._deliver(owner, (Arrived(mark.task, tuple(found)), found), sent)
        if not owner.claim_for_task():
            return ()
        self._supervisor.claimed(owner)
        return (owner,)

    def _mark_free(
        self, worker: SimulatedWorker, mark: Mark, values: Values
    ) -> tuple[Marked, Values]:
        """Mark a task that goes to whichever worker marks it last."""
        found = self._store.mark(mark, values, worker.part.worker)
        last, given = found is not None, found or {}
        refused = mark.held is not None and not last
        return Marked(mark.task, TaskId(mark.producer or ""), last, tuple(given), refused), given

    def _answer_marks(
        self,
        worker: SimulatedWorker,
        marked: Sequence[tuple[Marked, Values]],
        epoch: int,
        sent: float,
    ) -> None:
        for event, given in marked:
            delay = min(self._repeats())
            if delay:
                self._after(
                    delay,
                    lambda e=event, g=given: self._answer_mark(worker, e, g, epoch, sent),  # type: ignore[misc]
                )
            else:
                self._answer_mark(worker, event, given, epoch, sent)

    def _answer_mark(
        self,
        worker: SimulatedWorker,
        event: Marked,
        given: dict[TaskId, Any],
        epoch: int,
        sent: float,
    ) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            if event.claimed:
                self._came(worker, event.task, sent)
            worker.values.update(given)
            self.tell(worker, event)

    def _came(self, worker: SimulatedWorker, task: TaskId, sent: float) -> None:
        """Record a message's delivery; one sent before the worker began doesn't show its delay."""
        if worker.reads and sent > worker.began:
            now = self._clock.now()
            self._spans.add("deliver", worker, task, now - sent, after=sent - now)

    def _deliver(
        self, worker: SimulatedWorker, message: Message, sent: float | None = None
    ) -> None:
        """Put a message into a mailbox; the worker sees it at once, or late and repeatedly."""
        worker.mailbox.append(message)
        late, *again = self._repeats()
        self._after(late, lambda: self._seen(worker, message, sent))
        for delay in again:
            self._after(delay, lambda: self._repeat(worker, message))

    def _seen(self, worker: SimulatedWorker, message: Message, sent: float | None) -> None:
        event, _ = message
        if isinstance(event, Arrived) and sent is not None:
            self._came(worker, event.task, sent)
        self._read_mail(worker)

    def _repeat(self, worker: SimulatedWorker, message: Message) -> None:
        """Let a message come once more; the machine has to ignore it."""
        worker.mailbox.append(message)
        self._read_mail(worker)

    def handed_in(self, task: TaskId, value: Any) -> None:
        """The client has the output of a sink."""
        self._store.results[task] = self._store.saved.get(task, value)
        self._missing_sinks.discard(task)
        if not self._missing_sinks:
            self._makespan = max(self._makespan, self._clock.now())

    def finished(self, worker: SimulatedWorker) -> None:
        """A worker has sent everything, and its sandbox is idle."""
        self._unfinished -= 1
        self._supervisor.left(worker)
        self._platform.release(worker.sandbox)

    def parked(self, worker: SimulatedWorker, park: Park, epoch: int) -> None:
        """Let a worker leave, unless it has mail."""
        if worker.machine is None or worker.epoch != epoch:
            return
        worker.parking = worker.away = False
        if worker.mailbox.last > worker.read and not park.again:
            self.tell(worker, MailCame())
            self._read_mail(worker)
            return
        self._supervisor.left(worker)
        worker.executed = park.executed
        worker.machine = None
        sandbox = worker.sandbox
        late = AGAIN if self._couriers.interrupted else 0.0
        self._after(late, lambda: self._platform.release(sandbox))
        if park.again:
            worker.hand_over(epoch)
            self._supervisor.claimed(worker)
            self._start(worker)
        else:
            worker.park(epoch)


def simulate(
    plan: Plan,
    costs: Costs,
    pool: WarmPool[Resources] | None = None,
    clock: VirtualClock | None = None,
    *,
    workers: int = 0,
) -> Timeline:
    """Predict the timeline of a plan; the parameters are those of `Simulation`."""
    with gc_paused():  # a simulation creates much that lives on, and no garbage
        return Simulation(plan, costs, pool or WarmPool(), clock=clock, workers=workers).run()


def makespan_of(
    plan: Plan,
    costs: Costs,
    pool: WarmPool[Resources] | None = None,
    clock: VirtualClock | None = None,
    *,
    workers: int = 0,
) -> float:
    """Predict the makespan of a plan; faster than a whole timeline."""
    simulation = Simulation(
        plan, costs, pool or WarmPool(), clock=clock, recorded=False, workers=workers
    )
    with gc_paused():
        return simulation.run().makespan
