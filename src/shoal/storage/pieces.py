"""`PieceClient`: outputs that are longer than a server takes at once, cut into pieces.

1. A piece is a string under a key of its own, which is written once. It belongs to the run as soon
   as it is there: it shares the run's time to live, and is deleted with it.
2. In the output's place stands a list of its pieces, which is saved after all of them: whoever
   finds the list finds the pieces. An output that is saved twice has two lists, and twice the
   pieces.
3. Nothing is held twice: pieces are views of the output, and whoever reads them has each written
   into its place. A connection that breaks costs a piece, not the output.
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
from shoal.storage.server import ServerClient, checked, ready

STAGED_SECONDS = 3600
"""After so long what was written goes that no run has taken."""
PIECE = 64 * 2**20
"""A longer output is cut whatever the server takes: it copies what it sends."""
_LEAST = 2**20
"""No server can be told to take less."""
_USUAL = 512 * 2**20
"""What a server takes that has been told nothing."""
_LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
_MAGIC = b"\0shoal pieces\0"
"""How a list of pieces begins; no output does."""

EXPECT = """
-- KEYS: as in TAKE. What is about to be written goes with the run, should its writer be killed.
if redis.call('PTTL', KEYS[1]) == -2 then return 0 end
for i = 3, #KEYS do redis.call('SADD', KEYS[2], KEYS[i]) end
return redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
"""
TAKE = """
-- KEYS: what exists as long as the run does, the set of its keys, then what has been written.
local ttl = redis.call('PTTL', KEYS[1])
for i = 3, #KEYS do
  if ttl == -2 then
    redis.call('UNLINK', KEYS[i])
  else
    redis.call('PEXPIRE', KEYS[i], ttl)
  end
end
return ttl ~= -2
"""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the pieces of an output are."""

    nbytes: int
    """Of all together."""
    each: int
    """Of each, but for the last."""
    key: str
    """How their keys begin; their number follows."""

    def __iter__(self) -> Iterator[str]:
        """Their keys, in their order."""
        return (f"{self.key}:{number}" for number in range(-(-self.nbytes // self.each)))

    def packed(self) -> Blob:
        """As the list is kept."""
        return [_MAGIC + json.dumps([self.nbytes, self.each, self.key]).encode()]


def pieces_in(data: Buffer | None) -> Pieces | None:
    """The list that was kept in an output's place; None: it is the output itself."""
    if data is None or bytes(memoryview(data)[: len(_MAGIC)]) != _MAGIC:
        return None
    try:
        nbytes, each, key = json.loads(bytes(data)[len(_MAGIC) :])
        pieces = Pieces(int(nbytes), int(each), str(key))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Tampered(f"A list of an output's pieces is damaged: {error}.") from error
    if not 0 < pieces.nbytes < sys.maxsize or pieces.each < _LEAST:
        raise Tampered(f"A list of an output's pieces is damaged: {pieces}.")
    return pieces


def cut(blob: Blob, each: int) -> Iterator[Blob]:
    """An output's pieces, without copying anything."""
    piece: Blob = []
    room = each
    for buffer in blob:
        view = memoryview(buffer)
        while view.nbytes:
            piece.append(view[:room])
            taken = min(room, view.nbytes)
            view, room = view[taken:], room - taken
            if not room:
                yield piece
                piece, room = [], each
    if piece:
        yield piece


class PieceClient(ServerClient):
    """Writes and reads outputs of any length."""

    _most: int | None = None
    """The longest value that the server takes, once somebody has asked."""

    def most_nbytes(self) -> int:
        """The longest value that the server takes; it is asked once, and of a cluster one node."""

        def attempt() -> int:
            with self._connected() as connection:
                return _limit(connection.node(""))

        if self._most is None:
            self._most = self._persist(attempt)
        return self._most

    def _fits(self, nbytes: int) -> bool:
        """Whether an output is saved in one piece."""
        return nbytes <= _LEAST or nbytes <= min(PIECE, self.most_nbytes())

    def _check_length(self, blob: Blob, what: str) -> None:
        """Refuse what has to be a single value, and is longer than the server takes."""
        nbytes = blob_nbytes(blob)
        if nbytes > _LEAST and nbytes > self.most_nbytes():
            raise StoreRefused(
                f"{what} has {nbytes:,} bytes, and the store at {self._address} takes "
                f"{self.most_nbytes():,} at once. Pass large data as arguments of tasks, or raise "
                f"{' and '.join(_LIMITS)} of the server."
            )

    def _put_pieces(self, run_key: str, set_key: str, beginning: str, blob: Blob) -> Pieces | None:
        """Write an output in pieces; None if the run is over.

        Args:
            run_key: What exists as long as the run does, and has its time to live.
            set_key: The set of the run's keys.
            beginning: How the pieces' keys begin.
            blob: The output.
        """
        each = min(PIECE, self.most_nbytes())
        pieces = Pieces(blob_nbytes(blob), each, f"{beginning}{token_hex(8)}")
        for key, piece in zip(pieces, cut(blob, each), strict=True):
            *_, taken = self._call(
                [
                    ["EVAL", EXPECT, 3, run_key, set_key, key],
                    ["SET", key, piece, "EX", STAGED_SECONDS],
                    ["EVAL", TAKE, 3, run_key, set_key, key],
                ]
            )
            if not taken:
                return None
        return pieces

    def _drop_pieces(self, unwanted: Iterable[Pieces]) -> None:
        """Delete pieces that nobody was told of; if that can't be, they go with the run."""
        commands: list[list[Arg]] = [["UNLINK", key] for each in unwanted for key in each]
        if commands:
            with contextlib.suppress(StoreUnavailable):
                self._call(commands, seconds=0.0)

    def _joined(self, pieces: Pieces) -> Buffer | None:
        """An output that was written in pieces; None if one isn't there."""
        whole = _fresh(pieces.nbytes)
        for number, key in enumerate(pieces):
            place = whole[number * pieces.each : (number + 1) * pieces.each]
            if not self._read_into(place, key):
                return None
        return whole

    def _read_into(self, place: memoryview, key: str) -> bool:
        """Have a value written to its place; False if it isn't there."""

        def attempt() -> list[Any]:
            with self._connected() as connection:
                return ready(connection, [connection.node(key).call_into(place, "GET", key)])

        (found,) = checked(self._persist(attempt))
        if found is not None and found is not place:
            raise Tampered(f"A piece of an output in the store is not as long as it was: {key}.")
        return found is not None


def _fresh(nbytes: int) -> memoryview:
    """Memory that is first touched by what is written to it; a bytearray would be cleared."""
    try:
        return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"There are no {nbytes} bytes for an output.") from error


def _limit(connection: Connection) -> int:
    """The longest value that a server takes, or is likely to if it doesn't tell."""
    replies = connection.pipeline([("CONFIG", "GET", name) for name in _LIMITS])
    told = [reply for reply in ready(connection, replies) if not isinstance(reply, StoreRefused)]
    found = [int(bytes(reply[1])) for reply in told if reply]
    if len(found) < len(_LIMITS):
        return min((_USUAL, *found))
    value, buffered = found
    return max(_LEAST, min(value, buffered // 2))
