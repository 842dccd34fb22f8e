"""`compute`, `submit` and `plan` without opening a session.

Calls in one process with the same connections share a session, and with it the embedded server, the
gateway and warm sandboxes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from shoal.client.request import Request
from shoal.client.run import Run
from shoal.errors import UsageError
from shoal.planning.preview import Preview
from shoal.session import Session
from shoal.settings import LASTING, Settings, connections, of_call
from shoal.workflow import Outputs


class _SharedSessions:
    """Runs outputs in sessions that calls share."""

    def __init__(self) -> None:
        self._sessions: dict[Any, Session] = {}
        self._lock = threading.Lock()

    def session(self, options: dict[str, Any]) -> Session:
        """The session for a call; takes `store` and `platform` out of its options."""
        found = self._called(options)[0]
        for name in ("store", "platform"):
            options.pop(name, None)
        return found

    def _called(self, given: Mapping[str, Any]) -> tuple[Session, Settings, dict[str, Any]]:
        """The session for a call, the settings in force, and the options that aren't settings."""
        settings, settled, objects, others = of_call(given)
        identities = [(name, id(value)) for name, value in objects.items()]
        key = (os.getpid(), *connections(settings), *identities)
        with self._lock:
            session = self._sessions.get(key)
            if session is None or session.closed:
                lasting = {name: settled[name] for name in LASTING if name in settled}
                session = self._sessions[key] = Session(**(lasting | objects))
        return session, settings, others

    @property
    def opened(self) -> int:
        """How many sessions have been opened."""
        return len(self._sessions)

    def compute(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> list[Any]:
        """Run the workflow of these outputs and return their values."""
        session, settings, others = self._called(options)
        timeout = others.pop("timeout", None)
        return session.values(Request.of(outputs, others, settings), timeout)

    def submit(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> Run:
        """Start the workflow of these outputs and return a handle."""
        session, settings, others = self._called(options)
        how = {name: others.pop(name) for name in ("detach", "arrived") if name in others}
        return session.begin(Request.of(outputs, others, settings), **how)

    def plan(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> Preview:
        """Plan the workflow of these outputs, and predict its run."""
        session, settings, others = self._called(options)
        return session.preview(Request.to_plan(outputs, others, settings))

    def warm(self, workers: int | None, options: dict[str, Any]) -> int:
        """Have sandboxes ready for the runs of this process."""
        session, settings, others = self._called(options)
        if others:
            raise UsageError(f"warm() takes settings only, not {next(iter(others))!r}.")
        count = settings.workers if workers is None else workers
        return session.warm(count, memory_mb=settings.memory_mb, cpus=settings.cpus)

    def close(self) -> None:
        """Close all sessions."""
        with self._lock, contextlib.ExitStack() as stack:
            for session in self._sessions.values():
                stack.callback(session.close)
            self._sessions.clear()


default_engine = _SharedSessions()


def compute(*outputs: Outputs, **options: Any) -> list[Any]:
    """Run the workflow of several outputs, or of one list of them, and return their values.

    Args:
        *outputs: The outputs to compute.
        **options: As for `Session.compute`, and any setting, such as `store` or `platform`.
    """
    return default_engine.compute(outputs, options)


def plan(*outputs: Outputs, **options: Any) -> Preview:
    """Plan the workflow of several outputs, and predict its run; nothing runs.

    Args:
        *outputs: The outputs that would be computed.
        **options: As for `compute`; `timeout` and `resume` are ignored.
    """
    return default_engine.plan(outputs, options)


def submit(*outputs: Outputs, **options: Any) -> Run:
    """Start the workflow of several outputs; the handle's `result()` waits for their values.

    Args:
        *outputs: The outputs to compute.
        **options: As for `compute`, and for `Session.submit`.
    """
    return default_engine.submit(outputs, options)


def warm(workers: int | None = None, **options: Any) -> int:
    """Have sandboxes ready before a run, so that its workers needn't wait for them.

    Args:
        workers: How many; default: as many as a run may have at once.
        **options: Any setting, such as `platform`, `memory_mb` or `cpus`.

    Returns:
        How many are ready or starting: fewer than asked for if the platform has no more room.
    """
    return default_engine.warm(workers, options)
