"""`FarmStore`: the queues of a farm, on a Valkey or Redis server.

A farm is a run whose workers pull tasks. What has been said of a run's store holds for it: every
operation is one round trip, atomic, and may be repeated; who says something of a farm that is over,
or as a start of a worker that is, gets `RunOver`. Its rules stand in `farmscripts.py`.

A farm is over when its owner ends it, or hasn't renewed it for a while: the owner's own lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.storage import keys
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, Buffer
from shoal.storage.farmscripts import FARM_SCRIPTS
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Arg
from shoal.storage.scripts import SCRIPTS
from shoal.storage.server import Script
from shoal.types import RunId, WorkerId


@dataclass(frozen=True, slots=True)
class FarmOpening:
    """What a farm begins with."""

    functions: Sequence[Blob]
    """What each stage's workers call."""
    late_last: Sequence[bool]
    """Whether each stage takes tasks last whose places are times that are past."""
    tries: int
    """How often a task is tried at a stage."""
    lease: float
    """Seconds without a sign of life after which a worker counts as lost."""
    restarts: int
    """How often one thing may be the end of a worker that is started again by its platform."""
    ttl: float
    """Seconds after which a farm is over that its owner hasn't renewed."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task on its way into a farm."""

    id: str
    """In the order of the submissions: it breaks ties."""
    places: tuple[float, ...]
    """Its place in the order of each stage; the lowest goes first."""
    blob: Blob


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a task that a worker held."""

    id: str
    seconds: float
    blob: Blob
    """The result; or the exception, if it failed."""
    failure: bytes = b""
    """What is known of a failure, as JSON."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a worker is to do next."""

    tasks: Sequence[tuple[str, Buffer]] = ()
    """Ids and inputs; none: it waits for a letter."""
    leave: bool = False


class FarmStore(RedisStore):
    """The queues of farms, on a server; mailboxes, leases and letters are those of a store."""

    scripts: ClassVar[dict[str, Script]] = {**SCRIPTS, **FARM_SCRIPTS}

    def _farm(self, name: str, run: RunId, args: Sequence[Arg], *more: str) -> Any:
        touched = (keys.state(run), keys.leases(run), *more)
        beginnings = (keys.farm(run), keys.mailbox(run, ""))
        return self._script(name, touched, (*beginnings, *args))

    def begin(self, run: RunId, opening: FarmOpening) -> None:
        """Begin a farm."""
        parts = {WorkerId(str(stage)): blob for stage, blob in enumerate(opening.functions)}
        lease, restarts, ttl = opening.lease, opening.restarts, max(1, round(opening.ttl))
        self.open(run, Opening((), parts=parts, lease=lease, restarts=restarts, ttl=ttl))
        state: list[Arg] = ["tries", opening.tries]
        for stage, late_last in enumerate(opening.late_last):
            state += [f"late last:{stage}", 1] if late_last else []
            state += [f"next:{stage}", stage + 1] if stage + 1 < len(parts) else []
        self._call([["HSET", keys.state(run), *state]])

    def time(self) -> float:
        """The server's, in seconds since the epoch: late is what the server says."""
        seconds, micro = self._call([["TIME"]])[0]
        return int(seconds) + int(micro) / 1e6

    def put(self, run: RunId, batch: int, tasks: Sequence[QueuedTask]) -> None:
        """Put tasks into the first stage's queue; a batch of that number is put in once."""
        args: list[Arg] = [batch, len(tasks[0].places) - 1]
        for task in tasks:
            args += [task.id, repr(task.places[0]), task.blob, *map(repr, task.places[1:])]
        self._farm("put", run, args)

    def join(self, run: RunId, worker: WorkerId, epoch: int, loss: bytes) -> Buffer:
        """Begin a start of a worker; its stage's function.

        Args:
            run: The farm's.
            worker: Who begins.
            epoch: Which start it is. What an earlier one held is given back.
            loss: What to say of a task that is given up because its worker died too often.
        """
        args = (worker, epoch, secrets.token_hex(8), loss)
        function: Buffer = self._farm("join", run, args, keys.parts(run))
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
            run: The farm's.
            worker: Who asks.
            epoch: Which start of it.
            read: The last letter that it has read.
            most: How many tasks to take; 0: it leaves.
            done: All that it held.
        """
        args: list[Arg] = [worker, epoch, read, most, *_settled_args(done)]
        kind, *found = self._farm("take", run, args)
        return Taken(pairs(found), leave=kind == b"leave")

    def give_back(
        self,
        run: RunId,
        worker: WorkerId,
        epoch: int,
        tasks: Sequence[str],
        done: Sequence[Settled],
    ) -> None:
        """Let others have tasks that a worker holds and hasn't begun, and settle what is done."""
        args: list[Arg] = [worker, epoch, "", -1, *_settled_args(done)]
        for task in tasks:
            args += [task, "back", 0, b""]
        self._farm("take", run, args)

    def hire(self, run: RunId, kinds: Mapping[WorkerId, str]) -> None:
        """Have workers known that are about to be started, with what each is to have."""
        self._farm("hire", run, [item for pair in kinds.items() for item in pair])

    def dismiss(self, run: RunId, stage: int, workers: int) -> None:
        """Tell some of a stage's workers to leave once they have finished what they hold."""
        self._farm("dismiss", run, (secrets.token_hex(8), stage, workers))

    def bury(self, run: RunId, worker: WorkerId, loss: bytes) -> None:
        """Give back what a worker held that won't be started again."""
        self._farm("bury", run, (worker, loss))

    def renew(self, run: RunId, ttl: float, stages: int) -> list[tuple[int, int]]:
        """Keep the farm; how many tasks wait for each stage, and how many workers are busy."""
        args = (max(1, round(ttl * 1000)), stages)
        found = self._farm("renew", run, args, keys.parts(run))
        return list(zip(found[::2], found[1::2], strict=True))

    def keep_alive(self, run: RunId, ttl: float, stages: int) -> None:
        """Keep the farm while something long is being said; never raises."""
        touched = (keys.state(run), keys.leases(run), keys.parts(run))
        beginnings = (keys.farm(run), keys.mailbox(run, ""))
        self._aside("renew", touched, (*beginnings, max(1, round(ttl * 1000)), stages))

    def dead(self, run: RunId) -> dict[str, tuple[Buffer, Buffer]]:
        """The tasks that were given up: what is known of each, and what its stage was given."""
        flat = self._call([["HGETALL", f"{keys.farm(run)}dead"]])[0]
        facts = dict(pairs(flat))
        if not facts:
            return {}
        inputs = self._call([["HMGET", f"{keys.farm(run)}tasks", *facts]])[0]
        return {task: (facts[task], given) for task, given in zip(facts, inputs, strict=True)}

    def trim(self, run: RunId, read: str) -> None:
        """Delete the client's letters up to the last one that it has read."""
        self._call([["XTRIM", keys.mailbox(run, keys.CLIENT), "MINID", read]])

    def end(self, run: RunId, stages: int) -> None:
        """End a farm and delete everything of it."""
        self._farm("end farm", run, [stages])
        self.close(run, ())


def _settled_args(done: Sequence[Settled]) -> Iterator[Arg]:
    for each in done:
        yield from (each.id, each.failure or "done", repr(each.seconds), each.blob)


def pairs(flat: Sequence[Buffer]) -> tuple[tuple[str, Buffer], ...]:
    """Ids and what belongs to each, from a flat list."""
    return tuple(zip([str(each, "utf-8") for each in flat[::2]], flat[1::2], strict=True))
