"""`compute`, `submit` and `plan` without a session of one's own.

Calls of one process share a session for each set of connections; the server, the gateway and warm
sandboxes live as long as it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from shoal.planning.preview import Preview
from shoal.run import Run
from shoal.session import Session
from shoal.settings import LASTING, NAMES, in_force, resolve
from shoal.workflow import Outputs, use_engine


class _Engine:
    """Runs outputs in the session that fits the settings; sessions are shared and kept."""

    def __init__(self) -> None:
        self._sessions: dict[Any, Session] = {}
        self._lock = threading.Lock()

    def session(self, options: dict[str, Any]) -> Session:
        """The session for these options, which keep what concerns a single run."""
        own = {name: options.pop(name) for name in ("store", "platform") if name in options}
        settled = {name: options[name] for name in NAMES if name in options}
        if not isinstance(settled.get("planner"), str):
            settled.pop("planner", None)  # an object is no setting
        for name, value in own.items():
            if isinstance(value, str):
                settled[name] = value
        settings = resolve(settled)
        objects = [(name, id(value)) for name, value in own.items() if not isinstance(value, str)]
        key = (*settings.connections, *objects)
        with self._lock:
            session = self._sessions.get(key)
            if session is None or session._closed or session._process != os.getpid():
                lasting = {name: settled[name] for name in LASTING if name in settled}
                session = self._sessions[key] = Session(**(lasting | own))
            return session

    @property
    def opened(self) -> int:
        """How many sessions have been asked for."""
        return len(self._sessions)

    def compute(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> list[Any]:
        """Run the workflow of these outputs and return their values."""
        options = in_force(options)
        return self.session(options).compute(*outputs, **options)

    def submit(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> Run:
        """Start the workflow of these outputs and return a handle."""
        options = in_force(options)
        return self.session(options).submit(*outputs, **options)

    def plan(self, outputs: tuple[Outputs, ...], options: dict[str, Any]) -> Preview:
        """What running the workflow of these outputs is predicted to do."""
        options = in_force(options)
        return self.session(options).plan(*outputs, **options)

    def close(self) -> None:
        """End all sessions."""
        with self._lock, contextlib.ExitStack() as stack:
            for session in self._sessions.values():
                stack.callback(session.close)
            self._sessions.clear()


default_engine = _Engine()
use_engine(default_engine)


def compute(*outputs: Outputs, **options: Any) -> list[Any]:
    """Run the workflow of several outputs, or of a list of them, at once; their values."""
    return default_engine.compute(outputs, options)


def plan(*outputs: Outputs, **options: Any) -> Preview:
    """What running the workflow of several outputs at once is predicted to do; nothing runs."""
    return default_engine.plan(outputs, options)


def submit(*outputs: Outputs, **options: Any) -> Run:
    """Start the workflow of several outputs at once; the handle gives their values."""
    return default_engine.submit(outputs, options)
