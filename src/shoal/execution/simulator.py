"""`simulate`: a plan carried out on the virtual clock by the very machines that workers run.

Each effect is answered after its predicted cost. What a worker wants of others it asks for as its
courier does, beside its executions: in the order given, and all that is ready to go in one trip. If
the store is far, that trip is all there is. If it is near, outputs are there before the messages
about them leave, the worker's only slot sees to that before it goes on, and nobody waits for an
answer. Given `perform`, values flow along too, through the same saving, fetching and forgetting as
in a real run, so that a test can compare them with a sequential evaluation. Who invokes workers
does so one after the other; the fan-out invoker hands on to others like it. Given `faults`, workers
and invocations are lost, and start again a lease later with what the store has of them; what a lost
start still had on its way counts until then. And the store restarts: what it was asked for has
happened, but nobody was told, and asks again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from shoal.clock import VirtualClock
from shoal.errors import WorkflowError
from shoal.execution.costs import FAR, Costs, Direction, Elastic
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
from shoal.execution.simulated_worker import Faults, Order, Trip, Worker
from shoal.execution.timeline import Span, Timeline
from shoal.types import Resources, TaskId, WorkerId

Perform = Callable[[TaskId, Mapping[TaskId, Any]], Any]
"""Runs a task, given the outputs of its upstream tasks."""

_Reply = Callable[[], None]
"""Tells a worker what the store answers."""

_TRIES = 3
"""Messages that tell whether the store is far: one may be late for once."""
_UNTOLD = -1.0
"""When a message was sent that says nothing of how long messages take."""
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
        clock: VirtualClock | None = None,
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
        """
        self.plan = plan
        self.performed: list[tuple[TaskId, WorkerId]] = []
        """Each execution, copies too, in order."""
        self._costs = costs
        self._perform = perform
        self._repeats = repeats
        self._faults = faults
        self._recorded = recorded
        self._clock = clock or VirtualClock()
        self._store = SimulatedStore()
        self._elastic = costs if isinstance(costs, Elastic) else None
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
        self._far = min([costs.coordination() for _ in range(_TRIES)]) > FAR
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
        worker.forget_orders()
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
        worker.away, worker.saving = False, 0.0
        worker.forget_orders()
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
        executions: list[TaskId] = []
        for effect in worker.machine.handle(event, self._clock.now()):
            if type(effect) is Execute:
                executions.append(effect.task)
            else:
                self._carry_out(worker, effect)
        if worker.orders:
            self._see_to_orders(worker)
        for task in executions:
            if worker.machine is not None:
                self._execute(worker, task)

    def _carry_out(self, worker: Worker, effect: Effect) -> None:
        match effect:
            case Mark() | Invoke() | Save() | HandIn() | Park() | Fetch() | Announce() | Finish():
                self._order(worker, effect)
            case WarmUp(resources, count):
                self._after(
                    self._costs.coordination(), lambda: self._platform.warm_up(resources, count)
                )
            case Forget(outputs):
                for output in outputs:
                    worker.values.pop(output, None)
            case SetTimer(timer, seconds):
                epoch = worker.epoch
                self._after(seconds, lambda: self._tell(worker, TimerFired(timer), epoch))
            case Abort(task):
                raise WorkflowError(f"The simulated task {task!r} failed.")
            case Leave():
                worker.leaving = not (self._far and worker.saves)
            case Execute():
                raise AssertionError("carried out by _tell")
            case _:
                assert_never(effect)

    def _order(self, worker: Worker, effect: Effect) -> None:
        """Have the courier do something, with the values that there are now."""
        given: dict[TaskId, Any] = {}
        match effect:
            case Mark() | Invoke():
                given = worker.taken(effect.inline)
                if isinstance(effect, Mark) and effect.owner is None:
                    worker.asked.add((effect.task, effect.producer))
            case Save(task) | HandIn(task):
                given = worker.taken((task,))
            case Park():
                worker.parking = True
        worker.orders.append((effect, given))

    def _see_to_orders(self, worker: Worker) -> None:
        """What a worker's courier does, unless it is away."""
        if worker.away:
            return
        worker.away = True
        while worker.orders:
            order = worker.orders.popleft()
            effect = order[0]
            if type(effect) is Fetch:
                if self._fetch(worker, effect):
                    return
                continue
            worker.load.append(order)
            if type(effect) is Save:  # it will be there before any mark
                self._tell(worker, Saved(effect.task))
        worker.away = False
        if worker.load:
            self._depart(worker)

    def _back(self, worker: Worker, epoch: int) -> None:
        """The courier of a start is free again."""
        if worker.machine is not None and worker.epoch == epoch:
            worker.away = False
            self._see_to_orders(worker)

    def _depart(self, worker: Worker) -> None:
        """Send what is ready."""
        load, worker.load = worker.load, []
        saves = tuple([effect.task for effect, _ in load if type(effect) is Save])
        if self._far and saves and isinstance(load[-1][0], Finish | Park):
            worker.load = [load.pop()]  # a timeline can't tell of what is saved by the same trip
        trip = Trip(worker, load, worker.epoch, worker.sandbox, load[-1][0])
        if type(trip.last) is Finish and len(load) == 1 and (worker.left or not self._far):
            self._leave(worker, worker.departed if worker.left else self._clock.now())
            self._return(trip)
            return
        worker.departed = worker.saving = self._clock.now()
        if type(trip.last) is Finish or type(trip.last) is Park:
            self._leave(worker, worker.departed)
        worker.away = True
        if saves:
            worker.saving += self._move("save", worker, saves, lambda: self._post(trip, _UNTOLD))
        else:
            self._post(trip, worker.departed)

    def _post(self, trip: Trip, sent: float) -> None:
        """The outputs of a trip, if any, are there; the rest of it is messages."""
        for effect, given in trip.load:
            if type(effect) is HandIn:
                self._hand_in(trip.worker, effect, given)
        if self._far and sent == _UNTOLD:  # they came along
            self._ask(0.0, lambda: self._arrive(trip, sent))
        else:
            now = self._clock.now()
            self._ask(self._way(trip.load), lambda: self._arrive(trip, now))
        if not self._far:
            self._return(trip)

    def _way(self, load: Sequence[Order]) -> float:
        """How long a message is on its way."""
        marked = [effect.task for effect, _ in load if type(effect) is Mark]
        known = [self._ways[task] for task in marked if task in self._ways]
        way = known[0] if known else self._costs.coordination()
        for task in marked:
            self._ways.setdefault(task, way)
        return way

    def _arrive(self, trip: Trip, sent: float) -> _Reply | None:
        """The store has what was sent; how it answers."""
        worker, epoch = trip.worker, trip.epoch
        if epoch <= worker.refused:
            return None
        replies: list[_Reply] = []
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
            if invoked:
                self._invoke_all(invoked)
            if self._far:
                self._return(trip, starting=starting or bool(invoked))

        return answer

    def _return(self, trip: Trip, *, starting: bool = False) -> None:
        """The courier is back; it may have to ask the gateway for workers, or to be let go."""
        worker, last, epoch = trip.worker, trip.last, trip.epoch
        parking = type(last) is Park
        more = self._costs.coordination() if starting or parking else 0.0
        if type(last) is Finish:
            self._unfinished -= 1
            self._after(more, lambda: self._platform.release(trip.sandbox))
        elif isinstance(last, Park):
            self._after(more, lambda: self._park(worker, last, epoch))
        elif more:
            self._after(more, lambda: self._back(worker, epoch))
        else:
            self._back(worker, epoch)

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
        if worker.part.resources.slots == 1 and not self._far:
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

    def _fetch(self, worker: Worker, fetch: Fetch) -> bool:
        """Fetch outputs, if they are there; whether the courier is under way."""
        calls, epoch, outputs = self.plan.workflow.calls, worker.epoch, fetch.outputs
        if any([o in calls and o not in self._store.saved for o in outputs]):
            self._after(_AGAIN, lambda: self._fetch_again(worker, fetch, epoch))
            return False
        for output in outputs:
            worker.values[output] = self._store.saved.get(output)

        def fetched() -> None:
            self._tell(worker, Fetched(outputs), epoch)
            self._back(worker, epoch)

        self._move("fetch", worker, outputs, fetched)
        return True

    def _fetch_again(self, worker: Worker, fetch: Fetch, epoch: int) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            worker.orders.append((fetch, {}))
            self._see_to_orders(worker)

    def _move(
        self,
        direction: Direction,
        worker: Worker,
        outputs: tuple[TaskId, ...],
        then: Callable[[], None],
    ) -> float:
        """Move outputs; in how many seconds, if nothing comes in between.

        It is one transfer, which is told of the first.
        """
        begin, nbytes = self._clock.now(), sum([self._nbytes[output] for output in outputs])
        seconds = self._costs.transfer(direction, nbytes, worker.part.resources)

        def moved() -> None:
            more = self._elastic.overtime() if self._elastic else 0.0
            if more:
                self._after(more, moved)
                return
            took = self._clock.now() - begin
            self._span(direction, worker, outputs[0], took, nbytes, after=-took)
            for output in outputs[1:]:
                self._span(direction, worker, output, 0.0)
            then()

        self._after(seconds, moved)
        return seconds

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
    ) -> _Reply:
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

    def _announce(self, task: TaskId, owner: WorkerId) -> None:
        for delay in self._repeats():
            self._after(delay, lambda: self._put(self._workers[owner], Announced((task,)), {}))

    def _put(self, worker: Worker, message: Arrived | Announced, given: dict[TaskId, Any]) -> None:
        worker.mailbox.append(message)
        worker.given.append(given)
        self._read_mail(worker)

    def _hand_in(self, worker: Worker, effect: HandIn, given: dict[TaskId, Any]) -> None:
        """The client gets what is small with the message, and fetches what was saved."""
        task, epoch = effect.task, worker.epoch
        seconds = self._costs.hand_in(self._nbytes[task], worker.part.resources)

        def handed_in() -> None:
            if epoch <= worker.refused:
                return
            self._store.results[task] = self._store.saved.get(task, given[task])
            self._missing_sinks.discard(task)
            if not self._missing_sinks:
                self._makespan = max(self._makespan, self._clock.now())

        self._ask(seconds, handed_in)

    def _park(self, worker: Worker, park: Park, epoch: int) -> None:
        if worker.machine is None or worker.epoch != epoch:
            return
        worker.parking = worker.away = False
        if worker.read < len(worker.mailbox) and not park.again:
            self._tell(worker, MailCame())
            self._read_mail(worker)
            return
        worker.executed = park.executed
        worker.started = worker.lost = False
        worker.machine = None
        sandbox = worker.sandbox
        self._after(_AGAIN if self._interrupted() else 0.0, lambda: self._platform.release(sandbox))
        if park.again:
            self._start(worker)

    def _leave(self, worker: Worker, when: float) -> None:
        self._span("leave", worker, None, 0.0, after=when - self._clock.now())

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


def simulate(
    plan: Plan,
    costs: Costs,
    pool: WarmPool[Resources] | None = None,
    clock: VirtualClock | None = None,
) -> Timeline:
    """The timeline that a plan is predicted to have."""
    return _uncollected(Simulation(plan, costs, pool or WarmPool(), clock=clock))


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
