"""`Policies`: what flexible workers decide by, and the decisions, each a pure function.

1. Each technique of WUKONG is a switch of its own, and off unless the plan turns it on.
2. Without a forecast a decision is taken by the size of an output: a big one is worth keeping where
   it is. With a forecast it is taken by seconds: whatever is predicted to be sooner.
3. Nothing is held back for longer than the function's time limit leaves time to write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from shoal.types import TaskId

BIG_OUTPUT_NBYTES = 200 * 1000 * 1000
"""An output from this size on is big, unless the plan says otherwise."""
LARGE_FAN_OUT = 10
"""So many workers to be invoked at once, or more, are the fan-out invoker's to invoke."""
BRANCHES = 50
"""The most workers that one invoker invokes itself, and the most invokers that it hands on to."""
_MARGIN = 0.25
"""What is held is held for longer than predicted, by this share of what it saves."""
_UPLOAD_MARGIN = 2.0
"""How many times as long as predicted writing an output may take before a function's end."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long outputs are under way in one direction."""

    base: float = 0.0005
    per_byte: float = 2e-9

    def seconds(self, nbytes: int) -> float:
        """For an output of a size."""
        return self.base + nbytes * self.per_byte


@dataclass(frozen=True, slots=True)
class Forecast:
    """What history predicts of a run, as far as workers decide by it."""

    seconds: Mapping[TaskId, float]
    """How long each task takes."""
    ends: Mapping[TaskId, float]
    """When each task ends, in seconds since the run's start."""
    start: float
    """From asking for a worker until it can begin."""
    message: float
    """A round trip to the store."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What flexible workers do beyond becoming one branch and invoking the others."""

    fan_out_clustering: bool = False
    """Whether a worker may run several branches of a fan-out itself, one after the other."""
    fan_in_clustering: bool = False
    """Whether a worker that is busy may keep a fan-in whose last mark it set."""
    delayed_io: bool = False
    """Whether a worker may hold an output back that somebody else isn't ready for."""
    big_output_nbytes: int = BIG_OUTPUT_NBYTES
    large_fan_out: int | None = None
    """From so many workers on the fan-out invoker invokes them; None: never."""
    inline_nbytes: int | None = None
    """What an invocation of the platform carries; None: as much as is worth it."""
    save: Pace = field(default_factory=Pace)
    fetch: Pace = field(default_factory=Pace)
    forecast: Forecast | None = None
    """If decisions are taken by prediction."""

    def keeps(self, *, join: bool, nbytes: int, moved: int, unsaved: int, backlog: float) -> bool:
        """Whether a ready task waits here for a slot, rather than for a worker of its own.

        Args:
            join: Whether it is a fan-in.
            nbytes: The size of the largest input in memory.
            moved: Bytes that another worker would have to fetch.
            unsaved: Those of them that aren't saved.
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
        """Whether it is asked if an output is the last one missing, before it is written."""
        if not self.delayed_io:
            return False
        if self.forecast is None:
            return nbytes >= self.big_output_nbytes
        return self._transfers(nbytes) > self.forecast.message

    def hold_seconds(
        self, nbytes: int, *, busy: bool, wait: float, left: float | None
    ) -> float | None:
        """For how long an output is held back at most, whose taker isn't ready.

        Without a forecast as long as the worker has something else to do. With one for about as
        long as the taker is predicted to wait for others, if that is less than the transfers take
        that it may save.

        Args:
            nbytes: The output's size.
            busy: Whether the worker has something else to do.
            wait: Seconds until the taker's other inputs are predicted to be there.
            left: Seconds that the function still has; None: for ever.

        Returns:
            Seconds; None: not at all. Infinity: until the worker has nothing else to do.
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
        """Whether so many workers are invoked by the fan-out invoker."""
        return self.large_fan_out is not None and count >= self.large_fan_out

    def inlines(self, nbytes: int) -> bool:
        """Whether the platform lets inputs of this size travel with an invocation."""
        return self.inline_nbytes is None or nbytes <= self.inline_nbytes

    def _transfers(self, nbytes: int) -> float:
        return self.save.seconds(nbytes) + self.fetch.seconds(nbytes)


def branches(keys: Sequence[T], most: int = BRANCHES) -> list[Sequence[T]]:
    """The shares that an invoker hands on to others; none if it invokes all itself.

    As many shares as are needed for each to be invoked at once, at most `most`, of about one size.
    """
    if len(keys) <= most:
        return []
    count = min(most, -(-len(keys) // most))
    size, rest = divmod(len(keys), count)
    bounds = [number * size + min(number, rest) for number in range(count + 1)]
    return [keys[start:end] for start, end in pairwise(bounds)]


def invoked_after(count: int, hop: float, each: float, most: int = BRANCHES) -> list[float]:
    """When an invoker and those that it hands on to have invoked each of so many workers.

    Args:
        count: How many workers.
        hop: Seconds from one who invokes to the next.
        each: Seconds for each worker that one invokes.
        most: What one invoker does itself.
    """
    shares = branches(range(count), most)
    if not shares:
        return [each * (number + 1) for number in range(count)]
    return [hop + after for share in shares for after in invoked_after(len(share), hop, each, most)]
