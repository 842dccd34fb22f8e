"""Simulate transfers that share the store's bandwidth evenly, on the virtual clock.

A transfer gets the time at which it would end without further transfers. At that time it checks
again, because others may have slowed it down. The part that doesn't depend on others comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.clock import Clock

_NOTHING = 1e-9
"""A time, in seconds, that is not worth waiting for."""


@dataclass(slots=True, eq=False)
class _Transfer:
    left: float
    """The seconds left if it ran alone."""
    tail: float
    """The seconds that don't depend on other transfers."""


class SharedBandwidth:
    """The transfers in progress."""

    def __init__(self, clock: Clock, sharing: float) -> None:
        """Start without transfers.

        Args:
            clock: The virtual clock.
            sharing: By what fraction each concurrent transfer slows a transfer down; 1 if a single
                one uses the whole bandwidth.
        """
        self._clock = clock
        self._sharing = sharing
        self._moving: list[_Transfer] = []
        self._since = 0.0
        """The time up to which progress is accounted for."""
        self._announced: dict[float, list[_Transfer]] = {}
        """The announced end of each transfer."""

    def enter(self, alone: float, tail: float) -> float:
        """Begin a transfer; return in how many seconds to check again."""
        self._advance()
        transfer = _Transfer(alone, tail)
        self._moving.append(transfer)
        return self._announce(transfer)

    def overtime(self) -> float:
        """Return in how many seconds a transfer that should end now checks again; 0 if it ended."""
        announced = self._announced.get(self._clock.now())
        if not announced:
            return 0.0
        transfer = announced.pop()
        self._advance()
        if transfer.left > _NOTHING:
            return self._announce(transfer)
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

    def _announce(self, transfer: _Transfer) -> float:
        """Return when a transfer ends if no other begins; shorter ones end before."""
        seconds, before = 0.0, 0.0
        count = len(self._moving)
        for left in sorted(max(0.0, other.left) for other in self._moving):
            if before >= transfer.left:
                break
            seconds += (min(left, transfer.left) - before) * self._slowness(count)
            before, count = left, count - 1
        self._announced.setdefault(self._clock.now() + seconds, []).append(transfer)
        return seconds
