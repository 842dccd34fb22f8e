"""`Listener`: waits for files of a gateway to become ready, and calls what belongs to them.

Several threads register files; one thread waits. `wake` ends its wait early.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any


class Listener:
    """Files to listen to, each with a callback."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self.add(self._wake, self._on_wake)

    def add(self, file: Any, callback: Callable[[], None]) -> None:
        """Call back whenever a file is readable, or closed by the other side."""
        self._selector.register(file, selectors.EVENT_READ, callback)

    def await_writable(self, file: Any, wanted: bool) -> None:
        """Call back when a file is writable, too, or no longer; does nothing if it was removed."""
        key = self._selector.get_map().get(file)
        if key is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(file, events, key.data)

    def remove(self, file: Any) -> None:
        """Stop listening to a file, if it hasn't been removed already."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with contextlib.suppress(BlockingIOError):  # enough wake-ups wait to be read
            self._waker.send(b"!")

    def wait(self, timeout: float) -> list[selectors.SelectorKey]:
        """The files that are ready, after `timeout` seconds at most."""
        return [key for key, _ in self._selector.select(timeout)]

    def call(self, ready: list[selectors.SelectorKey]) -> None:
        """Call back for ready files, except for those that a callback has removed."""
        for key in ready:
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)

    def close(self) -> None:
        """Listen to nothing any more."""
        self._selector.close()
        self._wake.close()
        self._waker.close()
