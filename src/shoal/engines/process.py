"""`process://`: each job is a process of this machine; an example of an engine, and for tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from shoal.platform.engine import Ended, EngineFacts, JobState, exit_code
from shoal.platform.events import FILE_VARIABLE, Deployment
from shoal.system import cores
from shoal.types import LossReason, Resources


class ProcessEngine:
    """Starts processes."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Make an engine from `process://?capacity=4&idle_seconds=5`."""
        query = dict(parse_qsl(urlsplit(url).query))
        self.facts = EngineFacts(
            stays=True,
            watches=True,
            cpus=float(cores()),
            capacity=int(query.get("capacity", 2 * cores())),
            idle_seconds=float(query.get("idle_seconds", 5)),
        )
        self._environment = {FILE_VARIABLE: str(deployment.file(folder))}
        self._ended: dict[str, Ended] = {}

    def start(self, event: bytes, resources: Resources) -> str:
        """Start a process in a group of its own."""
        command = [sys.executable, "-m", "shoal.platform.job", event.decode()]
        variables = os.environ | self._environment
        quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]  # who reads ours may wait
        return str(os.posix_spawn(command[0], command, variables, setpgroup=0, file_actions=quiet))

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how processes are."""
        return {handle: self._state(handle) for handle in handles}

    def _state(self, handle: str) -> JobState:
        if handle not in self._ended:
            pid, status = os.waitpid(int(handle), os.WNOHANG)
            if not pid:
                return "running"
            self._ended[handle] = Ended(
                LossReason.DIED, exit_code(os.waitstatus_to_exitcode(status))
            )
        return self._ended[handle]

    def kill(self, handle: str) -> None:
        """Kill a process and its children."""
        if self._state(handle) == "running":
            os.killpg(int(handle), signal.SIGKILL)

    def close(self) -> None:
        """Do nothing: the processes end by themselves."""
