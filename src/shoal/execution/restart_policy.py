"""The restart policy: what to do about a lost worker. Facts in, a decision out.

Three parties look after workers: the gateway's supervisor, the client that waits for a run, and the
crew of a farm. Each collects facts, asks here, and carries the decision out.

1. A worker is lost when its gateway sees its process end, or when its lease expires. The store
   checks the leases, so that only one party claims the next start; the store also counts the
   losses of each cause, and refuses a restart when a cause exceeds the setting `restarts`.
2. A worker that was killed restarts as it was. One that ran out of memory restarts with twice as
   much, up to what the platform has.
3. A restart is hopeless if the worker crashed or exited by itself, if it already had all the memory
   there is, or if it ended with an error that the next start would meet, too.
4. When the gateway gives up on a worker, its client may still restart it: a task that has `retries`
   left survives the loss of its worker. An error that the next start would meet stays hopeless.
5. A farm replaces the workers that its gateway gives up on, until too many are lost in a row
   without a completed task, or one meets an error that the next would meet, too: then another
   worker wouldn't help.
6. A platform or a store that is out of reach may come back, so everyone waits for a while. A
   platform that rejects the token won't change its mind.
7. A task that takes far longer than predicted gets a twin. A run in which nothing happens for
   several leases is stuck.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import (
    CodeLost,
    EnvironmentMismatch,
    ReactionError,
    ShardLost,
    ShardUnavailable,
    StoreError,
    StoreRefused,
    Tampered,
    UsageError,
)
from shoal.types import Loss, LossReason, Resources, TaskId, WorkerId

PLATFORM_GRACE_PERIOD = 60.0
"""Seconds to wait for a platform that is out of reach."""
STORE_GRACE_PERIOD = 300.0
"""Seconds that a gateway waits for the store of a run that is out of reach."""
FARM_LOSSES = 10
"""Workers that a farm may lose in a row, without a completed task."""
STUCK_LEASES = 4
"""Leases without any sign of progress after which a run is stuck."""
STUCK_SECONDS = 15.0
"""The least that counts as stuck: a gateway may have to restart, and then its sandboxes."""
STRAGGLER_SECONDS = 1.0
"""A task that has run for less is not a straggler."""
_GROWTH = 2
"""How many times as much memory a worker gets after it ran out of memory."""
_KILLED = frozenset((-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP))
"""The exit codes of processes that were ended from outside."""
FinalError = StoreError | UsageError | EnvironmentMismatch
_FINAL = (
    *(EnvironmentMismatch, CodeLost, StoreRefused, ShardUnavailable, ShardLost, Tampered),
    *(ReactionError, UsageError),
)
"""Errors that the next start of a worker would meet, too."""


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A gateway saw a worker end before it was done."""

    worker: WorkerId
    loss: Loss
    cpus: float
    memory_limit_mb: int
    """The most memory that a worker can have on this platform."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that was running when its worker was lost."""

    task: TaskId
    retries: int
    """How often it may be repeated."""
    retried: int
    """How often it has been repeated because its worker was lost."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the worker again, under the next epoch."""

    cause: str
    """What the loss is attributed to; the store counts the losses of each cause."""
    resources: Resources | None = None
    """What the worker has from now on; None: what it had."""
    retried: TaskId | None = None
    """The task whose retries this uses; None: it uses none."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Start another worker in place of the lost one."""


@dataclass(frozen=True, slots=True)
class StartTwin:
    """Start the worker a second time, while the first start continues."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for now, and ask again later."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do no more: it is hopeless."""


def after_end(ended: WorkerEnded) -> Restart | GiveUp:
    """What a gateway does when a worker ends before it is done."""
    loss = ended.loss
    cause = f"task {loss.running[0]}" if loss.running else f"worker {ended.worker}"
    if final_error(loss.detail) is not None:
        return GiveUp()
    if loss.reason is LossReason.OUT_OF_MEMORY:
        grown_mb = min(_GROWTH * loss.memory_mb, ended.memory_limit_mb)
        grows = grown_mb > loss.memory_mb
        return Restart(cause, Resources(grown_mb, ended.cpus)) if grows else GiveUp()
    killed = loss.code is None or loss.code in _KILLED
    return Restart(cause) if killed else GiveUp()


def after_gateway_gave_up(loss: Loss, running: Sequence[RunningTask]) -> Restart | GiveUp:
    """What a client does when a gateway gives up on a worker.

    Args:
        loss: What the gateway saw.
        running: The tasks that were running.
    """
    if final_error(loss.detail) is not None:
        return GiveUp()
    for each in running:
        if each.retried < each.retries:
            return Restart(f"try {each.retried + 1} of {each.task}", retried=each.task)
    return GiveUp()


def after_farm_loss(loss: Loss, losses: int) -> Replace | GiveUp:
    """What a farm does when its gateway gives up on a worker.

    Args:
        loss: What the gateway saw.
        losses: Workers lost since a task was last completed, this one included.
    """
    if final_error(loss.detail) is not None:
        return GiveUp()
    return Replace() if losses <= FARM_LOSSES else GiveUp()


def while_unreachable(
    seconds: float, grace_period: float, *, rejected: bool = False
) -> Wait | GiveUp:
    """What to do while a platform or a store is out of reach.

    Args:
        seconds: For how long it has been.
        grace_period: For how long to wait.
        rejected: It answered, and rejected the token.
    """
    return GiveUp() if rejected or seconds > grace_period else Wait()


def while_running(seconds: float, predicted: float, factor: float) -> StartTwin | Wait:
    """What to do about a task that is running.

    Args:
        seconds: For how long it has been.
        predicted: How long it may be expected to take.
        factor: How many times as long makes it a straggler.
    """
    straggles = seconds >= STRAGGLER_SECONDS and seconds > factor * predicted
    return StartTwin() if straggles else Wait()


def while_idle(seconds: float, lease: float) -> Wait | GiveUp:
    """What to do about a run without any sign of progress for so many seconds."""
    return GiveUp() if seconds > max(STUCK_LEASES * lease, STUCK_SECONDS) else Wait()


def final_error(traceback: str) -> tuple[type[FinalError], str] | None:
    """The error at the end of a traceback, if the next start of the worker would meet it, too."""
    ended = re.split(r"\n\n(?:The above exception|During handling) .*:\n\n", traceback)[-1]
    for kind in _FINAL:
        _, found, text = ended.rpartition(f"{kind.__module__}.{kind.__qualname__}: ")
        if found:
            return kind, text.strip()
    return None
