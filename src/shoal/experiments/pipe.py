"""`Pipe`: what is moved at a time shares the store's pace evenly, on the virtual clock.

A transfer is told when it would end if no other came. When that time is there it asks again: it may
have been slowed down meanwhile, and what doesn't depend on others comes at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.clock import Clock

_NOTHING = 1e-9
"""Seconds that aren't worth waiting for."""


@dataclass(slots=True, eq=False)
class _Transfer:
    left: float
    """Seconds that it would still take alone."""
    tail: float
    """Seconds that it takes beside, whatever else is under way."""


class Pipe:
    """The transfers that are under way."""

    def __init__(self, clock: Clock, sharing: float) -> None:
        """Be empty.

        Args:
            clock: Which tells the time.
            sharing: By what share a transfer is slower for each other: 1, if there is no more to
                share than one alone takes.
        """
        self._clock = clock
        self._sharing = sharing
        self._moving: list[_Transfer] = []
        self._since = 0.0
        """Up to when it is known how far they are."""
        self._told: dict[float, list[_Transfer]] = {}
        """When each was told that it would end."""

    def enter(self, alone: float, tail: float) -> float:
        """Begin a transfer; in how many seconds to ask again."""
        self._advance()
        transfer = _Transfer(alone, tail)
        self._moving.append(transfer)
        return self._tell(transfer)

    def overtime(self) -> float:
        """In how many seconds a transfer that was to end now asks again; 0: it has ended."""
        told = self._told.get(self._clock.now())
        if not told:
            return 0.0
        transfer = told.pop()
        self._advance()
        if transfer.left > _NOTHING:
            return self._tell(transfer)
        self._moving.remove(transfer)
        return transfer.tail

    def _slowness(self, count: int) -> float:
        return 1 + self._sharing * (count - 1)

    def _advance(self) -> None:
        now = self._clock.now()
        if self._moving:
            done = (now - self._since) / self._slowness(len(self._moving))
            for transfer in self._moving:
                transfer.left -= done
        self._since = now

    def _tell(self, transfer: _Transfer) -> float:
        """When it ends if nobody else comes: those with less to move leave before."""
        seconds, before = 0.0, 0.0
        count = len(self._moving)
        for left in sorted(max(0.0, other.left) for other in self._moving):
            if before >= transfer.left:
                break
            seconds += (min(left, transfer.left) - before) * self._slowness(count)
            before, count = left, count - 1
        self._told.setdefault(self._clock.now() + seconds, []).append(transfer)
        return seconds
