"""Send a single call to a worker and bring back its result.

1. Each call is pickled separately, and so is its result, so a pickling error affects one call only.
   Large buffers are not copied.
2. An exception is returned like a result, so that it doesn't end the run of the other calls. The
   worker's traceback is its cause.
3. Workers import this module, so it imports little itself.
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
from shoal.workflow import Output, Task, origin_of, with_key

Reply = bytes | tuple[bytes, list[Any]]
"""The pickled outcome of a call: whether it returned, after how many seconds, and its value, or the
exception with its traceback. Large buffers are separate."""

_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))


class _Bulk:
    """A buffer passed as an argument of its own, so that it is sent once for all calls."""

    def __init__(self, buffer: pickle.PickleBuffer) -> None:
        self.buffer = buffer
        self.nbytes = memoryview(buffer).nbytes

    def __reduce__(self) -> Any:
        return _unwrap, (self.buffer,)


def _unwrap(buffer: Any) -> Any:
    return buffer


def call_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Output[Reply]:
    """Return the output that represents a call; raise `NotPicklable` if it can't be pickled."""
    name, key = name_of(function), origin_of(function)
    try:
        stream, buffers = _pickled((function, args, kwargs))
    except Exception as error:  # the edge to the user's classes: pickling may raise anything
        raise NotPicklable(f"a call of {name!r}", f"{type(error).__name__}: {error}") from error
    return _task(name, key)(stream, *[_Bulk(buffer) for buffer in buffers])


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name for logs and messages."""
    inner = getattr(function, "func", function)  # the function of a partial
    name = getattr(inner, "__name__", None)
    usable = isinstance(name, str) and name.isprintable() and "#" not in name and name
    return name if usable and isinstance(name, str) else type(inner).__name__


@lru_cache(256)
def _task(name: str, key: str) -> Task[..., Reply]:
    return with_key(key, Task(perform, name=name))


def perform(stream: bytes, *buffers: Any) -> Reply:
    """Run the call on the worker and return its pickled outcome."""
    began = time.perf_counter()
    try:
        function, args, kwargs = pickle.loads(stream, buffers=buffers)
        value = function(*args, **kwargs)
        elapsed = time.perf_counter() - began
        try:
            reply, bulk = _pickled((True, elapsed, value), plain=type(value) in _PLAIN)
        except Exception as error:  # the edge to the user's classes: pickling may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise NotPicklable(f"the result of {name_of(function)!r}", reason) from error
    except BaseException as error:  # noqa: BLE001 - the edge to the user's code: it is the reply
        return _pickled_error(error, time.perf_counter() - began)
    return (reply, bulk) if bulk else reply


@dataclass(slots=True)
class CallOutcome:
    """The outcome of a call: its value or its error."""

    elapsed: float | None
    """How long the call took, if known."""
    value: list[Any]
    """The returned value as the only item, so that the caller can pop it; empty after an error."""
    error: BaseException | None = None


def outcome_of(reply: Reply) -> CallOutcome:
    """Decode a worker's reply."""
    stream, buffers = (reply, []) if isinstance(reply, bytes) else reply
    try:
        returned, elapsed, value = pickle.loads(stream, buffers=buffers)
    except Exception as failure:  # noqa: BLE001 - the edge to the user's classes: it is the outcome
        return CallOutcome(None, [], failure)
    if returned:
        return CallOutcome(elapsed, [value])
    error, trace = value
    error.__cause__ = RemoteTraceback(trace)
    return CallOutcome(elapsed, [], error)


def _pickled(value: Any, *, plain: bool = False) -> tuple[bytes, list[pickle.PickleBuffer]]:
    if plain:
        return pickle.dumps(value, 5), []
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    out = BytesIO()
    cloudpickle.Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
    return out.getvalue(), buffers


def _pickled_error(error: BaseException, elapsed: float) -> bytes:
    """Pickle an exception with its traceback.

    If it can't be pickled with its attributes, send a bare copy; if that fails too, a
    `RuntimeError` with its message.
    """
    trace = traceback_of(error)
    for bare in (False, True):
        try:
            sent = type(error)(*error.args) if bare else error
            stream, _ = _pickled((False, elapsed, (sent, trace)))
            pickle.loads(stream)
        except Exception:  # noqa: BLE001 - the edge to the user's classes: try a plainer one
            continue
        return stream
    return pickle.dumps((False, elapsed, (RuntimeError(reason_of(error)), trace)))
