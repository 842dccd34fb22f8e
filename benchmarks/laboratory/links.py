"""Run links: proxies in front of a store and a gateway that can be slowed down.

Runs as a process of its own. Its arguments say where each link listens and where it leads: the path
of a unix socket, or a port on loopback; one that leads to a gateway also names the folder of token
files, because a token belongs to one port. A line of its input gives a link's number and how many
bytes per second may pass it in each direction, over all connections; 0 for unlimited.
When its input ends, it exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from shoal.private import write_private

_CHUNK = 1 << 16
_DRIP = 1 << 11
"""Bytes at a time while a link is slow, so that no connection blocks it for long."""


class Link:
    """One proxy."""

    def __init__(self, listening: str, target: str, tokens: str = "") -> None:
        self._listening = listening
        self._target = target
        self._tokens = tokens
        self._rate = 0
        self._free = {"to": 0.0, "from": 0.0}
        """When the bytes in transit in each direction will have passed."""
        self._changed = asyncio.Event()

    def limit(self, rate: int) -> None:
        """Set the number of bytes per second."""
        self._rate = rate
        self._free = {"to": 0.0, "from": 0.0}
        self._changed.set()
        self._changed = asyncio.Event()

    async def listen(self) -> None:
        """Start forwarding connections."""
        if self._tokens:
            self._vouch()
        if self._listening.isdigit():
            await asyncio.start_server(self._serve, "127.0.0.1", int(self._listening))
        else:
            await asyncio.start_unix_server(self._serve, self._listening)

    def _vouch(self) -> None:
        """Copy the gateway's token, which is written before it answers, for this link."""
        own = Path(self._tokens, f"gateway-{self._target}.token")
        link = own.with_name(f"gateway-{self._listening}.token")
        fresh = link.with_suffix(".fresh")
        with contextlib.suppress(OSError):  # the gateway is stopping
            left = own.read_text().replace(f":{self._target}", f":{self._listening}")
            if not link.exists() or link.read_text() != left:
                fresh.unlink(missing_ok=True)
                write_private(fresh, [left.encode()])
                fresh.replace(link)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = [writer]
        try:
            if self._target.isdigit():
                opened = asyncio.open_connection("127.0.0.1", int(self._target))
            else:
                opened = asyncio.open_unix_connection(self._target)
            behind, there = await opened
            streams.append(there)
            if self._tokens:
                self._vouch()
            ways = [self._pass_on("to", reader, there), self._pass_on("from", behind, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        except OSError:  # the target is down, so the link is too
            pass
        finally:
            for stream in streams:
                stream.close()

    async def _pass_on(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_DRIP if self._rate else _CHUNK):
                await self._wait(way, len(data))
                writer.write(data)
                await writer.drain()

    async def _wait(self, way: str, nbytes: int) -> None:
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        free = max(now, self._free[way]) + nbytes / self._rate
        self._free[way] = free
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), free - now)


async def serve(places: list[str]) -> None:
    """Forward connections until the input ends."""
    links = [Link(*place.split(">")) for place in places]
    for link in links:
        await link.listen()
    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    print("listening", flush=True)
    while line := await told.readline():
        number, rate = map(int, line.split())
        links[number].limit(rate)
    os._exit(0)  # even during transfers


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
