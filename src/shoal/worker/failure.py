"""A task's failure as it travels: facts in JSON, and the exception itself, signed."""

from __future__ import annotations

import json
import reprlib
import traceback
from typing import Any

from shoal.errors import OutOfMemory, ShoalError, TaskError
from shoal.originals import as_original, plain_kind
from shoal.storage.codec import Blob, blob_nbytes, decode, encode
from shoal.storage.keys import signed_failure
from shoal.types import TaskId, WorkerId
from shoal.worker.package import Unpacked

_LONGEST = 10_000
"""Characters of an exception's text, or of a traceback, that are shown."""
_HEAVIEST = 64 * 2**20
"""Bytes of an exception that travels; of a heavier one only its text does."""
_OWN_FRAMES = ("shoal/worker/", "shoal/platform/", "shoal/integrations/")


def described_failure(
    error: BaseException,
    task: TaskId,
    unpacked: Unpacked,
    key: bytes,
) -> tuple[bytes, bytes]:
    """What is known of a failure."""
    return failure_parts(error, task, unpacked.part.worker, _arguments(task, unpacked), key)


def failure_parts(
    error: BaseException, task: str, worker: WorkerId, arguments: str, key: bytes
) -> tuple[bytes, bytes]:
    """What is known of a task's failure on a worker, with its arguments as they are shown."""
    facts = {
        "worker": worker,
        "reason": reason_of(error),
        "arguments": arguments,
        "traceback": traceback_of(error),
    }
    return json.dumps(facts).encode(), b"".join(_pickled(error, task, key))


def reason_of(error: BaseException) -> str:
    """An exception in a line."""
    if isinstance(error, TaskError):
        return error.reason
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything
        text = ""
    return cut(f"{type(error).__name__}: {text}") if text else type(error).__name__


def cut(text: str) -> str:
    """A text's beginning and end, if it is too long to be shown."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … [{len(text):,} characters in all] … {text[-half:]}"


def _arguments(task: TaskId, unpacked: Unpacked) -> str:
    """A summary of what the task was called with."""
    _, args, kwargs, refs, _, _ = unpacked.calls[task]
    given = [
        f"<output of {refs[i]}>" if i in refs else shown(value) for i, value in enumerate(args)
    ]
    for name, value in kwargs.items():
        given.append(f"{name}=" + (f"<output of {refs[name]}>" if name in refs else shown(value)))
    return f"({', '.join(given[:6])}{', …' if len(given) > 6 else ''})"


def shown(value: Any) -> str:
    """A value in a few characters."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 - the user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def traceback_of(error: BaseException) -> str:
    """The traceback without Shoal's own frames."""
    if isinstance(error, ShoalError):
        return ""
    lines = traceback.TracebackException.from_exception(error)
    kept = [f for f in lines.stack if not any(own in f.filename for own in _OWN_FRAMES)]
    lines.stack = traceback.StackSummary.from_list(kept)
    return cut("".join(lines.format()))


def _pickled(error: BaseException, task: str, key: bytes) -> Blob:
    """The exception, or one that says what it was if it can't travel."""
    name = signed_failure(task)
    try:
        blob = encode(error, key, name)
        if blob_nbytes(blob) > _HEAVIEST:
            return encode(RuntimeError(reason_of(error)), key, name)
        decode(b"".join(blob), key, name)
    except Exception:  # noqa: BLE001 - an exception may pickle, and yet not unpickle
        return encode(RuntimeError(reason_of(error)), key, name)
    return blob


def failure_error(
    task: TaskId,
    parts: tuple[Any, ...],
    not_run: tuple[TaskId, ...],
    key: bytes,
    signed: str | None = None,
    run: str = "",
) -> TaskError:
    """The error that a client raises for a failure, with the user's exception as its cause.

    It is an instance of that exception's class, too.

    Args:
        task: What failed, as the user knows it.
        parts: What is known of it.
        not_run: The tasks that it has kept from running.
        key: The run's.
        signed: What the worker calls the task, if that is something else.
        run: What the run is called.
    """
    facts = json.loads(bytes(parts[0]))
    try:
        cause = decode(parts[1], key, signed_failure(signed or task))
    except Exception:  # noqa: BLE001 - what could be unpickled there need not be here
        cause = RuntimeError(facts["reason"])
    kind = plain_kind(cause) if isinstance(cause, TaskError) else TaskError
    kind = OutOfMemory if isinstance(cause, MemoryError) else kind
    error = kind(
        task,
        WorkerId(facts["worker"]),
        facts["reason"],
        arguments=facts["arguments"],
        remote_traceback=facts["traceback"],
        not_run=not_run,
        run=run,
    )
    error = as_original(error, cause)
    error.__cause__ = None if isinstance(cause, TaskError) else cause
    return error
