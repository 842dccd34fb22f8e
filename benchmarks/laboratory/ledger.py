"""Record injected faults and how runs ended, and decide which errors the faults explain.

A run may end with an error only where a right result was impossible, and only with the error that
says so: the store is out of memory, or gateway or store are unavailable when a run starts.
Anything else but a right result is a defect.
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
"""Which faults may end a run with which error; a run in progress only with the first."""
_AFTERMATH = 3.0
"""For how many seconds after its end a fault explains an error."""


@dataclass
class Ledger:
    """The figures of an experiment; thread-safe."""

    runs: int = 0
    right: int = 0
    resumed: int = 0
    """How many of these were resumed after an error or after their client was killed."""
    missed: int = 0
    """Runs whose client was killed before it could tell which run it is, or how it ended; and farms
    whose client was killed."""
    hangs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Explained errors, by kind."""
    defects: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    _ends: list[tuple[float, str]] = field(default_factory=list)
    """When each fault ended."""
    _lasting: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """Count a run by its outcome."""
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)

    def injected(self, fault: str) -> None:
        """Record an injected fault."""
        with self.lasting(fault):
            pass

    @contextlib.contextmanager
    def lasting(self, fault: str) -> Iterator[None]:
        """Record a fault that lasts for a while, longer than intended on a busy machine."""
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
        """Return whether a fault explains a run's error, and count it if so."""
        since, fault = begun - _AFTERMATH, EXPLAINS.get(kind)
        if under_way and fault != "memory":
            return False
        with self._lock:
            explained = fault is not None and self._lasting[fault] > 0
            explained |= any(when > since and each == fault for when, each in self._ends)
            self.errors[kind] += explained
        return explained

    def defect(self, text: str) -> None:
        """Record a defect, which no fault explains."""
        with self._lock:
            self.defects.append(text)

    @property
    def clean(self) -> bool:
        """Whether all results are right or explained, and nothing was left over."""
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
