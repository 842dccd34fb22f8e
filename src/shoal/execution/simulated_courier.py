"""`Couriers`: carry out what each simulated worker's outbox decides, on the virtual clock.

1. A courier does one step at a time: it fetches, saves into shared memory, makes a round trip, or
   asks to park.
2. A trip takes as long as saving the outputs it carries, or else as long as a message. Then the
   store has everything, and its answer is back. If workers are to be started, the courier first
   asks the gateway for them.
3. A nearby store is on the workers' machine, so they share memory.
4. When the store restarts, it has done what it was asked to do but hasn't answered. The courier
   asks again, and gets the same answer.
5. The client gets an output that a worker hands in even if the worker is lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from shoal.clock import VirtualClock
from shoal.execution.costs import Costs, Direction, Elastic, Separate
from shoal.execution.effects import Effect, Fetch, HandIn, Invoke, Mark, Park, Save
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.outbox import FETCH_AGAIN, REMOTE, Order, Outbox, Trip, shared_room
from shoal.execution.simulated_store import SimulatedStore, Values
from shoal.execution.simulated_worker import Faults, SimulatedWorker
from shoal.execution.timeline import Span
from shoal.types import TaskId

OnReply = Callable[[], None]
"""Acts on the store's answer."""

_UNTIMED = -1.0
"""When a message was sent that doesn't show how long messages take."""
_TRIES = 3
"""Messages that show whether the store is remote; a single one may be late by chance."""
AGAIN = 0.1
"""Seconds after which a courier repeats a request that a restarting store didn't answer."""


class TripAnswer(NamedTuple):
    """What the store answers to a trip."""

    start: OnReply
    """Starts the workers that the trip invokes."""
    starting: bool
    """Whether the gateway has to be asked for any worker."""
    tell: OnReply
    """Tells the sender about its marks."""
    stays: bool
    """Whether the sender has more to do."""


class SimulatedRun(Protocol):
    """The simulated run, as its couriers see it."""

    def tell(self, worker: SimulatedWorker, event: Event, epoch: int | None = None) -> None:
        """Tell a worker, or one of its starts, what happened."""
        ...

    def resume(self, worker: SimulatedWorker) -> None:
        """Let the slot that carried orders out run its next task."""
        ...

    def arrived(
        self, worker: SimulatedWorker, trip: Trip[Values], epoch: int, sent: float
    ) -> TripAnswer | None:
        """The store has received a trip; None if it refuses it."""
        ...

    def handed_in(self, task: TaskId, value: Any) -> None:
        """The client has the output of a sink."""
        ...

    def parked(self, worker: SimulatedWorker, park: Park, epoch: int) -> None:
        """The store answers whether a worker may park."""
        ...

    def finished(self, worker: SimulatedWorker) -> None:
        """A worker has sent everything, and its sandbox is idle."""
        ...


class Spans:
    """The timeline of a simulated run, if it is wanted."""

    def __init__(self, clock: VirtualClock, *, wanted: bool) -> None:
        self._clock = clock
        self._wanted = wanted
        self.found: list[Span] = []

    def add(
        self,
        kind: str,
        worker: SimulatedWorker,
        task: TaskId | None,
        seconds: float,
        nbytes: int = 0,
        *,
        after: float = 0.0,
    ) -> None:
        """Record what a worker does, beginning so many seconds from now."""
        if self._wanted:
            start = self._clock.now() + after
            name = worker.part.worker
            self.found.append(Span(kind, name, task, start, start + seconds, 0.0, nbytes))


class Couriers:
    """The couriers of all workers of a run."""

    def __init__(
        self,
        run: SimulatedRun,
        costs: Costs,
        clock: VirtualClock,
        store: SimulatedStore,
        spans: Spans,
        nbytes: dict[TaskId, int],
        faults: Faults | None,
    ) -> None:
        """Prepare them.

        Args:
            run: The run that they work for.
            costs: What their steps cost.
            clock: Tells the time.
            store: Holds the outputs that they fetch and save.
            spans: Records what they do.
            nbytes: The sizes of all outputs and constants so far.
            faults: What goes wrong.
        """
        self._latency = min([costs.coordination() for _ in range(_TRIES)])
        self._run = run
        self._costs = costs
        self._elastic = costs if isinstance(costs, Elastic) else None
        self._one_by_one = isinstance(costs, Separate) and costs.one_by_one
        self._clock = clock
        self._store = store
        self._spans = spans
        self._nbytes = nbytes
        self._faults = faults
        self._delays: dict[TaskId, float] = {}
        """How long marks of each task take. Samples of messages are of the last mark of each task,
        so all marks of a task take as long as its first."""

    @property
    def interrupted(self) -> bool:
        """Whether the store is restarting."""
        return self._faults is not None and self._faults.interrupts()

    def outbox(self, worker: SimulatedWorker) -> Outbox[Values]:
        """An outbox for a start of a worker."""
        near = self._latency <= REMOTE
        return Outbox(self._latency, shared_room(worker.part.resources) if near else 0)

    def order(self, worker: SimulatedWorker, effect: Effect) -> None:
        """Put an order into a worker's outbox, with the values that it has now."""
        given: Values = {}
        match effect:
            case Mark() | Invoke():
                given = worker.taken(effect.inline)
            case Save(task) | HandIn(task):
                given = worker.taken((task,))
            case Park():
                worker.parking = True
        worker.outbox.add(effect, given)

    def see_to(self, worker: SimulatedWorker) -> None:
        """Take a worker's next steps, unless its courier is busy."""
        if worker.away:
            return
        worker.away = True
        while (step := worker.outbox.next(self._clock.now())) is not None:
            if self._begin(worker, step):
                return
        worker.away = False
        if worker.outbox.finished:
            self._run.finished(worker)
        elif worker.waiting is not None:
            self._run.resume(worker)

    def _begin(self, worker: SimulatedWorker, step: Order[Values] | Trip[Values]) -> bool:
        """Begin a step; whether it takes time."""
        if isinstance(step, Trip):
            self._depart(worker, step)
            return True
        effect = step.effect
        if isinstance(effect, Fetch):
            return self._fetch(worker, effect)
        if isinstance(effect, Save):
            return self._save(worker, step, effect.task)
        assert isinstance(effect, Park)
        epoch = worker.epoch
        self._after(self._costs.coordination(), lambda: self._run.parked(worker, effect, epoch))
        return True

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + seconds, callback)

    def _back(self, worker: SimulatedWorker, epoch: int) -> None:
        """A step is done."""
        if worker.machine is not None and worker.epoch == epoch:
            worker.away = False
            self.see_to(worker)

    def _depart(self, worker: SimulatedWorker, trip: Trip[Values]) -> None:
        epoch = worker.epoch
        if trip.closing is not None and not trip.leaving:
            self._spans.add("leave", worker, None, 0.0)
        if trip.saves:
            outputs = tuple(trip.saves)
            self._move("save", worker, outputs, lambda: self._post(worker, trip, epoch))
        else:
            self._post(worker, trip, epoch)

    def _post(self, worker: SimulatedWorker, trip: Trip[Values], epoch: int) -> None:
        """Send the messages of a trip; they arrive at once if outputs have travelled with them."""
        for effect, given in trip.load:
            if type(effect) is HandIn and worker.accepts(epoch):
                self._hand_in(worker, effect.task, given[effect.task])
        sent = _UNTIMED if trip.saves else self._clock.now()
        delay = 0.0 if trip.saves else self._delay(trip)
        self._after(delay, lambda: self._arrive(worker, trip, epoch, sent))

    def _hand_in(self, worker: SimulatedWorker, task: TaskId, value: Any) -> None:
        """Give the client an output: a small one by message, otherwise the client fetches it."""
        seconds = self._costs.hand_in(self._nbytes[task], worker.part.resources)
        self._after(seconds, lambda: self._run.handed_in(task, value))

    def _arrive(self, worker: SimulatedWorker, trip: Trip[Values], epoch: int, sent: float) -> None:
        answer = self._run.arrived(worker, trip, epoch, sent)
        if answer is not None:
            self._answer(worker, trip, epoch, answer)

    def _answer(
        self, worker: SimulatedWorker, trip: Trip[Values], epoch: int, answer: TripAnswer
    ) -> None:
        """The store answers, once it has been asked while it isn't restarting."""
        if self.interrupted:
            self._after(AGAIN, lambda: self._answer(worker, trip, epoch, answer))
            return
        seconds = self._clock.now() - trip.departed
        answer.start()
        if answer.starting:
            gateway = self._costs.coordination()
            self._after(gateway, lambda: self._return(worker, trip, epoch, seconds, answer))
        else:
            self._return(worker, trip, epoch, seconds, answer)

    def _return(
        self,
        worker: SimulatedWorker,
        trip: Trip[Values],
        epoch: int,
        seconds: float,
        answer: TripAnswer,
    ) -> None:
        if worker.machine is None or worker.epoch != epoch:
            return
        worker.outbox.back(trip, seconds, stays=answer.stays)
        if worker.outbox.left:
            self._spans.add("leave", worker, None, 0.0, after=trip.departed - self._clock.now())
        answer.tell()
        self._back(worker, epoch)

    def _delay(self, trip: Trip[Values]) -> float:
        """How long the messages of a trip take."""
        marked = [effect.task for effect, _ in trip.load if type(effect) is Mark]
        known = [self._delays[task] for task in marked if task in self._delays]
        delay = known[0] if known else self._costs.coordination()
        for task in marked:
            self._delays.setdefault(task, delay)
        return delay

    def _save(self, worker: SimulatedWorker, order: Order[Values], task: TaskId) -> bool:
        """Save into shared memory, or load for the next trip; whether it takes time."""
        if not worker.outbox.share(self._nbytes[task]):
            worker.outbox.load(order, task)
            self._run.tell(worker, Saved(task))
            return False
        epoch = worker.epoch

        def saved() -> None:
            if worker.machine is not None and worker.epoch == epoch:
                self._store.saved[task] = order.given[task]
                self._run.tell(worker, Saved(task))
                self._back(worker, epoch)

        self._move("save", worker, (task,), saved)
        return True

    def _fetch(self, worker: SimulatedWorker, fetch: Fetch) -> bool:
        """Fetch outputs, later if they aren't there yet; whether it takes time."""
        epoch, outputs = worker.epoch, fetch.outputs
        if not self._store.has(outputs):
            self._after(FETCH_AGAIN, lambda: self._fetch_again(worker, fetch, epoch))
            return False
        for output in outputs:
            worker.values[output] = self._store.saved.get(output)

        def fetched() -> None:
            self._run.tell(worker, Fetched(outputs), epoch)
            self._back(worker, epoch)

        if self._one_by_one:
            self._fetch_each(worker, outputs, fetched)
        else:
            self._move("fetch", worker, outputs, fetched)
        return True

    def _fetch_each(
        self, worker: SimulatedWorker, outputs: tuple[TaskId, ...], then: Callable[[], None]
    ) -> None:
        """Fetch outputs one after the other."""
        if not outputs:
            then()
            return
        first, rest = outputs[:1], outputs[1:]
        self._move("fetch", worker, first, lambda: self._fetch_each(worker, rest, then))

    def _fetch_again(self, worker: SimulatedWorker, fetch: Fetch, epoch: int) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            worker.outbox.add(fetch, {})
            self.see_to(worker)

    def _move(
        self,
        direction: Direction,
        worker: SimulatedWorker,
        outputs: tuple[TaskId, ...],
        then: Callable[[], None],
    ) -> None:
        """Move outputs in one transfer, which is recorded for the first of them."""
        begin, nbytes = self._clock.now(), sum([self._nbytes[output] for output in outputs])
        seconds = self._costs.transfer_of(outputs[0], direction, nbytes, worker.part.resources)

        def moved() -> None:
            more = self._elastic.overtime() if self._elastic else 0.0
            if more:
                self._after(more, moved)
                return
            took = self._clock.now() - begin
            self._spans.add(direction, worker, outputs[0], took, nbytes, after=-took)
            for output in outputs[1:]:
                self._spans.add(direction, worker, output, 0.0)
            then()

        self._after(seconds, moved)
