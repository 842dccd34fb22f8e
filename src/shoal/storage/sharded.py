"""`ShardedStore`: a store over several servers, or over a cluster.

1. What a run is coordinated by stays together, on the server that the run's id belongs to, its
   home: all of that is a `RedisStore`, whose operations remain atomic.
2. Outputs spread over all servers. One is written to its shard first; then the operation that saves
   it keeps a reference at the run's home, where others find it. So an output is saved before
   anything is marked, and what the home refuses nobody ever finds. Small outputs stay at home.
3. A shard that has lost its data is noticed by whoever looks for an output, or writes one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shoal.errors import RunOver, ShardLost, StoreError
from shoal.storage import keys
from shoal.storage.base import Answer, Claim, Completion, Entry, Letter, Opening
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.places import is_cluster, is_spread, places
from shoal.storage.redis import RedisStore
from shoal.storage.ring import Ring
from shoal.storage.shards import CLUSTER_SHARDS, Reference, Shard, Shards, ShardServer, reference_in
from shoal.types import RunId, WorkerId

SMALL = 8 * 1024
"""Outputs up to so many bytes stay at home: they cost less than another round trip."""


class ShardedStore:
    """Runs on one of several servers each, their outputs on all."""

    def __init__(self, url: str, latency: float = 0.0, *, known: bool = False) -> None:
        """Reach all servers, or a cluster; the arguments are those of `ServerClient`."""
        self.url = url
        self._homes: dict[str, RedisStore] = {}
        shards: list[Shard] = []
        try:
            for name, where in places(url).items():
                self._homes[name] = RedisStore(where, latency, known=known)
                server = ShardServer(where, latency, known=True)
                if is_cluster(where):
                    shards += [Shard(str(n), server, n) for n in range(CLUSTER_SHARDS)]
                else:
                    shards.append(Shard(name, server))
        except BaseException:
            for home in self._homes.values():
                home.disconnect()
            raise
        self._ring = Ring(self._homes)
        self._shards = Shards(shards)

    @property
    def durable(self) -> bool:
        """Whether every server keeps what it is told when it is restarted."""
        return all(home.durable for home in self._homes.values())

    def _home(self, run: RunId) -> RedisStore:
        return self._homes[self._ring.place(run)]

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        self._shards.begin(run, opening.ttl)
        outputs = dict(self._spread(run, list(opening.outputs.items()))[0])
        self._home(run).open(run, replace(opening, outputs=outputs))

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        return self._home(run).enter(run, worker, epoch, part=part)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        """Save, mark, deliver."""
        with self._unless_over(run):
            saves, references = self._spread(run, completion.saves)
        try:
            return self._home(run).complete(run, worker, epoch, replace(completion, saves=saves))
        except RunOver:
            self._shards.drop(references)
            raise

    def _spread(
        self, run: RunId, saves: Sequence[tuple[str, Blob]]
    ) -> tuple[list[tuple[str, Blob]], list[Reference]]:
        """Write outputs to their shards; what is to be saved at home instead of them."""
        if not saves:
            return [], []
        large = [(name, blob) for name, blob in saves if blob_nbytes(blob) > SMALL]
        references = self._shards.put(run, large)
        following = iter(references)
        kept = [
            (name, next(following).packed() if blob_nbytes(blob) > SMALL else blob)
            for name, blob in saves
        ]
        return kept, references

    @contextlib.contextmanager
    def _unless_over(self, run: RunId) -> Iterator[None]:
        """Tell a run that a shard has lost from one that is over."""
        try:
            yield
        except ShardLost:
            self._home(run).check(run)
            raise

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs."""
        found = self._home(run).fetch(run, names)
        references = {at: to for at, data in enumerate(found) if (to := reference_in(data))}
        with self._unless_over(run):
            outputs = self._shards.get(list(references.values()))
        for at, output in zip(references, outputs, strict=True):
            found[at] = output
        return found

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """The server that has an output of so many bytes."""
        if nbytes > SMALL:
            return self._shards.server_of(run, name)
        return self._home(run).server_of(keys.state(run))

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        self._home(run).post(run, letter)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind `after`."""
        return self._home(run).receive(run, mailbox, after, timeout)

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever waits for that mailbox, or is about to."""
        self._home(run).hang_up(run, mailbox)

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        return self._home(run).park(run, worker, epoch, read, executed)

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with the right to start the worker again."""
        return self._home(run).hand_over(run, worker, epoch, executed)

    def tend(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of those whose lease is over."""
        return self._home(run).tend(run, alive)

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker that is in the middle of a transfer."""
        self._home(run).beat(run, worker, epoch, nbytes)

    def moved(self, run: RunId) -> int:
        """The bytes that have moved in transfers which have taken long."""
        return self._home(run).moved(run)

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        return self._home(run).restart(run, worker, epoch, cause, kind)

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the workers that are at work to leave."""
        return self._home(run).stop(run)

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started; what a shard has lost isn't saved."""
        home = self._home(run)
        home.check(run)
        self._shards.begin(run, opening.ttl)
        self._shards.expire(run, opening.ttl)
        kept = home.saved(run)
        references = {to: name for name, data in kept.items() if (to := reference_in(data))}
        missing = self._shards.missing(list(references))
        lost = [name for reference, name in references.items() if reference.key in missing]
        home.unsave(run, lost)
        outputs = dict(self._spread(run, list(opening.outputs.items()))[0])
        opening = replace(opening, outputs=outputs)
        return home.resume(run, opening, forgotten=forgotten or bool(lost))

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """The marks that are set."""
        return self._home(run).marked(run)

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        return self._home(run).twin(run, worker)

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed, as far as is known."""
        return self._home(run).progress(run)

    def expire(self, run: RunId, seconds: float) -> None:
        """Have everything of a run deleted later."""
        self._home(run).expire(run, seconds)
        self._shards.expire(run, seconds)

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it; first where all is refused from then on."""
        problem: StoreError | None = None
        try:
            self._home(run).close(run, workers)
        except StoreError as error:
            problem = error
        self._shards.expire(run, None)
        if problem is not None:
            raise problem

    def disconnect(self) -> None:
        """Give up the connections."""
        self._shards.disconnect()
        for home in self._homes.values():
            home.disconnect()


def open_store(
    url: str,
    latency: float = 0.0,
    *,
    known: bool = False,
    revive: Callable[[], None] | None = None,
) -> RedisStore | ShardedStore:
    """The store at a URL, or at several; the arguments are those of `ServerClient`."""
    if is_spread(url):
        return ShardedStore(url, latency, known=known)
    return RedisStore(url, latency, known=known, revive=revive)
