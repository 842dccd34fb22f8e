"""`Ledger`: what was injected, how runs ended, and which errors that explains.

A run may end with an error only where a right result was impossible, and only with the error that
tells so: the store's full memory, or a gateway or store that is away when a run is to begin.
Everything else that isn't a right result is a defect.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

EXPLAINS = {
    "StoreRefused": "memory",
    "GatewayUnavailable": "gateway",
    "StoreUnavailable": "restart",
}
"""Which fault may end a run with which error; one that is under way only the first."""
_AFTERMATH = 3.0
"""Seconds for which a fault still explains an error."""


@dataclass
class Ledger:
    """The figures of an experiment; several threads write them."""

    runs: int = 0
    right: int = 0
    resumed: int = 0
    """Of these, so many after an error, or after their client was killed."""
    missed: int = 0
    """Runs whose client was killed before it could tell which run it is, or how it ended; and farms
    whose client was killed."""
    hangs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Root-caused ones, by kind."""
    defects: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    _ends: list[tuple[float, str]] = field(default_factory=list)
    """When each fault was over."""
    _lasting: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """One more run that went a certain way."""
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)

    def injected(self, fault: str) -> None:
        """Somebody was hurt."""
        with self.lasting(fault):
            pass

    @contextlib.contextmanager
    def lasting(self, fault: str) -> Iterator[None]:
        """Somebody is hurt for a while, on a busy machine for longer than was meant."""
        with self._lock:
            self.faults[fault] += 1
            self._lasting[fault] += 1
        try:
            yield
        finally:
            with self._lock:
                self._lasting[fault] -= 1
                self._ends.append((time.monotonic(), fault))

    def explains(self, kind: str, begun: float, *, under_way: bool) -> bool:
        """Whether a fault explains that a run ended with an error, which then counts."""
        since, fault = begun - _AFTERMATH, EXPLAINS.get(kind)
        if under_way and fault != "memory":
            return False
        with self._lock:
            explained = fault is not None and self._lasting[fault] > 0
            explained |= any(when > since and each == fault for when, each in self._ends)
            self.errors[kind] += explained
        return explained

    def defect(self, text: str) -> None:
        """Something happened that no fault explains."""
        with self._lock:
            self.defects.append(text)

    @property
    def clean(self) -> bool:
        """Whether all results are right or explained, and nothing is left."""
        return not (self.defects or self.hangs or self.leftovers)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs: {self.right} right ({self.resumed} of them resumed), {self.missed} "
            f"whose client was killed too early or too late, {self.errors.total()} root-caused "
            f"errors{_told(self.errors)}, {len(self.defects)} defects, {self.hangs} hangs; "
            f"{self.faults.total()} faults{_told(self.faults)}; {len(self.leftovers)} leftovers"
        )


def _told(counts: Counter[str]) -> str:
    named = [f"{count} {kind}" for kind, count in sorted(counts.items()) if count]
    return f" ({', '.join(named)})" if named else ""
