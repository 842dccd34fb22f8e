"""A task's failure: from the exception on a worker to the error that the client raises."""

from __future__ import annotations

import reprlib
import traceback
from typing import Any

from shoal.errors import OutOfMemory, ShoalError, TaskError
from shoal.storage.codec import Blob, blob_nbytes, decode, encode
from shoal.storage.keys import signed_failure
from shoal.storage.letters import Failure
from shoal.task_errors import as_original, plain_kind
from shoal.types import TaskId, WorkerId
from shoal.worker.package import Unpacked

_LONGEST = 10_000
"""The most characters of an exception's text or of a traceback that are shown."""
_HEAVIEST = 64 * 2**20
"""The most bytes of an exception that travels; of a larger one only the text does."""
_OWN_FRAMES = ("shoal/worker/", "shoal/platform/", "shoal/integrations/")


def described_failure(
    error: BaseException,
    task: TaskId,
    unpacked: Unpacked,
    key: bytes,
) -> Failure:
    """What is known about the failure of a task of a run."""
    return failure_of(error, task, unpacked.part.worker, _arguments(task, unpacked), key)


def failure_of(
    error: BaseException, task: str, worker: WorkerId, arguments: str, key: bytes
) -> Failure:
    """What is known about a task's failure on a worker, with its arguments as they are shown.

    Where resource limits stand in for control groups, a task without memory ends its sandbox here:
    the worker restarts with more.
    """
    if isinstance(error, MemoryError):
        from shoal.platform.limits import end_out_of_memory  # a client never needs it

        end_out_of_memory()
    cause = b"".join(_pickled(error, task, key))
    return Failure(worker, reason_of(error), arguments, traceback_of(error), cause)


def reason_of(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, TaskError):
        return error.reason
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything
        text = ""
    return cut(f"{type(error).__name__}: {text}") if text else type(error).__name__


def cut(text: str) -> str:
    """The text, or its beginning and end if it is too long."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … [{len(text):,} characters in all] … {text[-half:]}"


def _arguments(task: TaskId, unpacked: Unpacked) -> str:
    """A summary of what the task was called with."""
    calls = unpacked.calls
    args, refs = calls.args[task], calls.refs.get(task, {})
    given = [
        f"<output of {refs[i]}>" if i in refs else shown(value) for i, value in enumerate(args)
    ]
    for name, value in calls.kwargs.get(task, {}).items():
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
    """The pickled exception, or one with its text if it can't be pickled or is too large."""
    name = signed_failure(task)
    try:
        blob = encode(error, key, name)
        if blob_nbytes(blob) > _HEAVIEST:
            return encode(RuntimeError(reason_of(error)), key, name)
        decode(b"".join(blob), key, name)
    except Exception:  # noqa: BLE001 - an exception may pickle and not unpickle
        return encode(RuntimeError(reason_of(error)), key, name)
    return blob


def failure_error(
    task: TaskId,
    failure: Failure,
    not_run: tuple[TaskId, ...],
    key: bytes,
    signed: str | None = None,
    run: str = "",
) -> TaskError:
    """The error that a client raises for a failure, with the user's exception as its cause.

    It is also an instance of that exception's class.

    Args:
        task: The failed task, by the name that the user knows.
        failure: What is known about the failure.
        not_run: The tasks that were not run because of it.
        key: The key of the run.
        signed: The worker's name for the task, if it differs.
        run: The name of the run.
    """
    try:
        cause = decode(failure.cause, key, signed_failure(signed or task))
    except Exception:  # noqa: BLE001 - the client may lack what the worker has
        cause = RuntimeError(failure.reason)
    kind = plain_kind(cause) if isinstance(cause, TaskError) else TaskError
    kind = OutOfMemory if isinstance(cause, MemoryError) else kind
    error = kind(
        task,
        failure.worker,
        failure.reason,
        arguments=failure.arguments,
        remote_traceback=failure.traceback,
        not_run=not_run,
        run=run,
    )
    error = as_original(error, cause)
    error.__cause__ = None if isinstance(cause, TaskError) else cause
    return error
