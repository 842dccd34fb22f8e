"""`Shards`: the outputs of runs, spread over several servers, or over the slots of a cluster.

1. An output is written once, under a key that nobody else uses, and never changed: what is there is
   right, whatever happened to the server meanwhile. What should be there and isn't has been lost.
2. A run exists on every shard from `begin` to `end`, as a set of its keys there, whose time to live
   they share. Where it doesn't exist, nothing is taken.
3. Who is to find an output gets a `Reference`, which is kept where the run is coordinated.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.errors import ShardLost, ShardUnavailable, StoreError, StoreUnavailable
from shoal.storage import keys
from shoal.storage.cluster import even_tags
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.resp import Arg
from shoal.storage.ring import Ring
from shoal.storage.server import Script, ServerClient
from shoal.types import RunId

CLUSTER_SHARDS = 24
"""Hash tags that the outputs of a run have in a cluster."""
_STAGED_SECONDS = 3600
_CLOSING_SECONDS = 1.0
"""For how long it is tried to delete something while a server doesn't answer anyway."""
_MAGIC = b"\0shoal shard\0"
"""How a reference begins; no output does."""

_TAKE = """
-- KEYS: the run's set, then outputs that have been written to stay for a while.
local ttl = redis.call('PTTL', KEYS[1])
for i = 2, #KEYS do
  if ttl == -2 then
    redis.call('UNLINK', KEYS[i])
  else
    redis.call('SADD', KEYS[1], KEYS[i])
    redis.call('PEXPIRE', KEYS[i], ttl)
  end
end
return ttl
"""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an output is."""

    shard: str
    key: str
    nbytes: int

    def packed(self) -> Blob:
        """As it is kept."""
        return [_MAGIC + json.dumps([self.shard, self.key, self.nbytes]).encode()]


def reference_in(data: Buffer | None) -> Reference | None:
    """The reference that was kept in an output's place; None: it is the output itself."""
    if data is None or bytes(memoryview(data)[: len(_MAGIC)]) != _MAGIC:
        return None
    return Reference(*json.loads(bytes(data)[len(_MAGIC) :]))


class ShardServer(ServerClient):
    """A server, or a cluster, that has shards."""

    scripts = {"take": Script(_TAKE)}  # noqa: RUF012 - as its base

    def begin(self, tags: Sequence[str], ttl: int) -> None:
        """Have a run exist, or exist for so long from now on."""
        made: list[list[Arg]] = [["SADD", keys.shard(tag), ""] for tag in tags]
        self._call(made + [["EXPIRE", keys.shard(tag), ttl] for tag in tags])

    def put(self, tag: str, blobs: Sequence[tuple[str, Blob]]) -> bool:
        """Write outputs under their keys; False if the run doesn't exist here."""
        staging: list[list[Arg]] = [["SET", k, b, "EX", _STAGED_SECONDS] for k, b in blobs]
        touched = (keys.shard(tag), *(key for key, _ in blobs))
        return int(self._script("take", touched, (), staging)) != -2

    def get(self, wanted: Sequence[str]) -> list[Buffer | None]:
        """Outputs; None for what isn't there."""
        return self._call([["GET", key] for key in wanted])

    def exist(self, wanted: Sequence[str]) -> list[bool]:
        """Whether outputs are there."""
        return list(map(bool, self._call([["EXISTS", key] for key in wanted])))

    def drop(self, unwanted: Sequence[str]) -> None:
        """Delete outputs that nobody was told of; if that can't be, they go with the run."""
        self._call([["UNLINK", key] for key in unwanted], seconds=0.0)

    def expire(self, tags: Sequence[str], milliseconds: int) -> None:
        """Have everything of a run deleted after so long; 0: now."""
        patience = _CLOSING_SECONDS if self._outage.lasts else None
        sets = [keys.shard(tag) for tag in tags]
        commands: list[list[Arg]] = []
        members = self._call([["SMEMBERS", each] for each in sets], seconds=patience)
        for each, found in zip(sets, members, strict=True):
            for key in (each, *(str(member, "utf-8") for member in found if member)):
                late: list[Arg] = ["PEXPIRE", key, milliseconds]
                commands.append(late if milliseconds else ["UNLINK", key])
        self._call(commands, seconds=patience)


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of all outputs."""

    name: str
    """On the ring, and in references."""
    server: ShardServer
    number: int | None = None
    """Which one of a cluster's it is; None: it has a server of its own."""

    def tag(self, run: RunId) -> str:
        """The hash tag of a run's outputs here."""
        return run if self.number is None else even_tags(run, CLUSTER_SHARDS)[self.number]


class Shards:
    """Every shard, and which one has what."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self._ring = Ring(self._shards)
        self._servers: dict[ShardServer, list[Shard]] = {}
        for shard in shards:
            self._servers.setdefault(shard.server, []).append(shard)

    def begin(self, run: RunId, ttl: int) -> None:
        """Have a run exist everywhere, or exist for so long from now on."""
        for server, shards in self._servers.items():
            with _told_apart():
                server.begin([shard.tag(run) for shard in shards], ttl)

    def put(self, run: RunId, outputs: Sequence[tuple[str, Blob]]) -> list[Reference]:
        """Write outputs; where each is.

        Raises:
            ShardLost: The run doesn't exist on a shard, or no longer.
        """
        references: list[Reference] = []
        written: dict[Shard, list[tuple[str, Blob]]] = {}
        for name, blob in outputs:
            shard = self._shard(run, name)
            key = keys.sharded_output(shard.tag(run), secrets.token_hex(8))
            references.append(Reference(shard.name, key, blob_nbytes(blob)))
            written.setdefault(shard, []).append((key, blob))
        for shard, blobs in written.items():
            with _told_apart():
                if not shard.server.put(shard.tag(run), blobs):
                    raise _lost(run, shard.server, keys.shard(shard.tag(run)))
        return references

    def get(self, run: RunId, references: Sequence[Reference]) -> list[Buffer]:
        """The outputs that references are to.

        Raises:
            ShardLost: One isn't there any more.
        """
        found: dict[Reference, Buffer] = {}
        for server, wanted in self._by_server(references).items():
            with _told_apart():
                got = server.get([reference.key for reference in wanted])
            for reference, data in zip(wanted, got, strict=True):
                if data is None:
                    raise _lost(run, server, reference.key)
                found[reference] = data
        return [found[reference] for reference in references]

    def missing(self, references: Sequence[Reference]) -> list[Reference]:
        """Those whose outputs aren't there any more."""
        missing: list[Reference] = []
        for server, known in self._by_server(references).items():
            with _told_apart():
                there = server.exist([reference.key for reference in known])
            missing += [each for each, is_there in zip(known, there, strict=True) if not is_there]
        return missing

    def drop(self, references: Sequence[Reference]) -> None:
        """Delete outputs that nobody was told of; those that can't be now go with the run."""
        for server, unwanted in self._by_server(references).items():
            with contextlib.suppress(StoreUnavailable):
                server.drop([reference.key for reference in unwanted])

    def expire(self, run: RunId, seconds: float | None) -> None:
        """Have everything of a run deleted after so long, None: now; on all servers that answer."""
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        problem: StoreError | None = None
        for server, shards in self._servers.items():
            try:
                server.expire([shard.tag(run) for shard in shards], milliseconds)
            except StoreError as error:
                problem = error
        if problem is not None:
            raise problem

    def server_of(self, run: RunId, name: str) -> str:
        """The server that has an output."""
        shard = self._shard(run, name)
        return shard.server.server_of(keys.shard(shard.tag(run)))

    def _shard(self, run: RunId, name: str) -> Shard:
        return self._shards[self._ring.place(f"{run}\n{name}")]

    def disconnect(self) -> None:
        """Give up the connections."""
        for server in self._servers:
            server.disconnect()

    def _by_server(self, references: Sequence[Reference]) -> dict[ShardServer, list[Reference]]:
        servers: dict[ShardServer, list[Reference]] = {}
        for reference in references:
            servers.setdefault(self._shards[reference.shard].server, []).append(reference)
        return servers


def _lost(run: RunId, server: ShardServer, key: str) -> ShardLost:
    return ShardLost(
        f"The store at {server.server_of(key)} has lost outputs of run {run}: it was restarted "
        "without its data, or they were deleted. With `appendonly yes` a server keeps them."
    )


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """Say that it is a shard that doesn't answer."""
    try:
        yield
    except StoreUnavailable as error:
        raise ShardUnavailable(str(error)) from error
