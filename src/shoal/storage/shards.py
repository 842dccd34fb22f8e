"""`Shards`: the outputs of runs, spread over several servers, or over the slots of a cluster.

1. An output is written once, under a unique key, and never changed. So an output that exists is
   correct, whatever has happened to the server; one that is missing was lost.
2. A run exists on every shard from `begin` to `expire`, as a set of its keys there, which share the
   set's time to live. A shard refuses outputs of a run that doesn't exist there.
3. The run's home stores a `Reference` to each output, by which others find it.
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
from shoal.storage.chunks import ACCEPT, EXPECT, STAGED_SECONDS, ChunkClient, chunks_in
from shoal.storage.cluster import even_tags
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.resp import Arg
from shoal.storage.ring import Ring
from shoal.storage.scripts import load
from shoal.types import RunId

S = TypeVar("S")
T = TypeVar("T")

CLUSTER_SHARDS = 24
"""The number of hash tags of a run's outputs in a cluster."""
_LISTED = 1024
"""More bytes than any list of chunks has."""
_CLOSING_SECONDS = 1.0
"""How long to try to delete data that would expire anyway."""
_MAGIC = b"\0shoal shard\0"
"""The first bytes of a reference; no output starts with them."""

_BEGIN = load("outputs/begin")
_END = load("outputs/end")


@dataclass(frozen=True, slots=True)
class Reference:
    """The location of an output."""

    shard: str
    key: str

    def packed(self) -> Blob:
        """Return the reference as it is saved."""
        return [_MAGIC + json.dumps([self.shard, self.key]).encode()]


def reference_in(data: Buffer | None) -> Reference | None:
    """Return the reference that was saved in place of an output; None if it is the output."""
    if data is None or bytes(memoryview(data)[: len(_MAGIC)]) != _MAGIC:
        return None
    try:
        return Reference(*map(str, json.loads(bytes(data)[len(_MAGIC) :])))
    except (ValueError, TypeError, RecursionError) as error:
        raise Tampered(f"A reference to an output is damaged: {error}.") from error


class ShardServer(ChunkClient):
    """A server, or a cluster, with shards."""

    def begin(self, tags: Sequence[str], ttl: int) -> None:
        """Create a run, or renew its time to live."""
        self._call([_BEGIN.evaluate([keys.shard(tag)], ttl) for tag in tags])

    def put(self, shares: Mapping[str, Sequence[tuple[str, Blob]]]) -> None:
        """Write outputs under their keys, grouped by hash tag.

        Raises:
            ShardLost: The run doesn't exist here.
        """
        commands: list[list[Arg]] = []
        decisive: list[int] = []
        for tag, blobs in shares.items():
            run_key = keys.shard(tag)
            touched = (run_key, run_key, *(key for key, _ in blobs))
            commands.append(EXPECT.evaluate(touched))
            for key, blob in blobs:
                commands.append(
                    ["SET", key, self._fitting(run_key, key, blob), "EX", STAGED_SECONDS]
                )
            decisive.append(len(commands))
            commands.append(ACCEPT.evaluate(touched))
        replies = self._call(commands)
        for tag, taken in zip(shares, decisive, strict=True):
            if not replies[taken]:
                raise self.loss(keys.shard(tag))

    def get(self, wanted: Sequence[str]) -> list[Buffer]:
        """Return outputs.

        Raises:
            ShardLost: One is missing.
        """
        outputs: list[Buffer] = []
        for key, data in zip(wanted, self._call([["GET", key] for key in wanted]), strict=True):
            chunks = chunks_in(data)
            output = data if chunks is None else self._joined(chunks)
            if output is None:
                raise self.loss(key)
            outputs.append(output)
        return outputs

    def _fitting(self, run_key: str, key: str, blob: Blob) -> Blob:
        """Return an output; if it is too long for one value, write chunks and return their list."""
        if self._fits(blob_nbytes(blob)):
            return blob
        chunks = self._put_chunks(run_key, run_key, f"{key}:", blob)
        if chunks is None:
            raise self.loss(run_key)
        return chunks.packed()

    def loss(self, key: str) -> ShardLost:
        """Return the error for a missing key."""
        return ShardLost(
            f"The store at {self.server_of(key)} has lost outputs: it has restarted without its "
            "data, or they were deleted. Set `appendonly yes` on the server to keep them."
        )

    def exist(self, wanted: Sequence[str]) -> list[bool]:
        """Return whether each output exists."""
        return list(map(bool, self._call([["EXISTS", key] for key in wanted])))

    def drop(self, unwanted: Sequence[str]) -> None:
        """Delete outputs that no worker knows of; if that fails, they go with the run."""
        heads = self._call([["GETRANGE", key, 0, _LISTED] for key in unwanted], seconds=0.0)
        self._drop_chunks(filter(None, map(chunks_in, heads)))
        self._call([["UNLINK", key] for key in unwanted], seconds=0.0)

    def expire(self, tags: Sequence[str], milliseconds: int) -> None:
        """Delete a run after so many milliseconds; 0: now."""
        touched: list[list[Arg]] = [[keys.shard(tag)] for tag in tags]
        while touched:
            commands = [_END.evaluate(each, milliseconds) for each in touched]
            replies = self._call(commands, seconds=_CLOSING_SECONDS)
            named = zip(touched, (undeclared for undeclared, *_ in replies), strict=True)
            touched = [[*declared, *undeclared] for declared, undeclared in named if undeclared]


@dataclass(frozen=True, slots=True)
class Shard:
    """A server, or a part of a cluster, with a share of all outputs."""

    name: str
    """Its name on the ring, and in references."""
    server: ShardServer
    number: int | None = None
    """Its number in a cluster; None: it is a server of its own."""

    def tag(self, run: RunId) -> str:
        """Return the hash tag of a run's outputs here."""
        return run if self.number is None else even_tags(run, CLUSTER_SHARDS)[self.number]


class Shards:
    """All shards of a store. Requests to several servers run concurrently."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self._ring = Ring(self._shards)
        self._servers: dict[ShardServer, list[Shard]] = {}
        for shard in shards:
            self._servers.setdefault(shard.server, []).append(shard)
        self._pool = ThreadPoolExecutor(4 * len(self._servers), "shoal-shards")

    def begin(self, run: RunId, ttl: int) -> None:
        """Create a run on all shards, or renew its time to live."""
        self._ask(lambda server, tags: server.begin(tags, ttl), self._tags(run))

    def put(self, run: RunId, outputs: Sequence[tuple[str, Blob]]) -> list[Reference]:
        """Write outputs; return their references."""
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
        """Return the outputs that references point to."""
        wanted = self._keys(references)
        got = self._ask(ShardServer.get, wanted)
        found = {
            key: data
            for server in got
            for key, data in zip(wanted[server], got[server], strict=True)
        }
        return [found[reference.key] for reference in references]

    def missing(self, references: Sequence[Reference]) -> set[str]:
        """Return the keys of outputs that are lost."""
        known = self._keys(references)
        there = self._ask(ShardServer.exist, known)
        return {
            key
            for server, found in there.items()
            for key, is_there in zip(known[server], found, strict=True)
            if not is_there
        }

    def drop(self, references: Sequence[Reference]) -> None:
        """Delete outputs that no worker knows of; if that fails, they go with the run."""
        with contextlib.suppress(StoreUnavailable):
            self._ask(ShardServer.drop, self._keys(references))

    def expire(self, run: RunId, seconds: float | None) -> None:
        """Delete a run after so many seconds, None: now; on all servers that answer."""
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        self._ask(lambda server, tags: server.expire(tags, milliseconds), self._tags(run))

    def server_of(self, run: RunId, name: str) -> str:
        """Return the server that holds an output."""
        shard = self._shard(run, name)
        return shard.server.server_of(keys.shard(shard.tag(run)))

    def disconnect(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.disconnect()
        self._pool.shutdown(wait=False)

    def _shard(self, run: RunId, name: str) -> Shard:
        return self._shards[self._ring.shard_of(f"{run}\n{name}")]

    def _tags(self, run: RunId) -> dict[ShardServer, list[str]]:
        return {s: [shard.tag(run) for shard in shards] for s, shards in self._servers.items()}

    def _keys(self, references: Sequence[Reference]) -> dict[ShardServer, list[str]]:
        found: dict[ShardServer, list[str]] = {}
        for reference in references:
            shard = self._shards.get(reference.shard)
            if shard is None:
                raise ShardLost(
                    f"An output is on shard {reference.shard}, which store= doesn't name: name all "
                    "servers that the run was started with."
                )
            found.setdefault(shard.server, []).append(reference.key)
        return found

    def _ask(
        self, ask: Callable[[ShardServer, S], T], shares: Mapping[ShardServer, S]
    ) -> dict[ShardServer, T]:
        """Call each server with its share, concurrently; one failure doesn't stop the others."""

        def asked(server: ShardServer) -> T:
            try:
                return ask(server, shares[server])
            except StoreUnavailable as error:
                raise ShardUnavailable(str(error)) from error

        if len(shares) < 2:
            return {server: asked(server) for server in shares}
        # The threads send the caller's heartbeats.
        answers = {s: self._pool.submit(copy_context().run, asked, s) for s in shares}
        wait(answers.values())
        return {server: answer.result() for server, answer in answers.items()}
