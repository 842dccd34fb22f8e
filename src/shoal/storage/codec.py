"""Values as bytes: pickle protocol 5 with out-of-band buffers, signed with the run's key.

Layout: magic, HMAC-SHA256, then what it covers (number of buffers, length of the pickle stream,
length of each buffer, the stream itself); after that the buffers as they are, each at a multiple
of 64 bytes. Buffers are raw data that no unpickling executes, so they need no signature and are
never copied for one. Nothing is unpickled before its signature was checked.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import struct
import sys
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from shoal.errors import NotPicklable, Tampered

Buffer = bytes | bytearray | memoryview
Blob = list[Buffer]
"""A value as buffers, to be written one after the other without joining them first."""

_MAGIC = b"SHL1"
_MAC = 32
_HEAD = len(_MAGIC) + _MAC
_COUNTS = struct.Struct("<IQ")
_ALIGN = 64
_PADDING = bytes(_ALIGN)
_MOST_COLUMNS = 50
"""Of a table, that are looked at one by one for its size."""

_EXACT = {type(None): 4, bool: 4, float: 12, complex: 24}
_PLAIN = frozenset((*_EXACT, int, str, bytes, bytearray))


def encode(value: Any, key: bytes, *, what: str = "a value") -> Blob:
    """Pickle and sign a value; `what` names it should that fail."""
    buffers: list[memoryview] = []
    stream = _pickled(value, buffers, what)
    return _sealed(stream, buffers, key)


def _pickled(value: Any, buffers: list[memoryview], what: str) -> bytes:
    if type(value) in _PLAIN:
        return pickle.dumps(value, 5)
    import cloudpickle

    kept: list[pickle.PickleBuffer] = []
    out = BytesIO()
    try:
        cloudpickle.Pickler(out, protocol=5, buffer_callback=kept.append).dump(value)
    except Exception as error:
        raise NotPicklable(what, f"{type(error).__name__}: {error}") from error
    for buffer in kept:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            buffers.append(memoryview(memoryview(buffer).tobytes()))
    return out.getvalue()


def _sealed(stream: bytes, buffers: Sequence[memoryview], key: bytes) -> Blob:
    lengths = [buffer.nbytes for buffer in buffers]
    covered = _COUNTS.pack(len(lengths), len(stream))
    if lengths:
        covered += struct.pack(f"<{len(lengths)}Q", *lengths)
    covered += stream
    blob: Blob = [_MAGIC + hmac.digest(key, covered, "sha256") + covered]
    length = len(blob[0])
    for buffer in buffers:
        padding = -length % _ALIGN
        if padding:
            blob.append(_PADDING[:padding])
        blob.append(buffer)
        length += padding + buffer.nbytes
    return blob


def decode(data: Buffer, key: bytes) -> Any:
    """The value of a blob, after its signature was checked.

    Its buffers are writable, and copied only if `data` is not.
    """
    view = memoryview(data)
    try:
        count, stream_length = _COUNTS.unpack_from(view, _HEAD)
        start = _HEAD + _COUNTS.size + 8 * count
        if view[:4] != _MAGIC or len(view) < start + stream_length:
            raise Tampered("A blob from the store is damaged: it doesn't begin as it should.")
    except struct.error as error:
        raise Tampered("A blob from the store is damaged: it is too short.") from error
    end = start + stream_length
    if not hmac.compare_digest(
        hmac.digest(key, view[_HEAD:end], "sha256"), view[len(_MAGIC) : _HEAD]
    ):
        raise Tampered("A blob from the store has a wrong signature: this run did not write it.")
    if not count:
        return pickle.loads(view[start:end])
    if view.readonly:
        view = memoryview(bytearray(view))
    buffers = []
    position = end
    for length in struct.unpack_from(f"<{count}Q", view, _HEAD + _COUNTS.size):
        position += -position % _ALIGN
        buffers.append(view[position : position + length])
        position += length
    if position > len(view):
        raise Tampered("A blob from the store is cut off.")
    return pickle.loads(view[start:end], buffers=buffers)


def blob_nbytes(blob: Blob) -> int:
    """How long a blob is."""
    return sum(memoryview(buffer).nbytes for buffer in blob)


def quick_nbytes(value: Any) -> int | None:
    """The size of a value as bytes where that is known without pickling it."""
    kind = type(value)
    size = _EXACT.get(kind)
    if size is not None:
        return size
    if kind is int:
        bits: int = value.bit_length()
        return 12 + bits // 8
    if kind is bytes or kind is bytearray or (kind is str and value.isascii()):
        return len(value) + 8
    if kind is str:
        return len(value.encode(errors="surrogatepass")) + 8
    return None


def estimated_nbytes(value: Any) -> int:
    """Roughly the size of a value that is not going to be pickled."""
    size = quick_nbytes(value)
    if size is not None:
        return size
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _table_nbytes(value)
    return sys.getsizeof(value, 64)


def _table_nbytes(table: Any) -> int:
    """Roughly a table's size; its own answer looks at each string and takes a millisecond."""
    if table.shape[1] > _MOST_COLUMNS:
        return int(table.size) * 8
    return int(table.index.nbytes) + sum([int(column.nbytes) for _, column in table.items()])


def content_name(blob: Blob) -> str:
    """A name that only equal content has; the signature doesn't count."""
    digest = hashlib.blake2b(memoryview(blob[0])[_HEAD:], digest_size=16)
    for buffer in blob[1:]:
        digest.update(buffer)
    return digest.hexdigest()
