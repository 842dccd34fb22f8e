"""A single call on its way to a worker, and what becomes of it on its way back.

1. Each call is pickled on its own, and so is its result: what can't be pickled, or unpickled,
   concerns that call and none that travels beside it. Large buffers aren't copied for it.
2. An exception is a result like any other, so that it doesn't end the run of the other calls. It
   comes with the worker's traceback as its cause.
3. A worker loads this module, so it imports little.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

from shoal.errors import NotPicklable, RemoteTraceback
from shoal.worker.failure import reason_of, traceback_of
from shoal.workflow import Output, Task, known_by, origin_of

Reply = bytes | tuple[bytes, list[Any]]
"""Pickled: whether the call returned, after how many seconds, and its value, or the exception and
where it was raised. Large buffers are beside it."""

_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))


class _Bulk:
    """A buffer that is an argument of its own, so that it travels once for all calls."""

    def __init__(self, buffer: pickle.PickleBuffer) -> None:
        self.buffer = buffer
        self.nbytes = memoryview(buffer).nbytes

    def __reduce__(self) -> Any:
        return _arrived, (self.buffer,)


def _arrived(buffer: Any) -> Any:
    return buffer


def call_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Output[Reply]:
    """The output that stands for a call; `NotPicklable` if it can't travel."""
    name, key = name_of(function), origin_of(function)
    try:
        stream, buffers = _pickled((function, args, kwargs))
    except Exception as error:
        raise NotPicklable(f"a call of {name!r}", f"{type(error).__name__}: {error}") from error
    return _task(name, key)(stream, *[_Bulk(buffer) for buffer in buffers])


def name_of(function: Callable[..., Any]) -> str:
    """What a call is known by, in logs and messages."""
    inner = getattr(function, "func", function)  # what a partial calls
    name = getattr(inner, "__name__", None)
    usable = isinstance(name, str) and name.isprintable() and "#" not in name and name
    return name if usable and isinstance(name, str) else type(inner).__name__


@lru_cache(256)
def _task(name: str, key: str) -> Task[..., Reply]:
    return known_by(key, Task(perform, name=name))


def perform(stream: bytes, *buffers: Any) -> Reply:
    """Make the call, on the worker."""
    began = time.perf_counter()
    try:
        function, args, kwargs = pickle.loads(stream, buffers=buffers)
        value = function(*args, **kwargs)
        elapsed = time.perf_counter() - began
        try:
            reply, kept = _pickled((True, elapsed, value), plain=type(value) in _PLAIN)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise NotPicklable(f"the result of {name_of(function)!r}", reason) from error
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        return _pickled_error(error, time.perf_counter() - began)
    return (reply, kept) if kept else reply


@dataclass(slots=True)
class Outcome:
    """What has become of a call."""

    elapsed: float | None
    """How long it took, if that is known."""
    value: list[Any]
    """What it returned: the only item, to be taken out, if there is no error."""
    error: BaseException | None = None


def outcome_of(reply: Reply) -> Outcome:
    """What a reply tells of its call."""
    stream, buffers = (reply, []) if isinstance(reply, bytes) else reply
    try:
        returned, elapsed, value = pickle.loads(stream, buffers=buffers)
    except Exception as failure:  # noqa: BLE001 - what could be pickled there need not load here
        return Outcome(None, [], failure)
    if returned:
        return Outcome(elapsed, [value])
    error, trace = value
    error.__cause__ = RemoteTraceback(trace)
    return Outcome(elapsed, [], error)


def _pickled(value: Any, *, plain: bool = False) -> tuple[bytes, list[pickle.PickleBuffer]]:
    if plain:
        return pickle.dumps(value, 5), []
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    out = BytesIO()
    cloudpickle.Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
    return out.getvalue(), buffers


def _pickled_error(error: BaseException, elapsed: float) -> bytes:
    """An exception and its traceback; one that says what it was if it can't travel.

    One that has come from elsewhere may carry so much with it that only a bare copy can.
    """
    trace = traceback_of(error)
    for bare in (False, True):
        try:
            sent = type(error)(*error.args) if bare else error
            stream, _ = _pickled((False, elapsed, (sent, trace)))
            pickle.loads(stream)
        except Exception:  # noqa: BLE001 - it may pickle, and yet not unpickle
            continue
        return stream
    return pickle.dumps((False, elapsed, (RuntimeError(reason_of(error)), trace)))
