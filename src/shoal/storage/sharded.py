"""`ShardedStore`: a store over several servers, or over a cluster.

1. Each run has a home, the server that its id hashes to. All coordination of the run happens there,
   in a `RedisStore`, whose operations remain atomic.
2. Outputs are spread over all servers. An output is first written to its shard; the operation that
   saves it then stores a reference at the run's home. So an output is saved before anything is
   marked, and no worker finds an output that the home has refused. Small outputs stay at home.
3. The loss of a shard's data is detected when an output is read or written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shoal.clock import RealClock
from shoal.errors import RunOver, ShardLost, StoreError
from shoal.storage import keys
from shoal.storage.base import Answer, Claim, Completion, Entry, Opening, Store
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.letters import Letter, Received
from shoal.storage.plugged_in import store_maker
from shoal.storage.redis import RedisStore
from shoal.storage.ring import Ring
from shoal.storage.shard_urls import is_cluster, is_spread, shard_urls
from shoal.storage.shards import CLUSTER_SHARDS, Reference, Shard, Shards, ShardServer, reference_in
from shoal.types import RunId, WorkerId

SMALL = 8 * 1024
"""Outputs up to so many bytes stay at home, which is cheaper than another round trip."""


class ShardedStore:
    """A store whose runs are each on one of several servers, and their outputs on all."""

    def __init__(self, url: str, latency: float = 0.0, *, known: bool = False) -> None:
        """Connect to all servers, or to a cluster; the arguments are those of `ServerClient`."""
        self.url = url
        self._homes: dict[str, RedisStore] = {}
        shards: list[Shard] = []
        try:
            for name, server_url in shard_urls(url).items():
                self._homes[name] = RedisStore(server_url, latency, known=known)
                server = ShardServer(server_url, latency, known=True)
                if is_cluster(server_url):
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
        """Whether every server keeps its data when it restarts."""
        return all(home.durable for home in self._homes.values())

    def _home(self, run: RunId) -> RedisStore:
        return self._homes[self._ring.shard_of(run)]

    def clock(self, run: RunId, sent: float | None = None) -> RealClock:
        """Return a clock that tells the time of the run's home."""
        return self._home(run).clock(run, sent)

    def open(self, run: RunId, opening: Opening) -> None:
        """Start a run."""
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
        """Write outputs to their shards; return what to save at home, and the references."""
        if not saves:
            return [], []
        large = [(name, blob) for name, blob in saves if blob_nbytes(blob) > SMALL]
        references = self._shards.put(run, large)
        following = iter(references)
        at_home = [
            (name, next(following).packed() if blob_nbytes(blob) > SMALL else blob)
            for name, blob in saves
        ]
        return at_home, references

    @contextlib.contextmanager
    def _unless_over(self, run: RunId) -> Iterator[None]:
        """Raise `RunOver` rather than `ShardLost` if the run has ended."""
        try:
            yield
        except ShardLost:
            self._home(run).check(run)
            raise

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Return saved outputs."""
        found = self._home(run).fetch(run, names)
        references = {at: to for at, data in enumerate(found) if (to := reference_in(data))}
        with self._unless_over(run):
            outputs = self._shards.get(list(references.values()))
        for at, output in zip(references, outputs, strict=True):
            found[at] = output
        return found

    def place(self, run: RunId, name: str, nbytes: int) -> str:
        """Return the server that holds an output of so many bytes."""
        if nbytes > SMALL:
            return self._shards.server_of(run, name)
        return self._home(run).server_of(keys.state(run))

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        self._home(run).post(run, letter)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Received]:
        """Return the messages after the one with id `after`."""
        return self._home(run).receive(run, mailbox, after, timeout)

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """Wake the thread that waits for a mailbox, or is about to."""
        self._home(run).hang_up(run, mailbox)

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        return self._home(run).park(run, worker, epoch, read, executed)

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with a claim to start the worker again."""
        return self._home(run).hand_over(run, worker, epoch, executed)

    def supervise(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of workers whose leases have expired."""
        return self._home(run).supervise(run, alive)

    def beat(self, run: RunId, worker: WorkerId, epoch: int, nbytes: int) -> None:
        """Renew the lease of a worker during a transfer."""
        self._home(run).beat(run, worker, epoch, nbytes)

    def moved(self, run: RunId) -> int:
        """Return the bytes that long transfers have moved so far."""
        return self._home(run).moved(run)

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that has ended."""
        return self._home(run).restart(run, worker, epoch, cause, kind)

    def stop(self, run: RunId) -> list[WorkerId]:
        """Tell the running workers to leave."""
        return self._home(run).stop(run)

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started; lost outputs count as not saved."""
        home = self._home(run)
        home.check(run)
        self._shards.begin(run, opening.ttl)
        self._shards.expire(run, opening.ttl)
        saved = home.saved(run)
        references = {to: name for name, data in saved.items() if (to := reference_in(data))}
        missing = self._shards.missing(list(references))
        lost = [name for reference, name in references.items() if reference.key in missing]
        home.unsave(run, lost)
        outputs = dict(self._spread(run, list(opening.outputs.items()))[0])
        opening = replace(opening, outputs=outputs)
        return home.resume(run, opening, forgotten=forgotten or bool(lost))

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """Return the marks of tasks with owners."""
        return self._home(run).marked(run)

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker beside the running one."""
        return self._home(run).twin(run, worker)

    def progress(self, run: RunId) -> int:
        """Return how many tasks have been executed, as far as known."""
        return self._home(run).progress(run)

    def expire(self, run: RunId, seconds: float) -> None:
        """Delete a run later."""
        self._home(run).expire(run, seconds)
        self._shards.expire(run, seconds)

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete all its data, first at its home, which then refuses messages."""
        problem: StoreError | None = None
        try:
            self._home(run).close(run, workers)
        except StoreError as error:
            problem = error
        self._shards.expire(run, None)
        if problem is not None:
            raise problem

    def disconnect(self) -> None:
        """Close the connections."""
        self._shards.disconnect()
        for home in self._homes.values():
            home.disconnect()


def open_store(
    url: str,
    latency: float = 0.0,
    *,
    known: bool = False,
    revive: Callable[[], None] | None = None,
) -> Store:
    """Open the store at a URL, or at several; the arguments are those of `ServerClient`."""
    make = store_maker(url)
    if make is not None:
        return make(url)
    if is_spread(url):
        return ShardedStore(url, latency, known=known)
    return RedisStore(url, latency, known=known, revive=revive)


def is_durable(store: Store) -> bool:
    """Whether a store says that it keeps its data when its server restarts."""
    return bool(getattr(store, "durable", False))
