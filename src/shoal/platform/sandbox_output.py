"""`SandboxOutput`: what a sandbox prints, cut into lines for the log of its run."""

from __future__ import annotations

import os

from shoal.platform.logs import Logs
from shoal.types import RunId

_MAX_LINE = 64 * 1024
"""A longer line is cut, so that output without line breaks doesn't fill the memory."""
_READ = 1 << 16
_MAX_READS = 32
"""How often `drain` reads a stream whose writer keeps printing."""


class SandboxOutput:
    """The standard streams of a sandbox."""

    def __init__(self, streams: dict[str, int], logs: Logs) -> None:
        """Read from pipes, by the names of the streams; they never block."""
        self.streams = streams
        self._logs = logs
        self._owner = (RunId(""), "")
        self._rest: dict[str, bytes] = {}
        """Lines that haven't ended yet."""

    def assign(self, run: RunId, worker: str) -> None:
        """From now on, the output belongs to a worker."""
        self._owner = (run, worker)

    def read(self, stream: str) -> bool:
        """Take what a stream has; False if nothing will come any more."""
        try:
            data = os.read(self.streams[stream], _READ)
        except BlockingIOError:
            return True
        if data:
            self._add(stream, data)
        return bool(data)

    def drain(self, *, unfinished: bool = True) -> None:
        """Take all that has been printed so far; `unfinished`: also lines without an end."""
        for stream, descriptor in self.streams.items():
            for _ in range(_MAX_READS):
                try:
                    data = os.read(descriptor, _READ)
                except OSError:
                    break
                if not data:
                    break
                self._add(stream, data)
            if unfinished and (rest := self._rest.pop(stream, b"")):
                self._log(stream, [rest])

    def _add(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._rest.get(stream, b"") + data).split(b"\n")
        if len(rest) > _MAX_LINE:
            lines.append(rest)
            rest = b""
        self._rest[stream] = rest
        self._log(stream, lines)

    def _log(self, stream: str, lines: list[bytes]) -> None:
        run, worker = self._owner
        if run and lines:
            self._logs.extend(
                run, worker, stream, [line.decode(errors="replace") for line in lines]
            )

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in self.streams.values():
            os.close(descriptor)
