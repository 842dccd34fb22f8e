"""`Engine`: the least that a job system must do to run Shoal's workers.

An engine starts jobs, tells how they are, and ends them. `RemotePlatform` (`platform/remote.py`)
makes a platform of any engine. There are two sorts:

1. An engine that *stays* starts processes that last: a batch system, containers. Its job takes work
   from the store, one start after the other, and ends after an idle while.
2. Any other engine calls a function with an event and bills the call. The event has the work, and
   the engine decides which calls find a warm process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from shoal.entry_points import PLATFORMS, brought, schemes
from shoal.errors import SettingsError
from shoal.platform.events import LEFT_SHARE, Deployment
from shoal.types import LossReason, Resources


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine."""

    stays: bool
    """Whether a job lasts, and takes work from the store."""
    watches: bool = False
    """Whether `states` knows how jobs are."""
    nests: bool = False
    """Whether a job can start jobs itself."""
    memory_mb: int | None = None
    """The most memory that a job can have; None: unknown."""
    memory_steps: tuple[int, ...] = ()
    """The sizes of memory that jobs have, smallest first; empty: any size."""
    cpus: float | None = None
    """The most CPUs that a job can have; None: unknown."""
    capacity: int = 32
    """How many jobs there may be at once."""
    payload_nbytes: int | None = None
    """The most bytes of an event; None: no limit."""
    seconds: float | None = None
    """How long a job may run; None: no limit."""
    idle_seconds: float = 30.0
    """How long a job that stays waits for more work."""
    spares: int = 0
    """How many idle jobs of a size stand by while others are at work, to replace a lost one."""
    queue_seconds: float = 0.0
    """How long an event may wait in the engine, unseen, before its function is called."""
    prices: str = ""
    """The name of its price list (`planning/prices.py`); empty: there is none."""

    @property
    def worker_seconds(self) -> float | None:
        """How long a worker may run at least; None: no limit. A job that stays has run before."""
        return LEFT_SHARE * self.seconds if self.stays and self.seconds else self.seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    reason: LossReason = LossReason.DIED
    code: int | None = None
    """Its exit code, or minus the signal that killed it, if known."""
    detail: str = ""
    """What the engine says about it."""


def exit_code(status: int) -> int:
    """A status as shells and containers give it: 128 and the number of a signal, or an exit code.

    Returns:
        Minus the signal, or the exit code.
    """
    return 128 - status if 128 < status < 128 + 65 else status


JobState = Literal["waiting", "running"] | Ended


class Engine(Protocol):
    """Runs jobs; safe to use from several threads."""

    facts: EngineFacts

    def start(self, event: bytes, resources: Resources) -> str:
        """Start a job that calls `shoal.platform.job.run(event)`; return the engine's handle."""
        ...

    # An engine may also have
    # - `start_many(event, resources, count) -> handles`, which starts several jobs at once. Each
    #   finds its index, from 0, in the variable `INDEX_VARIABLE`.
    # - `check() -> str`, which `shoal doctor` calls. It tries the engine and tells what it found.
    # - `expected`, an `Expected`: the environment that its workers were deployed with.

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how jobs are; leave out those that nothing is known of."""
        ...

    def kill(self, handle: str) -> None:
        """End a job; do nothing if it has ended."""
        ...

    def close(self) -> None:
        """Release what this object holds; jobs go on."""
        ...


@runtime_checkable
class CheckedEngine(Protocol):
    """An engine that can say whether it would run this client's workers."""

    def check(self, *, thorough: bool = False) -> str:
        """Describe the engine; raise an error in words if workers wouldn't run on it.

        Args:
            thorough: Also tell what is different, but does no harm; this takes a while.
        """
        ...


EngineMaker = Callable[[str, Deployment, Path], Engine]
"""Makes an engine of a URL, of what its jobs need, and of a folder of this user's."""


def maker_of(url: str) -> EngineMaker:
    """What makes the engine that a URL names."""
    scheme = url.partition(":")[0]
    maker: EngineMaker | None = brought(PLATFORMS, scheme)
    if maker is not None:
        return maker
    known = ", ".join(f"{name}:" for name in sorted({"http", "https", *schemes(PLATFORMS)}))
    raise SettingsError(
        f"platform={url!r}: there is no engine for {scheme!r}. URLs begin with {known}; others "
        "need a package that brings the engine."
    )
