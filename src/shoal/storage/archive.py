"""A run's archive: what a server and shared memory have of a run, as pieces in one file.

1. A piece says what it is, whose, and what is in it. Pieces are small, so that nothing large is
   held twice in memory; a large output is several, one after the other.
2. A file that was cut off is noticed, by its last piece.
3. Blobs stay as they are, signed with the run's key, which isn't in the archive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from shoal.errors import Tampered
from shoal.storage.codec import Buffer

PIECE = 8 << 20
"""The most that a piece of a large output has."""
DUMPED = b"D"
"""A key of the server, in its own format."""
SAVED = b"O"
"""A saved output that isn't large."""
STRING = b"L"
"""The next bytes of a string on the server: a large output, or a part of one."""
SHARED = b"S"
"""The next bytes of a file in shared memory."""
_END = b"E"
_HEAD = struct.Struct("<cIQ")
_MAGIC = b"shoal run 1\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what is known of a run."""

    kind: bytes
    name: str
    data: Buffer


def write_pieces(file: BinaryIO, pieces: Iterable[Piece]) -> Iterator[int]:
    """Write pieces to a file; after each one, the length of the file."""
    length = file.write(_MAGIC)
    for piece in _ended(pieces):
        name = piece.name.encode(errors="surrogatepass")
        file.write(_HEAD.pack(piece.kind, len(name), memoryview(piece.data).nbytes))
        file.write(name)
        file.write(piece.data)
        length += _HEAD.size + len(name) + memoryview(piece.data).nbytes
        yield length


def _ended(pieces: Iterable[Piece]) -> Iterator[Piece]:
    yield from pieces
    yield Piece(_END, "", b"")


def read_pieces(file: BinaryIO) -> Iterator[Piece]:
    """The pieces in a file."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise Tampered("What is kept of a run is damaged: it doesn't begin as it should.")
    while True:
        kind, named, nbytes = _HEAD.unpack(_exactly(file, _HEAD.size))
        name = _exactly(file, named).decode(errors="surrogatepass")
        if kind == _END:
            return
        yield Piece(kind, name, _exactly(file, nbytes))


def _exactly(file: BinaryIO, nbytes: int) -> bytes:
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise Tampered("What is kept of a run is damaged: it is cut off.")
    return data
