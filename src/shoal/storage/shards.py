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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from secrets import token_hex
from typing import TypeVar

from shoal.errors import ShardLost, ShardUnavailable, StoreUnavailable, Tampered
from shoal.storage import keys
from shoal.storage.cluster import even_tags
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.pieces import EXPECT, STAGED_SECONDS, TAKE, PieceClient, pieces_in
from shoal.storage.resp import Arg
from shoal.storage.ring import Ring
from shoal.types import RunId

S = TypeVar("S")
T = TypeVar("T")

CLUSTER_SHARDS = 24
"""Hash tags that the outputs of a run have in a cluster."""
_LISTED = 1024
"""Bytes that a list of pieces doesn't have."""
_CLOSING_SECONDS = 1.0
"""For how long it is tried to delete what would go by itself one day."""
_MAGIC = b"\0shoal shard\0"
"""How a reference begins; no output does."""

_END = """
-- KEYS: the run's set. ARGV: after how many milliseconds everything is deleted; 0: now.
-- All at once: whoever writes meanwhile is either in the set or refused.
local found = redis.call('SMEMBERS', KEYS[1])
found[#found + 1] = KEYS[1]
for _, key in ipairs(found) do
  if key ~= '' and ARGV[1] == '0' then
    redis.call('UNLINK', key)
  elseif key ~= '' then
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return 1
"""
_BEGIN = "redis.call('SADD', KEYS[1], '') return redis.call('EXPIRE', KEYS[1], ARGV[1])"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an output is."""

    shard: str
    key: str

    def packed(self) -> Blob:
        """As it is kept."""
        return [_MAGIC + json.dumps([self.shard, self.key]).encode()]


def reference_in(data: Buffer | None) -> Reference | None:
    """The reference that was kept in an output's place; None: it is the output itself."""
    if data is None or bytes(memoryview(data)[: len(_MAGIC)]) != _MAGIC:
        return None
    try:
        return Reference(*map(str, json.loads(bytes(data)[len(_MAGIC) :])))
    except (ValueError, TypeError, RecursionError) as error:
        raise Tampered(f"A reference to an output is damaged: {error}.") from error


class ShardServer(PieceClient):
    """A server, or a cluster, that has shards. Each operation is one round trip."""

    def begin(self, tags: Sequence[str], ttl: int) -> None:
        """Have a run exist, or exist for so long from now on."""
        self._call([["EVAL", _BEGIN, 1, keys.shard(tag), ttl] for tag in tags])

    def put(self, shares: Mapping[str, Sequence[tuple[str, Blob]]]) -> None:
        """Write outputs under their keys, by their tags.

        Raises:
            ShardLost: The run doesn't exist here.
        """
        commands: list[list[Arg]] = []
        decisive: list[int] = []
        for tag, blobs in shares.items():
            held = keys.shard(tag)
            touched = (held, held, *(key for key, _ in blobs))
            commands.append(["EVAL", EXPECT, len(touched), *touched])
            for key, blob in blobs:
                commands.append(["SET", key, self._fitting(held, key, blob), "EX", STAGED_SECONDS])
            decisive.append(len(commands))
            commands.append(["EVAL", TAKE, len(touched), *touched])
        replies = self._call(commands)
        for tag, taken in zip(shares, decisive, strict=True):
            if not replies[taken]:
                raise self.loss(keys.shard(tag))

    def get(self, wanted: Sequence[str]) -> list[Buffer]:
        """Outputs.

        Raises:
            ShardLost: One isn't there.
        """
        outputs: list[Buffer] = []
        for key, data in zip(wanted, self._call([["GET", key] for key in wanted]), strict=True):
            pieces = pieces_in(data)
            output = data if pieces is None else self._joined(pieces)
            if output is None:
                raise self.loss(key)
            outputs.append(output)
        return outputs

    def _fitting(self, held: str, key: str, blob: Blob) -> Blob:
        """An output; or, if it is too long for one value, what is saved in its place."""
        if self._fits(blob_nbytes(blob)):
            return blob
        pieces = self._put_pieces(held, held, f"{key}:", blob)
        if pieces is None:
            raise self.loss(held)
        return pieces.packed()

    def loss(self, key: str) -> ShardLost:
        """What to say of something that should be there."""
        return ShardLost(
            f"The store at {self.server_of(key)} has lost outputs: it was restarted without its "
            "data, or they were deleted. With `appendonly yes` a server keeps them."
        )

    def exist(self, wanted: Sequence[str]) -> list[bool]:
        """Whether outputs are there."""
        return list(map(bool, self._call([["EXISTS", key] for key in wanted])))

    def drop(self, unwanted: Sequence[str]) -> None:
        """Delete outputs that nobody was told of; if that can't be, they go with the run."""
        begun = self._call([["GETRANGE", key, 0, _LISTED] for key in unwanted], seconds=0.0)
        self._drop_pieces(filter(None, map(pieces_in, begun)))
        self._call([["UNLINK", key] for key in unwanted], seconds=0.0)

    def expire(self, tags: Sequence[str], milliseconds: int) -> None:
        """Have everything of a run deleted after so long; 0: now."""
        sets = [keys.shard(tag) for tag in tags]
        commands: list[list[Arg]] = [["EVAL", _END, 1, each, milliseconds] for each in sets]
        self._call(commands, seconds=_CLOSING_SECONDS)


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
    """Every shard, and which one has what; several servers are asked at once."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self._ring = Ring(self._shards)
        self._servers: dict[ShardServer, list[Shard]] = {}
        for shard in shards:
            self._servers.setdefault(shard.server, []).append(shard)
        self._pool = ThreadPoolExecutor(4 * len(self._servers), "shoal-shards")

    def begin(self, run: RunId, ttl: int) -> None:
        """Have a run exist everywhere, or exist for so long from now on."""
        self._ask(lambda server, tags: server.begin(tags, ttl), self._tags(run))

    def put(self, run: RunId, outputs: Sequence[tuple[str, Blob]]) -> list[Reference]:
        """Write outputs; where each is."""
        references: list[Reference] = []
        shares: dict[ShardServer, dict[str, list[tuple[str, Blob]]]] = {}
        for name, blob in outputs:
            shard = self._shard(run, name)
            tag = shard.tag(run)
            references.append(Reference(shard.name, keys.sharded_output(tag, token_hex(8))))
            share = shares.setdefault(shard.server, {})
            share.setdefault(tag, []).append((references[-1].key, blob))
        self._ask(ShardServer.put, shares)
        return references

    def get(self, references: Sequence[Reference]) -> list[Buffer]:
        """The outputs that references are to."""
        wanted = self._keys(references)
        got = self._ask(ShardServer.get, wanted)
        found = {
            key: data
            for server in got
            for key, data in zip(wanted[server], got[server], strict=True)
        }
        return [found[reference.key] for reference in references]

    def missing(self, references: Sequence[Reference]) -> set[str]:
        """The keys of outputs that aren't there any more."""
        known = self._keys(references)
        there = self._ask(ShardServer.exist, known)
        return {
            key
            for server, found in there.items()
            for key, is_there in zip(known[server], found, strict=True)
            if not is_there
        }

    def drop(self, references: Sequence[Reference]) -> None:
        """Delete outputs that nobody was told of; those that can't be now go with the run."""
        with contextlib.suppress(StoreUnavailable):
            self._ask(ShardServer.drop, self._keys(references))

    def expire(self, run: RunId, seconds: float | None) -> None:
        """Have everything of a run deleted after so long, None: now; on all servers that answer."""
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        self._ask(lambda server, tags: server.expire(tags, milliseconds), self._tags(run))

    def server_of(self, run: RunId, name: str) -> str:
        """The server that has an output."""
        shard = self._shard(run, name)
        return shard.server.server_of(keys.shard(shard.tag(run)))

    def disconnect(self) -> None:
        """Give up the connections."""
        for server in self._servers:
            server.disconnect()
        self._pool.shutdown(wait=False)

    def _shard(self, run: RunId, name: str) -> Shard:
        return self._shards[self._ring.place(f"{run}\n{name}")]

    def _tags(self, run: RunId) -> dict[ShardServer, list[str]]:
        return {s: [shard.tag(run) for shard in shards] for s, shards in self._servers.items()}

    def _keys(self, references: Sequence[Reference]) -> dict[ShardServer, list[str]]:
        found: dict[ShardServer, list[str]] = {}
        for reference in references:
            shard = self._shards.get(reference.shard)
            if shard is None:
                raise ShardLost(
                    f"An output is on shard {reference.shard}, which store= doesn't name: name all "
                    "servers that the run was begun with."
                )
            found.setdefault(shard.server, []).append(reference.key)
        return found

    def _ask(
        self, ask: Callable[[ShardServer, S], T], shares: Mapping[ShardServer, S]
    ) -> dict[ShardServer, T]:
        """Ask servers, each about its share; who fails doesn't keep the others from answering."""

        def asked(server: ShardServer) -> T:
            try:
                return ask(server, shares[server])
            except StoreUnavailable as error:
                raise ShardUnavailable(str(error)) from error

        if len(shares) < 2:
            return {server: asked(server) for server in shares}
        # Each thread moves bytes in the name of whoever asks.
        answers = {s: self._pool.submit(copy_context().run, asked, s) for s in shares}
        wait(answers.values())
        return {server: answer.result() for server, answer in answers.items()}
