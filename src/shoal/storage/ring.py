"""`Ring`: consistent hashing. Which of several places has what, known to everybody without asking.

Each place has 40 points on a ring; what is looked for belongs to the next point behind its own. So
a place that is added takes a share from each of the others, and nothing else moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

POINTS = 40
"""Virtual nodes of each place."""


class Ring:
    """Places on a ring."""

    def __init__(self, places: Iterable[str]) -> None:
        """Put the places on the ring; their order doesn't matter."""
        points = sorted((_point(f"{place}\n{n}"), place) for place in places for n in range(POINTS))
        self._points = [point for point, _ in points]
        self._places = [place for _, place in points]

    def place(self, name: str) -> str:
        """The place that has what is called so."""
        return self._places[bisect_right(self._points, _point(name)) % len(self._places)]


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
