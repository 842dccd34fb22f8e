"""The process of a job on Ray: learns from a pipe what to do, and ends when the pipe closes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from shoal.platform import job


def main() -> int:
    """Run the job that the first line of standard input describes."""
    with open(0, "rb", buffering=0, closefd=False) as pipe:
        told = json.loads(pipe.readline())
    os.environ.update(told["variables"])
    threading.Thread(target=_end_with_actor, name="shoal-actor", daemon=True).start()
    sys.argv = ["shoal.platform.job", told["event"]]
    return job.main()


def _end_with_actor() -> None:
    """Kill this process, which leads its group, when the actor's end of the pipe closes.

    Sandboxes end when their gateway, this process, does.
    """
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
