"""`InputCheck`: runs tasks and detects those that change their inputs in place.

Inputs are read-only by convention. Tasks share them, so the plan decides which other tasks see a
change.

1. Everything that a task shares with others is digested before and after the call: each argument,
   and each value within lists, tuples and dicts that hold outputs. Each call has its own copies of
   those containers.
2. Values that can't be pickled have no digest and aren't checked.
3. A worker that checks inputs runs one task at a time, or it might blame the wrong one.
4. The time that digests take isn't counted as the task's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import InputChanged
from shoal.types import TaskId
from shoal.worker.digests import data_digest
from shoal.worker.failure import reason_of
from shoal.worker.package import Unpacked, argument_named
from shoal.workflow import Ref, Where

_CONTAINERS = (list, tuple, dict)


class InputCheck:
    """Runs a worker's tasks, and compares their inputs before and after."""

    def __init__(self, unpacked: Unpacked) -> None:
        self._unpacked = unpacked
        self._seconds = 0.0

    def spent(self) -> float:
        """The seconds that digests have taken since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def run(self, task: TaskId, values: Mapping[TaskId, Any]) -> Any:
        """Call a task's function; raises `InputChanged` if its inputs have changed afterwards."""
        began = time.perf_counter()
        shared = [(name, value, _digest(value)) for name, value in self._shared(task, values)]
        called = time.perf_counter()
        error: BaseException | None = None
        value = None
        try:
            value = self._unpacked.run(task, values)
        except BaseException as raised:  # noqa: BLE001 - the user's code may raise anything
            error = raised
        ended = time.perf_counter()
        changed = [name for name, given, digest in shared if _has_changed(given, digest)]
        self._seconds += called - began + time.perf_counter() - ended
        if changed:
            raised_then = "" if error is None else f", then raised {reason_of(error)}"
            reason = f"it changed {' and '.join(changed)} in place{raised_then}"
            raise InputChanged(task, self._unpacked.part.worker, reason) from error
        if error is not None:
            raise error
        return value

    def _shared(self, task: TaskId, values: Mapping[TaskId, Any]) -> Iterator[tuple[str, Any]]:
        """The inputs of a task that others may share, each with a name for messages."""
        calls = self._unpacked.calls
        refs, nested = calls.refs.get(task, {}), calls.nested.get(task, ())
        constants = self._unpacked.part.constants.get(task, ())
        given: list[tuple[Where, Any]] = [
            *enumerate(calls.args[task]),
            *calls.kwargs.get(task, {}).items(),
        ]
        for where, value in given:
            name = argument_named(where)
            if where in refs:
                made = "" if refs[where] in constants else f" (the output of {refs[where]!r})"
                yield name + made, values[refs[where]]
            elif where in nested:
                yield from _held(value, name, values)
            else:
                yield name, value


def _held(value: Any, name: str, values: Mapping[TaskId, Any]) -> Iterator[tuple[str, Any]]:
    if type(value) is Ref:
        yield f"the output of {value.task!r} in {name}", values[value.task]
    elif type(value) in _CONTAINERS:
        for item in value.values() if type(value) is dict else value:
            yield from _held(item, name, values)
    else:
        yield f"a value in {name}", value


def _digest(value: Any) -> bytes | None:
    try:
        return data_digest(value)
    except Exception:  # noqa: BLE001 - pickling the user's classes may raise anything
        return None


def _has_changed(value: Any, before: bytes | None) -> bool:
    """Whether a value's digest has changed, unless it differs each time."""
    after = _digest(value) if before is not None else None
    return after != before and after == _digest(value)
