"""A proxy in front of a real server that drops connections or slows them down."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable

Drops = Callable[[str, bytes], int | None]
"""Takes the direction of some bytes, `to` or `from` the server. Returns after how many of them the
connection is dropped, or None to forward all of them."""


class DroppingProxy:
    """Forwards traffic between clients and a server on loopback, until it drops it."""

    def __init__(self, port: int, drops: Drops = lambda way, data: None, *, narrow: bool = False):
        """Listen in front of the server at a port; `narrow` makes buffers small."""
        self.drops = drops
        self.dropped = 0
        """How many connections have been dropped."""
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        if narrow:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        self.port: int = self._listener.getsockname()[1]
        self._begin(self._listen)

    def _begin(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = (client, server)
                with self._lock:
                    self._pairs.add(pair)
                self._begin(self._pass_on, "to", client, server, pair)
                self._begin(self._pass_on, "from", server, client, pair)

    def _pass_on(
        self,
        way: str,
        source: socket.socket,
        target: socket.socket,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                count = self.drops(way, data)
                target.sendall(data if count is None else data[:count])
                if count is not None:
                    self.dropped += 1
                    break
        self._drop(pair)

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def drop_all(self) -> None:
        """Drop every connection."""
        with self._lock:
            pairs = list(self._pairs)
        self.dropped += len(pairs)
        for pair in pairs:
            self._drop(pair)

    def close(self) -> None:
        """Drop every connection, and accept no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_all()
        for thread in self._threads:
            thread.join()


def at_speed(bytes_per_second: float) -> Drops:
    """Forward so many bytes per second on each connection and in each direction."""

    def drops(way: str, data: bytes) -> int | None:
        time.sleep(len(data) / bytes_per_second)
        return None

    return drops


def at_random(seed: int, share: float, ways: tuple[str, ...] = ("to", "from")) -> Drops:
    """Drop a share of the forwarded buffers at a random byte, so that their end never arrives."""
    chance = random.Random(seed)

    def drops(way: str, data: bytes) -> int | None:
        if way not in ways or chance.random() >= share:
            return None
        return chance.randrange(len(data))

    return drops
