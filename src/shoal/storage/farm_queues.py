"""`FarmStore`: the queues of a farm, on a Valkey or Redis server.

A farm is a run whose workers pull tasks. As in a run's store, every operation is atomic, takes one
round trip, and may be repeated. An operation raises `RunOver` once the farm has ended, or a later
start has replaced the worker's. `lua/farm/farm.lua` has the rules.

An operation that wakes idle workers takes a second round trip if their mailboxes aren't known here.

A farm ends when its owner ends it, or stops renewing it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.storage import keys
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, Buffer
from shoal.storage.letters import Failure, failure_from_json, failure_to_json, pairs
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Arg
from shoal.storage.scripts import Script, load
from shoal.types import RunId, WorkerId

_PUT = load("farm/put")
_JOIN = load("farm/join")
_TAKE = load("farm/take")
_HIRE = load("farm/hire")
_DISMISS = load("farm/dismiss")
_BURY = load("farm/bury")
_RENEW = load("farm/renew")

_DECLARED = 32
"""The most mailboxes of idle workers that an operation declares because it might wake them."""


@dataclass(frozen=True, slots=True)
class FarmOpening:
    """What a farm starts with."""

    functions: Sequence[Blob]
    """The function of each stage, encoded."""
    late_last: Sequence[bool]
    """Whether each stage takes late tasks last; their priorities are deadlines then."""
    tries: int
    """How often a task is tried at a stage."""
    lease: float
    """Seconds without a heartbeat after which a worker counts as lost."""
    waiting: float
    """Seconds that a start may wait for its platform, on top of its first lease."""
    restarts: int
    """How often the platform restarts a worker after the same cause."""
    ttl: float
    """Seconds after which a farm ends if its owner doesn't renew it."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task to put into a farm's queue."""

    id: str
    """Ids sort in the order of submission, which breaks ties."""
    places: tuple[float, ...]
    """Its priority at each stage; the lowest goes first."""
    blob: Blob


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a task that a worker held."""

    id: str
    seconds: float
    blob: Blob
    """The result; empty if it failed."""
    failure: Failure | None = None
    """What is known about a failure; None if the task succeeded."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a worker does next."""

    tasks: Sequence[tuple[str, Buffer]] = ()
    """Ids and inputs; if empty, the worker waits for a letter."""
    leave: bool = False


class FarmStore(RedisStore):
    """The queues of farms on a server, beside the mailboxes and leases of a `RedisStore`."""

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Connect to the server at a URL; the arguments are those of `ServerClient`."""
        self._idle: dict[RunId, tuple[str, ...]] = {}
        """Mailboxes of each farm's workers that were idle lately, the latest last. An operation
        that queues tasks declares them. If it wakes nobody, all are busy, and the next one declares
        none."""
        self._workers: dict[RunId, tuple[str, ...]] = {}
        """The mailboxes of all workers of each farm that is renewed here."""
        super().__init__(url, latency, known=known, revive=revive)

    def _farm(
        self,
        script: Script,
        run: RunId,
        stages: range,
        args: Sequence[Arg],
        more: Sequence[str] = (),
    ) -> list[Any]:
        """Run a script for some stages of a farm, with mailboxes of workers that it may wake."""
        idle = self._idle.get(run, ())
        touched = (*keys.farm(run, stages), *more, *idle)
        beginning = (keys.mailbox(run, ""), stages.start, len(stages))
        results, found = self._script_finding_keys(script, touched, (*beginning, *args))
        if found:
            idle = (*idle, *(str(mailbox, "utf-8") for mailbox in found))
            self._idle[run] = idle[-_DECLARED:]
        return results

    def _woke(self, run: RunId, workers: int) -> None:
        if not workers:
            self._idle.pop(run, None)

    def begin(self, run: RunId, opening: FarmOpening) -> None:
        """Start a farm."""
        parts = {WorkerId(str(stage)): blob for stage, blob in enumerate(opening.functions)}
        self.open(
            run,
            Opening(
                (),
                parts=parts,
                lease=opening.lease,
                waiting=opening.waiting,
                restarts=opening.restarts,
                ttl=max(1, round(opening.ttl)),
            ),
        )
        state: list[Arg] = ["tries", opening.tries]
        for stage, late_last in enumerate(opening.late_last):
            state += [f"late last:{stage}", 1] if late_last else []
            state += [f"next:{stage}", stage + 1] if stage + 1 < len(parts) else []
        self._call([["HSET", keys.state(run), *state]])

    def put(self, run: RunId, batch: int, tasks: Sequence[QueuedTask]) -> None:
        """Put tasks into the first stage's queue; a repeated batch number has no effect."""
        args: list[Arg] = [batch]
        for task in tasks:
            args += [task.id, repr(task.places[0]), task.blob, *map(repr, task.places[1:])]
        (woken,) = self._farm(_PUT, run, range(len(tasks[0].places)), args)
        self._woke(run, woken)

    def join(self, run: RunId, worker: WorkerId, epoch: int, loss: Failure) -> Buffer:
        """Begin a start of a worker; return its stage's function.

        Args:
            run: The farm.
            worker: The worker.
            epoch: The start's epoch. Tasks that an earlier start held are given back.
            loss: The report on a task that is given up because its workers died too often.
        """
        args = (worker, epoch, secrets.token_hex(8), failure_to_json(loss))
        of_worker = keys.parts(run), keys.mailbox(run, worker)
        function: Buffer
        (function,) = self._farm(_JOIN, run, _stages(worker, 1), args, of_worker)
        return function

    def take(
        self,
        run: RunId,
        worker: WorkerId,
        epoch: int,
        read: str,
        most: int,
        done: Sequence[Settled],
    ) -> Taken:
        """Settle the tasks that a worker held, and take the next.

        Args:
            run: The farm.
            worker: The worker.
            epoch: The start's epoch.
            read: The id of the last letter that it has read.
            most: The most tasks to take; 0: it leaves.
            done: The outcomes of all tasks that it held.
        """
        args: list[Arg] = [worker, epoch, read, most, *_settled_args(done)]
        (kind, *found), woken = self._take(run, worker, args)
        if done:
            self._woke(run, woken)
        return Taken(pairs(found), leave=kind == b"leave")

    def _take(self, run: RunId, worker: WorkerId, args: Sequence[Arg]) -> list[Any]:
        return self._farm(_TAKE, run, _stages(worker, 2), args, [keys.mailbox(run, worker)])

    def give_back(
        self,
        run: RunId,
        worker: WorkerId,
        epoch: int,
        tasks: Sequence[str],
        done: Sequence[Settled],
    ) -> None:
        """Give back tasks that a worker holds and hasn't begun, and settle those that are done."""
        args: list[Arg] = [worker, epoch, "", -1, *_settled_args(done)]
        for task in tasks:
            args += [task, "back", 0, b""]
        self._take(run, worker, args)

    def hire(self, run: RunId, kinds: Mapping[WorkerId, str]) -> None:
        """Register workers that are about to be started, each with its resources."""
        self._farm(_HIRE, run, range(0), [item for pair in kinds.items() for item in pair])

    def dismiss(self, run: RunId, stage: int, workers: int) -> None:
        """Tell some workers of a stage to leave after the tasks that they hold."""
        self._farm(_DISMISS, run, range(stage, stage + 1), (secrets.token_hex(8), workers))

    def bury(self, run: RunId, worker: WorkerId, loss: Failure) -> None:
        """Remove a worker that won't be started again, and give back its tasks."""
        self._farm(
            _BURY,
            run,
            _stages(worker, 1),
            (worker, failure_to_json(loss)),
            [keys.mailbox(run, worker)],
        )

    def renew(self, run: RunId, ttl: float, stages: int) -> list[tuple[int, int]]:
        """Keep the farm alive; return each stage's number of waiting tasks and of busy workers."""
        script_keys, args = self._renewal(run, ttl, stages)
        (counts, workers), _ = self._script_finding_keys(_RENEW, script_keys, args)
        self._workers[run] = tuple(keys.mailbox(run, str(name, "utf-8")) for name in workers)
        return list(zip(counts[::2], counts[1::2], strict=True))

    def keep_alive(self, run: RunId, ttl: float, stages: int) -> None:
        """Keep the farm alive during a long transfer; never raises."""
        self._script_aside(_RENEW, *self._renewal(run, ttl, stages))

    def _renewal(self, run: RunId, ttl: float, stages: int) -> tuple[Sequence[Arg], Sequence[Arg]]:
        """Return the keys and arguments of `renew.lua`."""
        workers = self._workers.get(run, ())
        script_keys = (*keys.farm(run, range(stages)), keys.parts(run), *workers)
        return script_keys, (keys.mailbox(run, ""), 0, stages, max(1, round(ttl * 1000)))

    def dead(self, run: RunId) -> dict[str, tuple[Failure, Buffer]]:
        """Return the tasks that were given up, each with its failure and its input."""
        flat = self._call([["HGETALL", keys.farm_dead(run)]])[0]
        failures = {task: failure_from_json(known) for task, known in pairs(flat)}
        if not failures:
            return {}
        inputs = self._call([["HMGET", keys.farm_tasks(run), *failures]])[0]
        return {task: (failures[task], given) for task, given in zip(failures, inputs, strict=True)}

    def trim(self, run: RunId, read: str) -> None:
        """Delete the client's letters up to the last one that it has read."""
        self._call([["XTRIM", keys.mailbox(run, keys.CLIENT), "MINID", read]])

    def end(self, run: RunId, stages: int) -> None:
        """End a farm and delete all its data."""
        self._idle.pop(run, None)
        self._workers.pop(run, None)
        self._close(run, keys.farm(run, range(stages)))


def _stages(worker: WorkerId, count: int) -> range:
    """Return the stage that a worker's name begins with, and the ones after it."""
    stage = int(worker.partition(":")[0])
    return range(stage, stage + count)


def _settled_args(done: Sequence[Settled]) -> Iterator[Arg]:
    for each in done:
        if each.failure is None:
            yield from (each.id, "done", repr(each.seconds), each.blob)
        else:
            known = failure_to_json(each.failure)
            yield from (each.id, known, repr(each.seconds), each.failure.cause)
