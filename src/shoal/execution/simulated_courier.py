"""`Couriers`: how the workers of a simulated run get to the store and back.

1. A worker's courier carries orders out in the order given, beside the worker's executions, and is
   away while it fetches. All that is ready to go travels in one trip.
2. If the store is far, outputs and messages arrive together; then the courier asks the gateway for
   the workers that are to be started, and only then is it back. A timeline can't tell of what is
   saved by the same trip, and follows it.
3. If the store is near, outputs are there before the messages about them leave, and nobody waits
   for an answer.
4. The store restarts: what it was asked for has happened, but nobody was told, and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from shoal.clock import VirtualClock
from shoal.execution.costs import FAR, Costs, Direction, Elastic
from shoal.execution.effects import Effect, Fetch, Finish, HandIn, Invoke, Mark, Park, Save
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.simulated_store import SimulatedStore
from shoal.execution.simulated_worker import Faults, Order, Trip, Worker
from shoal.execution.timeline import Span
from shoal.types import TaskId

Reply = Callable[[], None]
"""Tells a worker what the store answers."""

_UNTOLD = -1.0
"""When a message was sent that says nothing of how long messages take."""
_TRIES = 3
"""Messages that tell whether the store is far: one may be late for once."""
AGAIN = 0.1
"""Seconds after which the store is asked once more, for what wasn't there yet or unanswered."""


class Answer(NamedTuple):
    """What the store says to a trip."""

    reply: Reply
    starting: bool
    """Whether there are workers to be started."""


class Run(Protocol):
    """The simulated run, as its couriers see it."""

    def tell(self, worker: Worker, event: Event, epoch: int | None = None) -> None:
        """Something happened to a worker, or to one of its starts."""
        ...

    def arrived(self, trip: Trip, sent: float) -> Answer | None:
        """The store has what was sent; None if it takes nothing more of that start."""
        ...

    def handed_in(self, trip: Trip, task: TaskId, value: Any) -> None:
        """The client has the output of a sink."""
        ...

    def parked(self, worker: Worker, park: Park, epoch: int) -> None:
        """The store answers whether a worker may leave."""
        ...

    def finished(self, trip: Trip, after: float) -> None:
        """A start has told all; its sandbox is free after a while."""
        ...


class Spans:
    """The timeline of a simulated run, as far as it is wanted."""

    def __init__(self, clock: VirtualClock, *, wanted: bool) -> None:
        self._clock = clock
        self._wanted = wanted
        self.found: list[Span] = []

    def add(
        self, kind: str, worker: Worker, task: TaskId | None, seconds: float, nbytes: int = 0,
        *, after: float = 0.0,
    ) -> None:  # fmt: skip
        """A worker does something from now on, or from then."""
        if self._wanted:
            start = self._clock.now() + after
            name = worker.part.worker
            self.found.append(Span(kind, name, task, start, start + seconds, 0.0, nbytes))


class Couriers:
    """Those of all workers of a run."""

    def __init__(
        self,
        run: Run,
        costs: Costs,
        clock: VirtualClock,
        store: SimulatedStore,
        spans: Spans,
        nbytes: dict[TaskId, int],
        faults: Faults | None,
    ) -> None:
        """Be ready.

        Args:
            run: What they work for.
            costs: What their ways cost.
            clock: Which tells the time.
            store: Where they go.
            spans: Where what they do is recorded.
            nbytes: The sizes of all outputs and constants that there are.
            faults: What goes wrong.
        """
        self.far = min([costs.coordination() for _ in range(_TRIES)]) > FAR
        """Whether the store is."""
        self._run = run
        self._costs = costs
        self._elastic = costs if isinstance(costs, Elastic) else None
        self._clock = clock
        self._store = store
        self._spans = spans
        self._nbytes = nbytes
        self._faults = faults
        self._ways: dict[TaskId, float] = {}
        """How long marks of each task are on their way. What is known of messages tells of the
        last mark of each task, so the first one's time counts for all."""

    @property
    def interrupted(self) -> bool:
        """Whether the store restarts just now."""
        return self._faults is not None and self._faults.interrupts()

    def order(self, worker: Worker, effect: Effect) -> None:
        """Have something done, with the values that there are now."""
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

    def see_to(self, worker: Worker) -> None:
        """Carry a worker's orders out, unless its courier is away."""
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
                self._run.tell(worker, Saved(effect.task))
        worker.away = False
        if worker.load:
            self._depart(worker)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + seconds, callback)

    def _ask(self, seconds: float, operation: Callable[[], Reply | None]) -> None:
        """Have the store do something after a while; `operation` returns how it is answered."""

        def asked() -> None:
            reply = operation()
            if self.interrupted:
                self._ask(AGAIN, operation)
            elif reply is not None:
                reply()

        self._after(seconds, asked)

    def _back(self, worker: Worker, epoch: int) -> None:
        """The courier of a start is free again."""
        if worker.machine is not None and worker.epoch == epoch:
            worker.away = False
            self.see_to(worker)

    def _depart(self, worker: Worker) -> None:
        """Send what is ready."""
        load, worker.load = worker.load, []
        saves = tuple([effect.task for effect, _ in load if type(effect) is Save])
        if self.far and saves and isinstance(load[-1][0], Finish | Park):
            worker.load = [load.pop()]
        trip = Trip(worker, load, worker.epoch, worker.sandbox, load[-1][0])
        if type(trip.last) is Finish and len(load) == 1 and (worker.left or not self.far):
            self._leave(worker, worker.departed if worker.left else self._clock.now())
            self._return(trip)
            return
        worker.departed = worker.saving = self._clock.now()
        if type(trip.last) is Finish or type(trip.last) is Park:
            self._leave(worker, worker.departed)
        worker.away = True
        if saves:
            worker.saving += self._move(
                "save", worker, saves, lambda: self._post(trip, along=self.far)
            )
        else:
            self._post(trip)

    def _leave(self, worker: Worker, when: float) -> None:
        self._spans.add("leave", worker, None, 0.0, after=when - self._clock.now())

    def _post(self, trip: Trip, *, along: bool = False) -> None:
        """Send the messages of a trip, unless they came along with its outputs."""
        for effect, given in trip.load:
            if type(effect) is HandIn:
                self._hand_in(trip, effect.task, given)
        sent = _UNTOLD if along else self._clock.now()
        self._ask(0.0 if along else self._way(trip.load), lambda: self._arrive(trip, sent))
        if not self.far:
            self._return(trip)

    def _arrive(self, trip: Trip, sent: float) -> Reply | None:
        found = self._run.arrived(trip, sent)
        if found is None:
            return None
        reply, starting = found

        def answer() -> None:
            reply()
            if self.far:
                self._return(trip, starting=starting)

        return answer

    def _way(self, load: Sequence[Order]) -> float:
        """How long a message is on its way."""
        marked = [effect.task for effect, _ in load if type(effect) is Mark]
        known = [self._ways[task] for task in marked if task in self._ways]
        way = known[0] if known else self._costs.coordination()
        for task in marked:
            self._ways.setdefault(task, way)
        return way

    def _return(self, trip: Trip, *, starting: bool = False) -> None:
        """The courier is back; it may have to ask the gateway for workers, or to be let go."""
        worker, last, epoch = trip.worker, trip.last, trip.epoch
        more = self._costs.coordination() if starting or type(last) is Park else 0.0
        if type(last) is Finish:
            self._run.finished(trip, more)
        elif isinstance(last, Park):
            self._after(more, lambda: self._run.parked(worker, last, epoch))
        elif more:
            self._after(more, lambda: self._back(worker, epoch))
        else:
            self._back(worker, epoch)

    def _hand_in(self, trip: Trip, task: TaskId, given: dict[TaskId, Any]) -> None:
        """The client gets what is small with the message, and fetches what was saved."""
        seconds = self._costs.hand_in(self._nbytes[task], trip.worker.part.resources)
        self._ask(seconds, lambda: self._run.handed_in(trip, task, given[task]))

    def _fetch(self, worker: Worker, fetch: Fetch) -> bool:
        """Fetch outputs, if they are there; whether the courier is under way."""
        epoch, outputs = worker.epoch, fetch.outputs
        if not self._store.has(outputs):
            self._after(AGAIN, lambda: self._fetch_again(worker, fetch, epoch))
            return False
        for output in outputs:
            worker.values[output] = self._store.saved.get(output)

        def fetched() -> None:
            self._run.tell(worker, Fetched(outputs), epoch)
            self._back(worker, epoch)

        self._move("fetch", worker, outputs, fetched)
        return True

    def _fetch_again(self, worker: Worker, fetch: Fetch, epoch: int) -> None:
        if worker.machine is not None and worker.epoch == epoch:
            worker.orders.append((fetch, {}))
            self.see_to(worker)

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
            self._spans.add(direction, worker, outputs[0], took, nbytes, after=-took)
            for output in outputs[1:]:
                self._spans.add(direction, worker, output, 0.0)
            then()

        self._after(seconds, moved)
        return seconds
