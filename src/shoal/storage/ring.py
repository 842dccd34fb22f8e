"""`Ring`: consistent hashing. Every process computes which of several shards holds a name.

Each shard has 40 points on a ring; a name belongs to the shard of the next point after its own. So
a new shard takes an equal share from each of the others, and nothing else moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

POINTS = 40
"""Points of each shard."""


class Ring:
    """Shards on a ring."""

    def __init__(self, shards: Iterable[str]) -> None:
        """Put shards on the ring; their order doesn't matter."""
        points = sorted((_point(f"{shard}\n{n}"), shard) for shard in shards for n in range(POINTS))
        self._points = [point for point, _ in points]
        self._shards = [shard for _, shard in points]

    def shard_of(self, name: str) -> str:
        """Return the shard that holds a name."""
        return self._shards[bisect_right(self._points, _point(name)) % len(self._shards)]


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
