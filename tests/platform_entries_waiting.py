"""What a job's sandboxes do in tests: wait until a file exists that the part names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

_LONGEST = 60.0


def act(job: Any, running: Any) -> bool:
    """Wait for the file; die if its name says so."""
    path = Path(job.start.part.decode())
    running.set(0, int(job.worker[1:]))
    if path.name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + _LONGEST
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    running.clear(0)
    return True
