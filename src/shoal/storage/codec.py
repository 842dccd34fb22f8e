"""Values as bytes: pickle protocol 5 with out-of-band buffers, signed with the run's key.

Layout: magic, HMAC-SHA256, then the signed part (number of buffers, length of the pickle stream,
length of each buffer, the stream itself), then the buffers, each aligned to 64 bytes. Buffers are
raw data that unpickling never executes, so they need no signature, and aren't copied for one.
Nothing is unpickled before its signature is verified.

The signature also covers a name, which isn't in the blob: what the value was written as. A reader
knows which name to expect, so a genuine blob in the wrong place is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import struct
import sys
from io import BytesIO
from typing import Any

from shoal.errors import NotPicklable, Tampered
from shoal.storage.keys import signed_output

Buffer = bytes | bytearray | memoryview
Blob = list[Buffer]
"""An encoded value, as buffers that are written one after the other."""

_MAGIC = b"SHL1"
_MAC = 32
_HEAD = len(_MAGIC) + _MAC
_COUNTS = struct.Struct("<IQ")
_LENGTH = struct.Struct("<I")
_SMALL = 1 << 16
"""Shorter data is copied to be signed, which is faster than signing it in parts."""
_ALIGN = 64
_PADDING = bytes(_ALIGN)
_MOST_COLUMNS = 50
"""The most columns of a table whose sizes are added up."""

_EXACT = {type(None): 4, bool: 4, float: 12, complex: 24}
_PLAIN = frozenset((*_EXACT, int, str, bytes, bytearray))


def encode(value: Any, key: bytes, name: str, *, what: str = "a value") -> Blob:
    """Pickle a value and sign it under a name; `what` describes it in an error."""
    return _signed(_laid_out(value, what), key, name)


def encode_constant(value: Any, key: bytes, *, what: str) -> tuple[str, Blob]:
    """Encode a constant; return its name, which only equal content has, and the blob."""
    laid_out = _laid_out(value, what)
    name = f"constant:{content_name(laid_out)}"
    return name, _signed(laid_out, key, signed_output(name))


def content_name(blob: Blob) -> str:
    """Return a name that only equal content has."""
    digest = hashlib.blake2b(digest_size=16)
    for buffer in blob:
        digest.update(buffer)
    return digest.hexdigest()


def _signature(covered: Buffer, key: bytes, name: str) -> bytes:
    named = name.encode()
    named = _LENGTH.pack(len(named)) + named
    if len(covered) < _SMALL:
        return hmac.digest(key, named + covered, "sha256")
    mac = hmac.new(key, named, "sha256")
    mac.update(covered)
    return mac.digest()


def _signed(laid_out: Blob, key: bytes, name: str) -> Blob:
    covered = laid_out[0]
    return [b"".join((_MAGIC, _signature(covered, key, name), covered)), *laid_out[1:]]


def _pickled(value: Any, buffers: list[memoryview], what: str) -> bytes:
    if type(value) in _PLAIN:
        return pickle.dumps(value, 5)
    import cloudpickle

    found: list[pickle.PickleBuffer] = []
    out = BytesIO()
    try:
        cloudpickle.Pickler(out, protocol=5, buffer_callback=found.append).dump(value)
    except Exception as error:
        raise NotPicklable(what, f"{type(error).__name__}: {error}") from error
    for buffer in found:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            buffers.append(memoryview(memoryview(buffer).tobytes()))
    return out.getvalue()


def _laid_out(value: Any, what: str) -> Blob:
    """Return the part to be signed, and the buffers after it with their padding."""
    buffers: list[memoryview] = []
    stream = _pickled(value, buffers, what)
    lengths = [buffer.nbytes for buffer in buffers]
    covered = _COUNTS.pack(len(lengths), len(stream))
    if lengths:
        covered += struct.pack(f"<{len(lengths)}Q", *lengths)
    blob: Blob = [covered + stream]
    length = _HEAD + len(blob[0])
    for buffer in buffers:
        padding = -length % _ALIGN
        if padding:
            blob.append(_PADDING[:padding])
        blob.append(buffer)
        length += padding + buffer.nbytes
    return blob


def decode(data: Buffer, key: bytes, name: str) -> Any:
    """Return the value of a blob, after verifying that the run has signed it under a name.

    Its buffers are writable, and copied only if `data` is not.
    """
    view = memoryview(data)
    try:
        count, stream_length = _COUNTS.unpack_from(view, _HEAD)
        start = _HEAD + _COUNTS.size + 8 * count
        if view[:4] != _MAGIC or len(view) < start + stream_length:
            raise Tampered("A blob from the store is damaged: its header is wrong.")
    except struct.error as error:
        raise Tampered("A blob from the store is damaged: it is too short.") from error
    end = start + stream_length
    if not hmac.compare_digest(_signature(view[_HEAD:end], key, name), view[len(_MAGIC) : _HEAD]):
        raise Tampered(
            f"A blob from the store has a wrong signature: this run did not write it as the {name}."
        )
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
        raise Tampered("A blob from the store is truncated.")
    return pickle.loads(view[start:end], buffers=buffers)


def blob_nbytes(blob: Blob) -> int:
    """Return the length of a blob."""
    return sum([memoryview(buffer).nbytes for buffer in blob])


def quick_nbytes(value: Any) -> int | None:
    """Return a value's encoded size if it is known without pickling."""
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
    """Estimate the size of a value that isn't pickled."""
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
    """Estimate a table's size; its own method looks at each string and takes a millisecond."""
    if table.shape[1] > _MOST_COLUMNS:
        return int(table.size) * 8
    return int(table.index.nbytes) + sum([int(column.nbytes) for _, column in table.items()])
