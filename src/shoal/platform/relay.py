"""`Relay`: a client makes the calls that its engine's jobs can't make themselves.

A function that can't call itself, or is about to return, leaves the starts of other workers on the
board. Any client of the deployment takes them from there and calls the function.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from shoal.errors import ShoalError
from shoal.platform.events import Deployment, Work, opened
from shoal.platform.invocation import RunContext, Start
from shoal.storage.job_board import JobBoard

log = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0
"""How long to wait for starts at a time."""
_PAUSE = 1.0
"""Seconds until the next try after an error."""


class Relay:
    """Takes starts from the board while it is open."""

    def __init__(
        self,
        board: JobBoard,
        deployment: Deployment,
        send: Callable[[RunContext, Sequence[Start]], None],
    ) -> None:
        """Take starts from now on.

        Args:
            board: A board of its own: it waits there.
            deployment: Whose starts these are.
            send: Calls the function.
        """
        self._board = board
        self._deployment = deployment
        self._send = send
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._board.disconnect()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._board.await_push(_WAIT_SECONDS)
                self._pass_on()
            except ShoalError as error:
                if not self._closed:
                    log.warning("can't start workers for other workers: %s", error)
                    time.sleep(_PAUSE)
            except Exception:  # the thread's outermost edge
                log.exception("can't start workers for other workers")
                time.sleep(_PAUSE)

    def _pass_on(self) -> None:
        for kind, events in self._board.waiting().items():
            for event in self._board.withdraw(kind, events):
                work = opened(event, self._deployment)
                if isinstance(work, Work):
                    self._send(work.context, work.starts)
