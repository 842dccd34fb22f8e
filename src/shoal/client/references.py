"""The modules that pickles refer to, found without loading anything.

A pickle names a module in a string that may also serve as something else, so its text doesn't tell.
An unpickler does that makes the same harmless object of everything.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from shoal.storage.codec import Buffer

_BEGINNING = re.compile(rb"\x80[\x04\x05]\x95")
"""The first bytes of a pickle, also of one inside another."""
_LONGEST = 16 * 2**20
"""How much of a pickle is read: what is longer consists of data."""


def referenced_modules(pickles: Iterable[Buffer]) -> set[str]:
    """The modules that pickles refer to, and that pickles inside them do."""
    found: set[str] = set()
    for data in pickles:
        view = memoryview(data)
        for beginning in _BEGINNING.finditer(view):
            start = beginning.start()
            try:
                _Reader(_Bytes(view[start : start + _LONGEST]), found).load()
            except Exception:  # noqa: BLE001 - any bytes may look like the beginning of a pickle
                continue
    return found


class _Anything:
    """Takes the place of all objects: it can be made and changed in any way."""

    def __new__(cls, *_: Any, **__: Any) -> _Anything:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return _Anything()

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    add = extend = append


class _Reader(pickle.Unpickler):
    """Notes the modules of a pickle."""

    def __init__(self, file: _Bytes, found: set[str]) -> None:
        super().__init__(file, buffers=repeat(b""))
        self._found = found

    def find_class(self, module: str, name: str) -> Any:
        self._found.add(module)
        return self._import if name == "subimport" else _Anything

    def _import(self, module: str) -> _Anything:
        """Note a module that cloudpickle has made a call of."""
        self._found.add(module)
        return _Anything()


class _Bytes:
    """A file of bytes, which aren't copied as a whole."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def read(self, count: int) -> bytes:
        taken, self._view = bytes(self._view[:count]), self._view[count:]
        return taken

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer)
        taken = self.read(target.nbytes)
        target[: len(taken)] = taken
        return len(taken)

    def readline(self) -> bytes:
        end = bytes(self._view[:_LONGEST]).find(b"\n") + 1
        return self.read(end)
