"""`ChunkClient`: outputs that exceed the longest value of a server, stored in chunks.

1. A chunk is a string under a key of its own, written once. It belongs to the run from then on: it
   has the run's time to live, and is deleted with the run.
2. In place of the output, a list of its chunks is saved. It is saved after the chunks, so a reader
   that finds the list finds them all. An output that is saved twice has two lists, and two sets of
   chunks.
3. Nothing is in memory twice: chunks are views of the output, and a reader receives each directly
   into its part of the result. A broken connection costs a chunk, not the whole output.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from shoal.errors import StoreRefused, StoreUnavailable, Tampered
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.resp import Arg, Connection
from shoal.storage.scripts import load
from shoal.storage.server import ServerClient, checked, ready

STAGED_SECONDS = 3600
"""When a value expires that was written and not accepted by its run."""
CHUNK = 64 * 2**20
"""The longest chunk, even if the server takes more: it copies what it sends."""
_LEAST = 2**20
"""No server can be configured to take less."""
_USUAL = 512 * 2**20
"""The default limit of a server."""
_LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
_MAGIC = b"\0shoal pieces\0"
"""The first bytes of a list of chunks; no output starts with them."""

EXPECT = load("outputs/expect")
ACCEPT = load("outputs/accept")


@dataclass(frozen=True, slots=True)
class Chunks:
    """The list of an output's chunks."""

    nbytes: int
    """The length of the output."""
    each: int
    """The length of each chunk but the last."""
    key: str
    """The prefix of their keys; the number follows."""

    def __iter__(self) -> Iterator[str]:
        """Yield the chunks' keys, in order."""
        return (f"{self.key}:{number}" for number in range(-(-self.nbytes // self.each)))

    def packed(self) -> Blob:
        """Return the list as it is saved."""
        return [_MAGIC + json.dumps([self.nbytes, self.each, self.key]).encode()]


def chunks_in(data: Buffer | None) -> Chunks | None:
    """Return the list that was saved in place of an output; None if it is the output itself."""
    if data is None or bytes(memoryview(data)[: len(_MAGIC)]) != _MAGIC:
        return None
    try:
        nbytes, each, key = json.loads(bytes(data)[len(_MAGIC) :])
        chunks = Chunks(int(nbytes), int(each), str(key))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Tampered(f"The list of an output's chunks is damaged: {error}.") from error
    if not 0 < chunks.nbytes < sys.maxsize or chunks.each < _LEAST:
        raise Tampered(f"The list of an output's chunks is damaged: {chunks}.")
    return chunks


def cut(blob: Blob, each: int) -> Iterator[Blob]:
    """Yield the chunks of an output, without copying."""
    chunk: Blob = []
    room = each
    for buffer in blob:
        view = memoryview(buffer)
        while view.nbytes:
            chunk.append(view[:room])
            taken = min(room, view.nbytes)
            view, room = view[taken:], room - taken
            if not room:
                yield chunk
                chunk, room = [], each
    if chunk:
        yield chunk


class ChunkClient(ServerClient):
    """Writes and reads outputs of any length."""

    _most: int | None = None
    """The longest value that the server takes, once it has been asked."""

    def most_nbytes(self) -> int:
        """The longest value that the server takes; it is asked once, and of a cluster one node."""

        def attempt() -> int:
            with self._connected() as connection:
                return _limit(connection.node(""))

        if self._most is None:
            self._most = self._persist(attempt)
        return self._most

    def _fits(self, nbytes: int) -> bool:
        """Whether an output is saved as one value."""
        return nbytes <= _LEAST or nbytes <= min(CHUNK, self.most_nbytes())

    def _check_length(self, blob: Blob, what: str) -> None:
        """Refuse a value that can't be split and is longer than the server takes."""
        nbytes = blob_nbytes(blob)
        if nbytes > _LEAST and nbytes > self.most_nbytes():
            raise StoreRefused(
                f"{what} has {nbytes:,} bytes, and the store at {self._address} takes "
                f"{self.most_nbytes():,} at once. Pass large data as arguments of tasks, or raise "
                f"{' and '.join(_LIMITS)} of the server."
            )

    def _put_chunks(self, run_key: str, set_key: str, prefix: str, blob: Blob) -> Chunks | None:
        """Write an output in chunks; return None if the run has ended.

        Args:
            run_key: A key that exists as long as the run, and has its time to live.
            set_key: The set of the run's keys.
            prefix: The prefix of the chunks' keys.
            blob: The output.
        """
        each = min(CHUNK, self.most_nbytes())
        chunks = Chunks(blob_nbytes(blob), each, f"{prefix}{token_hex(8)}")
        for key, chunk in zip(chunks, cut(blob, each), strict=True):
            *_, taken = self._call(
                [
                    EXPECT.evaluate((run_key, set_key, key)),
                    ["SET", key, chunk, "EX", STAGED_SECONDS],
                    ACCEPT.evaluate((run_key, set_key, key)),
                ]
            )
            if not taken:
                return None
        return chunks

    def _drop_chunks(self, unwanted: Iterable[Chunks]) -> None:
        """Delete chunks of an output that wasn't saved; if that fails, they go with the run."""
        commands: list[list[Arg]] = [["UNLINK", key] for each in unwanted for key in each]
        if commands:
            with contextlib.suppress(StoreUnavailable):
                self._call(commands, seconds=0.0)

    def _joined(self, chunks: Chunks) -> Buffer | None:
        """Return an output from its chunks; None if one is missing."""
        whole = _allocated(chunks.nbytes)
        for number, key in enumerate(chunks):
            target = whole[number * chunks.each : (number + 1) * chunks.each]
            if not self._read_into(target, key):
                return None
        return whole

    def _read_into(self, target: memoryview, key: str) -> bool:
        """Read a value into memory; return False if it is missing."""

        def attempt() -> list[Any]:
            with self._connected() as connection:
                return ready(connection, [connection.node(key).call_into(target, "GET", key)])

        (found,) = checked(self._persist(attempt))
        if found is not None and found is not target:
            raise Tampered(f"A chunk of an output in the store has the wrong length: {key}.")
        return found is not None


def _allocated(nbytes: int) -> memoryview:
    """Allocate memory without clearing it, as a bytearray would."""
    try:
        return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"Can't allocate {nbytes} bytes for an output.") from error


def _limit(connection: Connection) -> int:
    """Return the longest value that a server takes; the usual one if it doesn't tell."""
    replies = connection.pipeline([("CONFIG", "GET", name) for name in _LIMITS])
    answers = [reply for reply in ready(connection, replies) if not isinstance(reply, StoreRefused)]
    found = [int(bytes(reply[1])) for reply in answers if reply]
    if len(found) < len(_LIMITS):
        return min((_USUAL, *found))
    value, buffered = found
    return max(_LEAST, min(value, buffered // 2))
