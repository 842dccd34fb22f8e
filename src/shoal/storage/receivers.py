"""`Receivers`: the connections on which a process waits for mail.

1. Each waits for one mailbox, and is used by one thread at a time.
2. Any thread may hang up on a mailbox. Whoever waits for it is woken; if nobody does, the next one
   to come doesn't begin to wait, so that who looked just before is not left waiting.
3. That holds for who waits for the server to come back, too (`ended_within`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.storage.resp import Connection

_REMEMBERED = 100
"""So many mailboxes that were hung up on while nobody waited are known."""


class Receivers:
    """A process's connections to mailboxes."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Condition()
        self._closed = False
        self._idle: dict[str, Connection] = {}
        self._waiting: dict[Connection, str] = {}
        self._hung_up: dict[str, None] = {}

    def take(self, mailbox: str) -> Connection | None:
        """A connection to wait on; None if somebody has hung up, on all mailboxes or on this."""
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
        """Whether somebody has hung up while nobody waited; asking forgets it."""
        with self._lock:
            return self._hung_up.pop(mailbox, self) is None

    def ended_within(self, mailbox: str, seconds: float) -> bool:
        """Let time pass; whether somebody hung up meanwhile, or has before."""
        with self._lock:
            return self._lock.wait_for(lambda: self._closed or mailbox in self._hung_up, seconds)

    def give_back(self, connection: Connection) -> None:
        """The waiting is over, and the connection can be used again."""
        with self._lock:
            mailbox = self._waiting.pop(connection, None)
            if mailbox is not None:
                connection, kept = self._idle.get(mailbox, connection), connection
                self._idle[mailbox] = kept
                if connection is kept:
                    return
        connection.close()

    def give_up(self, connection: Connection) -> bool:
        """The connection can't be used again; whether that is because somebody hung up."""
        connection.close()
        with self._lock:
            return self._waiting.pop(connection, None) is None

    def hang_up(self, mailbox: str, *, remember: bool = True) -> None:
        """End whoever waits for a mailbox, or else have the next one to come not wait."""
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
        """End all waiting."""
        with self._lock:
            connections = [*self._waiting, *self._idle.values()]
            self._waiting.clear()
            self._idle.clear()
            self._closed = True
            self._lock.notify_all()
        for connection in connections:
            connection.hang_up()
