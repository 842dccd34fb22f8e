"""`Policies`: what flexible workers decide by, and the decisions, each a pure function.

1. Each technique of WUKONG has a switch of its own, which is off unless the plan turns it on.
2. Without a forecast, the size of an output decides: a big one is worth keeping where it is. With a
   forecast, time decides: the alternative that is predicted to be sooner wins.
3. No output is held for so long that the time limit leaves no time to write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from shoal.types import TaskId

BIG_OUTPUT_NBYTES = 200 * 1000 * 1000
"""The size from which an output is big, unless the plan says otherwise."""
LARGE_FAN_OUT = 10
"""From this many workers on, the fan-out invoker invokes them."""
BRANCHES = 50
"""The most workers that one invoker invokes itself, and the most invokers that it delegates to."""
_MARGIN = 0.25
"""Outputs are held longer than predicted by this share of the time that holding may save."""
_UPLOAD_MARGIN = 2.0
"""Before the time limit, writing an output may take this many times as long as predicted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long transfers take in one direction."""

    base: float = 0.0005
    per_byte: float = 2e-9

    def seconds(self, nbytes: int) -> float:
        """The seconds for an output of a size."""
        return self.base + nbytes * self.per_byte


@dataclass(frozen=True, slots=True)
class Forecast:
    """What history predicts about a run, as far as workers decide by it."""

    seconds: Mapping[TaskId, float]
    """How long each task takes."""
    ends: Mapping[TaskId, float]
    """When each task ends, in seconds since the run's start."""
    start: float
    """Seconds from asking for a worker until it can begin."""
    message: float
    """Seconds of a round trip to the store."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What flexible workers do beyond becoming one branch and invoking the others."""

    fan_out_clustering: bool = False
    """Whether a worker may run several branches of a fan-out itself, one after the other."""
    fan_in_clustering: bool = False
    """Whether a worker that is busy may keep a fan-in whose last mark it set."""
    delayed_io: bool = False
    """Whether a worker may hold an output that its taker isn't ready for."""
    big_output_nbytes: int = BIG_OUTPUT_NBYTES
    large_fan_out: int | None = None
    """From how many workers on the fan-out invoker invokes them; None: never."""
    inline_nbytes: int | None = None
    """The most bytes that an invocation of the platform carries; None: no limit of its own."""
    save: Pace = field(default_factory=Pace)
    fetch: Pace = field(default_factory=Pace)
    forecast: Forecast | None = None
    """What decisions are based on; None: on sizes alone."""

    def keeps(self, *, join: bool, nbytes: int, moved: int, unsaved: int, backlog: float) -> bool:
        """Whether a ready task waits here for a slot, rather than for a worker of its own.

        Args:
            join: Whether the task is a fan-in.
            nbytes: The size of the largest input in memory.
            moved: Bytes that another worker would have to fetch.
            unsaved: How many of those bytes aren't saved.
            backlog: Seconds until a slot is predicted to be free; only known with a forecast.
        """
        if not (self.fan_in_clustering if join else self.fan_out_clustering):
            return False
        if self.forecast is None:
            return nbytes >= self.big_output_nbytes
        elsewhere = self.forecast.start
        elsewhere += self.fetch.seconds(moved) if moved else 0.0
        elsewhere += self.save.seconds(unsaved) if unsaved else 0.0
        return backlog <= elsewhere

    def delays(self, nbytes: int) -> bool:
        """Whether to ask if an output is the last one missing before writing it."""
        if not self.delayed_io:
            return False
        if self.forecast is None:
            return nbytes >= self.big_output_nbytes
        return self._transfers(nbytes) > self.forecast.message

    def hold_seconds(
        self, nbytes: int, *, busy: bool, wait: float, left: float | None
    ) -> float | None:
        """For how long at most to hold an output whose taker isn't ready.

        Without a forecast: as long as the worker has something else to do. With one: about as long
        as the taker is predicted to wait for other inputs, if that is less than the transfers that
        holding may save.

        Args:
            nbytes: The output's size.
            busy: Whether the worker has something else to do.
            wait: Predicted seconds until the taker's other inputs are available.
            left: Seconds until the time limit; None: there is none.

        Returns:
            Seconds; infinity: until the worker has nothing else to do; None: don't hold it.
        """
        latest = float("inf")
        if left is not None:
            latest = left - _UPLOAD_MARGIN * self.save.seconds(nbytes)
        if self.forecast is None:
            return latest if busy and latest > 0 else None
        saved = self._transfers(nbytes)
        seconds = min(saved, max(0.0, wait) + _MARGIN * saved, latest)
        return seconds if wait < saved and seconds > 0 else None

    def through_invoker(self, count: int) -> bool:
        """Whether the fan-out invoker invokes this many workers."""
        return self.large_fan_out is not None and count >= self.large_fan_out

    def inlines(self, nbytes: int) -> bool:
        """Whether inputs of this size may travel with an invocation."""
        return self.inline_nbytes is None or nbytes <= self.inline_nbytes

    def _transfers(self, nbytes: int) -> float:
        return self.save.seconds(nbytes) + self.fetch.seconds(nbytes)


def branches(keys: Sequence[T], most: int = BRANCHES) -> list[Sequence[T]]:
    """The shares that an invoker delegates to others; none if it invokes all itself.

    There are at most `most` shares of about the same size, and no more than needed for each to fit
    one invoker.
    """
    if len(keys) <= most:
        return []
    count = min(most, -(-len(keys) // most))
    size, rest = divmod(len(keys), count)
    bounds = [number * size + min(number, rest) for number in range(count + 1)]
    return [keys[start:end] for start, end in pairwise(bounds)]


def invoked_after(count: int, hop: float, each: float, most: int = BRANCHES) -> list[float]:
    """When an invoker and those it delegates to have invoked each of several workers.

    Args:
        count: How many workers.
        hop: Seconds from one invoker to the next.
        each: Seconds that an invoker spends on each worker.
        most: How many workers one invoker invokes itself.
    """
    shares = branches(range(count), most)
    if not shares:
        return [each * (number + 1) for number in range(count)]
    return [hop + after for share in shares for after in invoked_after(len(share), hop, each, most)]
