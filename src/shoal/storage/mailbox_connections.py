"""`MailboxConnections`: the connections on which a process waits for mail.

1. Each connection waits for one mailbox, and one thread at a time uses it.
2. Any thread may hang up on a mailbox. That wakes the thread that waits for it. If none does, the
   next one to come doesn't wait, so that a thread which is just about to wait isn't missed.
3. The same applies to a thread that waits for the server to come back (`ended_within`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.storage.resp import Connection

_REMEMBERED = 100
"""The most hang-ups that are remembered while no reader waits."""


class MailboxConnections:
    """A process's connections to mailboxes."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Condition()
        self._closed = False
        self._idle: dict[str, Connection] = {}
        self._waiting: dict[Connection, str] = {}
        self._hung_up: dict[str, None] = {}

    def take(self, mailbox: str) -> Connection | None:
        """Return a connection to wait on; None after a hang-up on this mailbox, or on all."""
        if self.hung_up(mailbox):
            return None
        with self._lock:
            connection = self._idle.pop(mailbox, None)
        if connection is not None and connection.dropped:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connect()
        with self._lock:
            if mailbox not in self._hung_up and not self._closed:
                self._waiting[connection] = mailbox
                return connection
            self._hung_up.pop(mailbox, None)
        connection.close()
        return None

    def hung_up(self, mailbox: str) -> bool:
        """Whether there was a hang-up while no reader waited. Asking clears it."""
        with self._lock:
            return self._hung_up.pop(mailbox, self) is None

    def ended_within(self, mailbox: str, seconds: float) -> bool:
        """Wait for so many seconds; return whether there is a hang-up by then."""
        with self._lock:
            return self._lock.wait_for(lambda: self._closed or mailbox in self._hung_up, seconds)

    def give_back(self, connection: Connection) -> None:
        """Return a connection that can be used again."""
        with self._lock:
            mailbox = self._waiting.pop(connection, None)
            if mailbox is not None:
                surplus = self._idle.get(mailbox, connection)
                self._idle[mailbox] = connection
                if surplus is connection:
                    return
                connection = surplus
        connection.close()

    def give_up(self, connection: Connection) -> bool:
        """Close a failed connection; return whether a hang-up was the reason."""
        connection.close()
        with self._lock:
            return self._waiting.pop(connection, None) is None

    def hang_up(self, mailbox: str, *, remember: bool = True) -> None:
        """Wake the thread that waits for a mailbox; if none does, the next one won't wait."""
        with self._lock:
            ended = [each for each, where in self._waiting.items() if where == mailbox]
            for connection in ended:
                del self._waiting[connection]
            if remember and not ended:
                self._hung_up[mailbox] = None
                self._lock.notify_all()
                while len(self._hung_up) > _REMEMBERED:
                    del self._hung_up[next(iter(self._hung_up))]
            elif not remember:
                self._hung_up.pop(mailbox, None)
            idle = self._idle.pop(mailbox, None)
        for connection in (*ended, *([idle] if idle else [])):
            connection.hang_up()

    def close(self) -> None:
        """Wake all threads that wait, and let none wait from now on."""
        with self._lock:
            connections = [*self._waiting, *self._idle.values()]
            self._waiting.clear()
            self._idle.clear()
            self._closed = True
            self._lock.notify_all()
        for connection in connections:
            connection.hang_up()
