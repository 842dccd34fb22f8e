"""`Outbox`: decides what a worker sends, what travels together, and when it leaves.

A worker's machine puts orders in. Its courier takes steps out and finishes each before it asks for
the next. The real courier and the simulated one use this class, so both follow the same rules:

1. Orders are handled in the order given. A fetch and a save are steps of their own. Everything
   else is loaded, and leaves in one round trip as soon as no order is left. While a trip is away,
   orders collect for the next one.
2. A large output goes into shared memory if there is room; any other output travels with the next
   trip. The store saves before it marks, so a loaded output counts as saved.
3. A timeline has to tell how long saving took, so it never travels with outputs. `Finish` and
   `Park` follow in a trip of their own; `Leave` is dropped, and `Finish` comes later.
4. A worker that leaves with `Leave` has left if the store gives it nothing more to do. Its `Finish`
   then needs no trip. A worker that parks asks the store for leave after the trip.
5. A worker enters the run with its first trip. Until then it changes nothing that others see.
6. If the store is near, a slot carries the orders out: one that is idle, or that has just run a
   task long enough to be worth it. Otherwise slots never wait for a trip.
7. A worker that has been silent for too long, or is idle and has unreported executions, makes a
   trip that only reports.

The outbox does no I/O and knows no clock. Any thread may add orders; the rest is for one thread at
a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Generic, NamedTuple, TypeVar

from shoal.execution.effects import Effect, Fetch, Finish, Leave, Park, Save
from shoal.types import SHARED_NBYTES, Resources, TaskId

REMOTE = 0.005
"""Seconds: a store whose round trips take longer is remote."""
FETCH_AGAIN = 0.25
"""Seconds after which a courier looks again for an output that is not there yet."""
SHORT = 0.002
"""Seconds: after a shorter task, a slot runs the next one instead of carrying orders out."""
_QUICK = 0.0005
"""Seconds that a round trip to a nearby store takes at least, as far as `remote` is concerned."""

Given = TypeVar("Given")
"""What goes along with an order; the outbox never looks at it."""


class Order(NamedTuple, Generic[Given]):
    """An effect to carry out, and what goes along with it."""

    effect: Effect
    given: Given


@dataclass(slots=True)
class Trip(Generic[Given]):
    """One round trip to the store."""

    load: list[Order[Given]]
    """Everything that travels, in the order given."""
    saves: list[TaskId]
    """The outputs in the load. Messages that travel with outputs don't show how fast messages
    are."""
    closing: Order[Given] | None
    """`Finish`, `Park` or `Leave`, if the timeline travels along."""
    entering: bool
    """The worker enters the run with this trip."""
    departed: float
    executed: int
    """How many tasks the worker has executed."""

    @property
    def leaving(self) -> bool:
        """Whether this is the last trip unless the store gives the worker more to do."""
        return self.closing is not None and type(self.closing.effect) is Leave


class Outbox(Generic[Given]):
    """What one start of a worker still has to send."""

    def __init__(
        self, latency: float, room: int = 0, *, entered: bool = True, silence: float = inf
    ) -> None:
        """Start empty.

        Args:
            latency: Seconds that a round trip to the store takes.
            room: Bytes that the worker may put into shared memory.
            entered: Whether the worker has entered the run.
            silence: Seconds after which the worker reports even if it has nothing to send.
        """
        self.room = room
        self.entered = entered
        self.left = False
        """The worker left the run with a `Leave`."""
        self.finished = False
        """Nothing follows the latest step: it was the last trip, or none was needed."""
        self._latency = latency
        self._silence = silence
        self._orders: deque[Order[Given]] = deque()
        self._load: list[Order[Given]] = []
        self._saves: list[TaskId] = []
        self._leaving: Order[Given] | None = None
        self._closing: Order[Given] | None = None
        self._parking: Order[Given] | None = None
        """The store is to be asked whether the worker may park."""
        self._reporting = False
        self._reported = 0
        self._departed: float | None = None

    @property
    def pending(self) -> bool:
        """Whether there may be a next step."""
        return bool(self._orders) or self._reporting

    @property
    def remote(self) -> bool:
        """Whether the store is too far away for a slot to wait for a round trip."""
        return self._latency > REMOTE

    def slot_waits(self, took: float = inf) -> bool:
        """Whether a slot carries orders out, after a task of so many seconds or when idle."""
        return self._latency <= REMOTE and took >= SHORT

    def add(self, effect: Effect, given: Given) -> None:
        """Put an order in."""
        self._orders.append(Order(effect, given))

    def drop(self) -> None:
        """Discard all orders."""
        self._orders.clear()

    def remind(self, now: float, executed: int, *, idle: bool) -> None:
        """Report with the next trip if that is due."""
        if self._departed is None:
            self._departed = now
        silent = now - self._departed > self._silence
        unreported = idle and executed != self._reported
        if (silent or unreported) and not self.left and not self.finished:
            self._reporting = True

    def next(self, now: float, executed: int = 0) -> Order[Given] | Trip[Given] | None:
        """The next step: an order to `Fetch`, `Save` or `Park`, or a trip; None if there is none.

        Args:
            now: The time.
            executed: How many tasks the worker has executed.
        """
        if self._parking is not None:
            parking, self._parking = self._parking, None
            return parking
        orders = self._orders
        while orders:
            order = orders.popleft()
            effect = type(order.effect)
            if effect is Fetch or effect is Save:
                return order
            if effect is Leave:
                self._leaving = order
            elif effect is Finish and self.left:
                self.finished = True
            elif effect is Finish or effect is Park:
                self._closing = order
            else:
                self._load.append(order)
        closing = self._timeline()
        if self._load or self._reporting or closing is not None:
            return self._trip(now, executed, closing)
        return None

    def share(self, nbytes: int) -> bool:
        """Whether an output goes into shared memory; if so, it takes up room."""
        if SHARED_NBYTES <= nbytes <= self.room:
            self.room -= nbytes
            return True
        return False

    def load(self, save: Order[Given], task: TaskId) -> None:
        """Let the output of a `Save` travel with the next trip."""
        self._load.append(save)
        self._saves.append(task)

    def entry(self, now: float, executed: int) -> Trip[Given]:
        """A trip that only enters the run, for a worker that can't wait for its first one."""
        return Trip([], [], None, self._departs(now, executed), now, executed)

    def back(self, trip: Trip[Given], seconds: float, *, stays: bool = False) -> None:
        """A trip is back.

        Args:
            trip: The trip.
            seconds: How long the store took to answer. One slow answer doesn't make it remote.
            stays: Whether the store gave the worker more to do.
        """
        self.entered = True
        self._latency = min(seconds, 2 * max(self._latency, _QUICK))
        self.left = trip.leaving and not stays

    def _timeline(self) -> Order[Given] | None:
        """Take the order whose timeline travels with the next trip."""
        leaving, self._leaving = self._leaving, None
        if self._saves:
            return None
        closing, self._closing = self._closing, None
        if closing is None:
            return leaving
        if type(closing.effect) is Park:
            self._parking = closing
        else:
            self.finished = True
        return closing

    def _trip(self, now: float, executed: int, closing: Order[Given] | None) -> Trip[Given]:
        load, self._load = self._load, []
        saves, self._saves = self._saves, []
        return Trip(load, saves, closing, self._departs(now, executed), now, executed)

    def _departs(self, now: float, executed: int) -> bool:
        """A trip leaves; whether the worker enters with it."""
        self._departed, self._reported, self._reporting = now, executed, False
        return not self.entered


def shared_room(resources: Resources) -> int:
    """Bytes that a worker may put into shared memory, which counts as its own memory."""
    return resources.memory_mb * 1024 * 1024 // 2
