"""`JobActor`: runs in a worker process of Ray's, and starts a job beside it.

1. The class travels to the cluster by value, so that it can tell if Shoal is missing there. This
   module imports nothing of Shoal.
2. User code never runs in Ray's process: the job is a process of its own.
3. The job ends with the actor, however that ends: it reads a pipe whose other end the actor holds
   (`ray_job.py`).
4. What the job must know comes with a method call. Ray keeps the arguments of constructors, and
   shows environments and metadata, but not the arguments of calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

_PROGRAM = """
import sys
try:
    from shoal.engines.ray_job import main
except ImportError as error:
    sys.exit(
        f"Shoal can't be imported by {sys.executable} on this node ({error}): install the client's "
        "version of Shoal there, on every node of the Ray cluster."
    )
sys.exit(main())
"""
_TOLD_LINES = 20
"""Lines of a job's log that tell how it ended."""
_LEAVE_SECONDS = 5.0
"""How long the driver has to remove the actor of a job that has ended."""


def versions() -> dict[str, str]:
    """The versions of Python and Shoal on a node; an empty one: Shoal is missing."""
    from importlib import metadata

    try:
        shoal = metadata.version("shoal")
    except metadata.PackageNotFoundError:
        shoal = ""
    return {"python": "{}.{}".format(*sys.version_info), "shoal": shoal}


class JobActor:
    """Starts one job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told: deque[bytes] = deque(maxlen=_TOLD_LINES)

    def begin(self, event: str, variables: Mapping[str, str]) -> None:
        """Start the job.

        Args:
            event: What the job is to do.
            variables: Its deployment, for its environment.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        sent = json.dumps({"event": event, "variables": dict(variables)}).encode() + b"\n"
        try:
            self._process.stdin.write(sent)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: `wait` tells why

    def wait(self) -> tuple[int, str]:
        """Wait until the job has ended; return its exit code and the end of its log."""
        assert self._process is not None
        reading = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        reading.start()
        code = self._process.wait()
        reading.join(1.0)
        leaving = threading.Timer(_LEAVE_SECONDS, self._leave)
        leaving.daemon = True
        leaving.start()
        return code, b"".join(self._told).decode(errors="replace").strip()

    def _read(self, log: Any) -> None:
        self._told.extend(log)

    def _leave(self) -> None:
        import ray

        ray.kill(ray.get_runtime_context().current_actor)
