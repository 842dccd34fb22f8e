"""Control an engine's process from the benchmark; see `serve.py`.

An engine that hangs or dies is killed with all its descendants; the next run restarts it.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from processes import end_tree

HERE = Path(__file__).parent
LOG = "log"
"""The file in an engine's folder with its output."""

TIMEOUT = 20.0
"""How many seconds an idle engine has to stop, more than it grants itself."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""The environment of all engines: one core per worker, and importable workloads."""


class RunFailedError(Exception):
    """A run has no valid time: the engine failed, returned a wrong result, hung or died."""

    def __init__(self, engine: str, workload: str, reason: str) -> None:
        super().__init__(engine, workload, reason)
        self.engine = engine
        self.workload = workload
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.workload} on {self.engine}: {self.reason}"


class Remote:
    """An engine in a process of its own, kept from one run to the next."""

    def __init__(self, engine: str, slots: int, limit: float) -> None:
        self.engine = engine
        self._slots = slots
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._stop()
        self._end()

    def run(self, workload: str) -> list[float]:
        """Measure a workload once and return the seconds that each run took.

        Raises:
            RunFailedError: There is no valid time.
        """
        process = self._process or self._start(workload)
        assert process.stdin is not None
        try:
            print(workload, file=process.stdin, flush=True)
        except BrokenPipeError as error:
            raise self._lost(workload, self._last_words()) from error
        return [float(seconds) for seconds in self._receive(workload, process)["seconds"]]

    def _start(self, workload: str) -> "subprocess.Popen[str]":
        """Start the engine's process and wait until it is ready."""
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        with (folder / LOG).open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "serve.py"), self.engine, str(self._slots)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=os.environ | ENVIRONMENT | _own_places(folder),
                text=True,
                start_new_session=True,
            )
        try:
            self._receive(workload, self._process)
        except RunFailedError as error:
            raise self._lost(workload, f"could not start: {error.reason}") from error
        return self._process

    def _receive(self, workload: str, process: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(_read_line(process, self._limit))
        except TimeoutError as error:
            raise self._lost(workload, f"no result within {self._limit:g} s") from error
        except EOFError as error:
            raise self._lost(workload, self._last_words()) from error
        if "error" in reply:
            raise RunFailedError(self.engine, workload, reply["error"])
        return reply

    def _lost(self, workload: str, reason: str) -> RunFailedError:
        self._end()
        return RunFailedError(self.engine, workload, reason)

    def _last_words(self) -> str:
        assert self._folder is not None
        text = (Path(self._folder.name) / LOG).read_text(errors="replace")
        last = text.strip().rpartition("\n")[2]
        return f"its process ended: {last[:200] or 'without a message'}"

    def _stop(self) -> None:
        """Let the engine exit by itself."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            try:
                self._process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                end_tree(self._process.pid)

    def _end(self) -> None:
        """Make sure that no process of the engine is left."""
        if self._process:
            if self._process.poll() is None:
                end_tree(self._process.pid)
            self._process.wait()
            for stream in filter(None, (self._process.stdin, self._process.stdout)):
                # A request that nobody will read may still be in the buffer.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if self._folder:
            self._folder.cleanup()
        self._process = self._folder = None


def _own_places(folder: Path) -> dict[str, str]:
    """Keep an engine apart from everything else its user runs.

    Shoal's embedded server is shared by all of a user's clients. The benchmark must not measure
    one that others load or started already, and must never end one that others use.
    """
    return {"SHOAL_FOLDER": str(folder), "XDG_RUNTIME_DIR": str(folder)}


def _read_line(process: "subprocess.Popen[str]", limit: float) -> str:
    """Wait for a reply while the process lives.

    Raises:
        TimeoutError: The process lives but doesn't reply.
        EOFError: The process has exited.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        # The process is looked at too: one below it may hold the pipe open when it has ended.
        ended = process.poll() is not None
        if select.select([process.stdout], [], [], 0 if ended else 0.2)[0]:
            line = process.stdout.readline()
            if line:
                return line
            raise EOFError
        if ended:
            raise EOFError
    raise TimeoutError
