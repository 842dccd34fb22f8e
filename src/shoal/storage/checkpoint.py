"""A run's checkpoint: everything that the store and shared memory hold of a run, in one file.

1. It is a sequence of pieces, each with a kind, a name and data. Pieces are small, so that
   nothing large is in memory twice. A large output is several consecutive pieces.
2. The last piece marks the end, so a truncated file is detected.
3. Blobs keep their signatures. The run's key, which they are signed with, isn't in the checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from shoal.errors import Tampered
from shoal.storage.codec import Buffer

PIECE = 8 << 20
"""The most bytes of a large output in one piece."""
DUMPED = b"D"
"""A key of the server, in the format of DUMP."""
SAVED = b"O"
"""A saved output that isn't large."""
STRING = b"L"
"""The next bytes of a string on the server: a large output, or a chunk of one."""
SHARED = b"S"
"""The next bytes of a file in shared memory."""
_END = b"E"
_HEAD = struct.Struct("<cIQ")
_MAGIC = b"shoal run 1\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a checkpoint."""

    kind: bytes
    name: str
    data: Buffer


def write_pieces(file: BinaryIO, pieces: Iterable[Piece]) -> Iterator[int]:
    """Write pieces to a file, and yield the file's length after each."""
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
    """Yield the pieces in a file."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise Tampered("The checkpoint of a run is damaged: its header is wrong.")
    while True:
        kind, named, nbytes = _HEAD.unpack(_exactly(file, _HEAD.size))
        name = _exactly(file, named).decode(errors="surrogatepass")
        if kind == _END:
            return
        yield Piece(kind, name, _exactly(file, nbytes))


def _exactly(file: BinaryIO, nbytes: int) -> bytes:
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise Tampered("The checkpoint of a run is damaged: it is truncated.")
    return data
