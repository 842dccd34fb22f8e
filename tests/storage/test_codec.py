"""Encoded values are equal and writable after decoding, and nothing unsigned is decoded."""

from __future__ import annotations

import math
import mmap
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from examples_drawn import examples
from shoal.errors import NotPicklable, Tampered
from shoal.storage.codec import (
    blob_nbytes,
    decode,
    encode,
    encode_constant,
    estimated_nbytes,
    quick_nbytes,
)
from shoal.storage.keys import signed_output

KEY = b"k" * 32
OTHER_KEY = b"l" * 32
NAME = "output of 'add#0'"
HEAD = 4 + 32
"""Magic and signature."""

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
)
hashable = st.one_of(st.integers(), st.text(), st.binary(), st.none(), st.booleans())
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(hashable, inner, max_size=5),
        st.sets(hashable, max_size=5),
    ),
    max_leaves=20,
)


def joined(value: Any, key: bytes = KEY) -> bytes:
    return b"".join(encode(value, key, NAME))


def arrays() -> dict[str, Any]:
    base = np.arange(24, dtype="float64").reshape(2, 3, 4)
    return {
        "C order": base,
        "F order": np.asfortranarray(base),
        "not contiguous": base[:, ::2, 1:3],
        "backwards": base[::-1],
        "transposed": base.transpose(1, 0, 2),
        "empty": np.empty((0, 3)),
        "0-d": np.array(7.5),
        "object dtype": np.array([1, "two", None, [3]], dtype=object),
        "structured": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "big-endian": np.arange(5, dtype=">i4"),
        "booleans": np.array([True, False]),
        "text": np.array(["a", "bcd"]),
        "one byte": np.array([1], dtype="uint8"),
    }


def as_mmap(data: bytes, access: int) -> memoryview:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=access))


CARRIERS: dict[str, Any] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "view of bytes": memoryview,
    "view of a bytearray": lambda data: memoryview(bytearray(data)),
    "copy-on-write mmap": lambda data: as_mmap(data, mmap.ACCESS_COPY),
    "read-only mmap": lambda data: as_mmap(data, mmap.ACCESS_READ),
}


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


@given(nested)
def test_nested_values_survive_a_round_trip(value: Any) -> None:
    assert same(decode(joined(value), KEY, NAME), value)
    assert same(decode(bytearray(joined(value)), KEY, NAME), value)


@given(st.lists(st.binary(max_size=200), max_size=6), st.booleans())
def test_any_number_of_buffers_of_any_length_survives_a_round_trip(
    contents: list[bytes], readonly: bool
) -> None:
    value = [np.frombuffer(bytearray(content), "uint8") for content in contents]
    data = joined(value)
    found = decode(data if readonly else bytearray(data), KEY, NAME)
    assert [array.tobytes() for array in found] == contents


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("kind", arrays())
def test_arrays_are_equal_and_writable_after_decoding(kind: str, carrier: str) -> None:
    array = arrays()[kind]
    found = decode(CARRIERS[carrier](joined(array)), KEY, NAME)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.array_equal(found, array)
    assert found.flags.writeable
    found[...] = found.copy()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_bytearrays_are_writable_after_decoding(carrier: str) -> None:
    found = decode(CARRIERS[carrier](joined([bytearray(b"abc")])), KEY, NAME)
    found[0][0] = 0
    assert found == [bytearray(b"\x00bc")]


def test_the_memory_order_of_an_array_is_kept() -> None:
    found = decode(joined(np.asfortranarray(np.ones((3, 4)))), KEY, NAME)
    assert found.flags.f_contiguous
    assert not found.flags.c_contiguous


def test_a_read_only_array_stays_read_only() -> None:
    array = np.arange(5)
    array.flags.writeable = False
    assert not decode(bytearray(joined(array)), KEY, NAME).flags.writeable


def test_an_array_that_appears_twice_is_decoded_once() -> None:
    array = np.arange(5)
    one, other = decode(joined([array, array]), KEY, NAME)
    assert one is other


@pytest.mark.parametrize("shape", ["C order", "F order", "big-endian"])
def test_buffers_are_not_copied_when_encoded(shape: str) -> None:
    array = arrays()[shape]
    assert any(
        np.shares_memory(np.frombuffer(piece, "uint8"), array) for piece in encode(array, KEY, NAME)
    )


def test_buffers_are_not_copied_when_decoded_from_writable_memory() -> None:
    data = bytearray(joined({"a": np.arange(1000), "b": np.arange(3)}))
    memory = np.frombuffer(data, "uint8")
    found = decode(data, KEY, NAME)
    assert np.shares_memory(found["a"], memory)
    assert np.shares_memory(found["b"], memory)
    found["a"][0] = 77
    assert decode(data, KEY, NAME)["a"][0] == 77


def test_writing_to_a_value_decoded_from_bytes_leaves_them_alone() -> None:
    data = joined(np.arange(10))
    decode(data, KEY, NAME)[:] = -1
    assert np.array_equal(decode(data, KEY, NAME), np.arange(10))


def test_buffers_are_aligned_to_64_bytes() -> None:
    array, other = np.arange(1000), np.arange(3)
    data = bytearray(joined([array, other]))
    for piece in (array, other):
        assert data.index(piece.tobytes()) % 64 == 0


def test_length_of_a_blob_is_known_without_joining_it() -> None:
    for value in (1, "x" * 100, [np.arange(7), np.empty(0)], arrays()):
        assert blob_nbytes(encode(value, KEY, NAME)) == len(joined(value))


EXAMPLE = {"a": [1, "two"], "b": np.arange(20), "c": np.arange(3.0)}


def covered(data: bytearray) -> int:
    """Return the end of the signed part of a blob."""
    count, length = struct.unpack_from("<IQ", data, HEAD)
    return int(HEAD + 12 + 8 * count + length)


@examples(300)
@given(st.data())
def test_any_changed_byte_that_could_be_executed_is_noticed(data: st.DataObject) -> None:
    blob = bytearray(joined(EXAMPLE))
    position = data.draw(st.integers(0, covered(blob) - 1))
    blob[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Tampered):
        decode(blob, KEY, NAME)


@pytest.mark.parametrize("value", [EXAMPLE, 5, "text"], ids=["buffers", "int", "str"])
def test_a_truncated_blob_is_noticed(value: Any) -> None:
    blob = joined(value)
    for length in range(len(blob)):
        with pytest.raises(Tampered):
            decode(blob[:length], KEY, NAME)


@given(st.binary(max_size=200))
def test_anything_else_is_rejected_as_no_blob(data: bytes) -> None:
    for head in (b"", b"SHL1"):
        with pytest.raises(Tampered):
            decode(head + data, KEY, NAME)


@given(nested)
def test_a_blob_of_another_run_is_rejected(value: Any) -> None:
    with pytest.raises(Tampered, match="signature"):
        decode(joined(value, OTHER_KEY), KEY, NAME)


@given(nested, st.text(), st.text())
def test_a_blob_written_under_another_name_is_rejected(value: Any, name: str, other: str) -> None:
    blob = b"".join(encode(value, KEY, name))
    assert same(decode(blob, KEY, name), value)
    if name != other:
        with pytest.raises(Tampered, match="signature"):
            decode(blob, KEY, other)


@pytest.mark.parametrize("nbytes", [0, 1 << 15, 1 << 16, 1 << 17])
def test_large_blobs_are_bound_to_their_names_too(nbytes: int) -> None:
    blob = joined(bytes(nbytes))
    assert decode(blob, KEY, NAME) == bytes(nbytes)
    with pytest.raises(Tampered, match="did not write it as the output of 'add#1'"):
        decode(blob, KEY, signed_output("add#1"))


def test_a_constant_is_signed_with_the_name_it_is_saved_under() -> None:
    name, blob = encode_constant([1, np.arange(5)], KEY, what="it")
    assert decode(b"".join(blob), KEY, signed_output(name))[0] == 1
    with pytest.raises(Tampered):
        decode(b"".join(blob), KEY, NAME)


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled_before_its_signature_was_checked(tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    with pytest.raises(Tampered):
        decode(joined(Bomb(str(mark)), OTHER_KEY), KEY, NAME)
    assert not mark.exists()
    decode(joined(Bomb(str(mark))), KEY, NAME)
    assert mark.exists()


def test_a_replaced_pickle_is_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    blob = joined("harmless")
    stream = pickle.dumps(Bomb(str(mark)), 5)
    forged = blob[:HEAD] + struct.pack("<IQ", 0, len(stream)) + stream
    with pytest.raises(Tampered):
        decode(forged, KEY, NAME)
    assert not mark.exists()


@pytest.mark.parametrize("value", [threading.Lock(), [1, {"a": threading.Lock()}]])
def test_an_unpicklable_value_is_named(value: Any) -> None:
    with pytest.raises(NotPicklable) as caught:
        encode(value, KEY, NAME, what="argument 2 of task 'merge#1'")
    assert caught.value.what == "argument 2 of task 'merge#1'"
    assert "argument 2 of task 'merge#1'" in str(caught.value)
    assert "lock" in caught.value.reason
    assert caught.value.__cause__ is not None


def test_value_whose_pickling_raises_is_named_with_the_reason() -> None:
    class Stubborn:
        def __reduce__(self) -> tuple[Any, ...]:
            raise ZeroDivisionError("no way")

    with pytest.raises(NotPicklable, match="ZeroDivisionError: no way"):
        encode(Stubborn(), KEY, NAME)


def test_functions_and_classes_that_cannot_be_imported_are_sent_by_value() -> None:
    factor = 3

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    found = decode(joined([lambda x: x * factor, Local(4)]), KEY, NAME)
    assert found[0](found[1].value) == 12


SENDER = """
import sys
from shoal.storage.codec import encode

OFFSET = 40

class Point:
    def __init__(self, x):
        self.x = x
    def moved(self):
        return Point(self.x + OFFSET)

def double(point):
    return Point(point.x * 2)

sys.stdout.buffer.write(b"".join(encode((double, Point(1), Point), bytes(32), "name")))
"""

RECEIVER = """
import sys
from shoal.storage.codec import decode

double, point, kind = decode(sys.stdin.buffer.read(), bytes(32), "name")
assert type(point) is kind
print(double(point.moved()).x)
"""


@pytest.mark.real
def test_functions_and_classes_of_a_script_are_sent_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SENDER)
    sent = subprocess.run([sys.executable, script], capture_output=True, check=True)
    found = subprocess.run(
        [sys.executable, "-c", RECEIVER],
        input=sent.stdout,
        capture_output=True,
        check=True,
        cwd=tmp_path.parent,
    )
    assert found.stdout == b"82\n"


@given(plain)
def test_the_quick_size_is_about_the_size_of_the_pickle(value: Any) -> None:
    nbytes = quick_nbytes(value)
    assert nbytes is not None
    assert abs(nbytes - len(pickle.dumps(value, 5))) <= 48


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, "ü" * 10**6, b"x" * 10**6, 1 << 8 * 10**6],
    ids=["ASCII", "other text", "bytes", "int"],
)
def test_the_quick_size_of_large_values_is_accurate(value: Any) -> None:
    nbytes = quick_nbytes(value)
    assert nbytes is not None
    assert math.isclose(nbytes, len(pickle.dumps(value, 5)), rel_tol=0.001)


@pytest.mark.parametrize("value", [[], (1,), {}, object(), np.arange(3), range(3)])
def test_a_size_that_needs_pickling_has_no_quick_answer(value: Any) -> None:
    assert quick_nbytes(value) is None


def test_estimated_size_of_an_array_is_its_buffer() -> None:
    assert estimated_nbytes(np.zeros((100, 10))) == 8000


def test_estimated_size_needs_no_pickling() -> None:
    assert estimated_nbytes(threading.Lock()) > 0
    assert estimated_nbytes("x" * 1000) == quick_nbytes("x" * 1000)
    assert estimated_nbytes(list(range(1000))) >= 8000


def test_a_constants_name_depends_on_its_content_and_not_on_the_key() -> None:
    values = [1, 2, "1", [np.arange(3)], [np.arange(4)], [np.arange(3.0)], np.zeros(8), np.ones(8)]
    names = [encode_constant(value, KEY, what="it")[0] for value in values]
    assert len(set(names)) == len(values)
    assert names == [encode_constant(value, OTHER_KEY, what="it")[0] for value in values]


@pytest.mark.parametrize("columns", [3, 200])
def test_a_tables_size_is_estimated_from_its_columns(columns: int) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({str(n): np.arange(1000.0) for n in range(columns)})
    assert estimated_nbytes(table) == pytest.approx(columns * 8000, rel=0.1)


def test_no_other_module_unpickles() -> None:
    """docs/security.md says why each of these may."""
    source = Path(shoal.__file__).parent
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"pickle\.loads?\b|Unpickler|marshal\.loads?\b", path.read_text())
    }
    assert found == {
        "integrations/calls.py",
        "storage/codec.py",
        "client/post_run.py",
        "client/post_run_frames.py",
        "client/post_run_process.py",
        "client/post_run_work.py",
        "client/references.py",
        "client/resume.py",
        "worker/package.py",
    }
