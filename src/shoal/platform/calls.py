"""`Calls`: the calls of an engine's function that are under way.

1. An engine that watches its calls is asked every moment how they are. A call that the engine knows
   nothing more about is done, or has been accepted: its job looks after its worker.
2. A call that fails loses its first worker, which restarts at once. If the function refused the
   call, all workers of the call are lost, for nobody has started the others.
3. Leases of workers are renewed while their call waits, and for a while after it has been sent: an
   engine may have to start an instance first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import PlatformError
from shoal.platform.engine import Ended, Engine, JobState
from shoal.platform.invocation import Invocation, RunContext, Start
from shoal.types import Loss, LossReason, RunId, WorkerId

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""Seconds between two looks at the calls while there are any."""
_COMING_SECONDS = 60.0
"""How long a call that was sent may take until its job renews the lease of its worker."""
_UNSENT_SECONDS = 0.1
"""How long to wait until a call has been sent, before somebody else is to make it."""

OnLost = Callable[[Invocation, Loss], None]
"""Called with a worker whose call or job has ended before it was done."""


@dataclass(slots=True, eq=False)
class _WatchedCall:
    context: RunContext
    starts: tuple[Start, ...]
    state: JobState = "waiting"
    changed: float = field(default_factory=time.monotonic)
    """When its state was last found to be another."""


class Calls:
    """Watches the calls of one engine; safe to use from several threads."""

    def __init__(self, engine: Engine, lost: OnLost) -> None:
        """Begin without calls.

        Args:
            engine: What makes the calls.
            lost: Called with each worker whose call has failed.
        """
        self._engine = engine
        self._lost = lost
        self._calls: dict[str, _WatchedCall] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, handle: str, context: RunContext, starts: tuple[Start, ...]) -> None:
        """Watch a call from now on."""
        if not self._engine.facts.watches:
            return
        with self._changed:
            self._calls[handle] = _WatchedCall(context, starts)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="shoal-calls", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """The starts whose leases are to be renewed, by run."""
        found: dict[RunId, list[tuple[WorkerId, int]]] = {}
        coming = time.monotonic() - _COMING_SECONDS
        with self._changed:
            for call in self._calls.values():
                if call.state == "waiting" or call.changed > coming:
                    starts = [(start.worker, start.epoch) for start in call.starts]
                    found.setdefault(call.context.run, []).extend(starts)
        return found

    def of(self, run: RunId) -> int:
        """How many calls of a run are under way."""
        with self._changed:
            return sum(call.context.run == run for call in self._calls.values())

    def kill(self, run: RunId, *, sent: bool) -> None:
        """End the calls of a run.

        Args:
            run: The run.
            sent: Also those that have been sent.
        """
        with self._changed:
            handles = [handle for handle, call in self._calls.items() if call.context.run == run]
            states = self._engine.states(handles)
            chosen = [handle for handle in handles if sent or states.get(handle) == "waiting"]
            for handle in chosen:
                del self._calls[handle]
        for handle in chosen:
            with contextlib.suppress(PlatformError):
                self._engine.kill(handle)

    def withdraw_unsent(self, seconds: float = 0.0) -> list[tuple[RunContext, tuple[Start, ...]]]:
        """Drop the calls that can't be sent within so many seconds; return their workers, by run.

        Calls that are being sent are waited for in any case.
        """
        deadline = time.monotonic() + max(seconds, _UNSENT_SECONDS)
        with self._changed:
            handles = list(self._calls)
        while unsent := [h for h, s in self._engine.states(handles).items() if s == "waiting"]:
            if time.monotonic() > deadline:
                break
            time.sleep(_UNSENT_SECONDS / 10)
        with self._changed:
            dropped = [self._calls.pop(handle) for handle in unsent if handle in self._calls]
        for handle in unsent:
            with contextlib.suppress(PlatformError):
                self._engine.kill(handle)
        return [(call.context, call.starts) for call in dropped]

    def close(self) -> None:
        """Watch no longer; the calls go on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closed)
                self._changed.wait_for(lambda: self._closed, _LOOK_SECONDS)
                if self._closed:
                    return
            try:
                self._look()
            except Exception:  # the edge to a plug-in
                log.exception("calls can't be watched")

    def _look(self) -> None:
        with self._changed:
            handles = list(self._calls)
        states = self._engine.states(handles)
        ended: list[tuple[_WatchedCall, Ended]] = []
        with self._changed:
            for handle in handles:
                state, call = states.get(handle), self._calls.get(handle)
                if call is None:
                    continue
                if state is None or isinstance(state, Ended):
                    del self._calls[handle]
                    ended += [(call, state)] if state else []
                elif state != call.state:
                    call.state, call.changed = state, time.monotonic()
        for call, how in ended:
            self._on_end(call, how)

    def _on_end(self, call: _WatchedCall, how: Ended) -> None:
        refused = how.reason is LossReason.ERROR
        log.info("run %s: a call failed: %s", call.context.run, how.detail)
        for start in call.starts if refused else call.starts[:1]:
            if start.epoch:
                loss = Loss(how.reason, (), start.memory_mb, start.epoch, how.code, how.detail)
                self._lost(Invocation(context=call.context, start=start), loss)
