"""`shoal gateway` as a separate process, which can be killed and restarted on its port."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from observing import TIMEOUT, eventually, processes_mentioning
from store_servers import free_port


@dataclass
class StandingGateway:
    """A gateway with a new token at each start; a folder identifies its sandboxes."""

    folder: Path
    port: int = 0
    command: Sequence[str] = (sys.executable,)
    """What runs Python."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What it has in its environment besides."""
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start or restart it."""
        program = [*self.command, "-m", "shoal.cli.main", "gateway", "--port", str(self.port)]
        passed = {"OF_TEST": str(self.folder), "SHOAL_PASS_VARIABLES": "OF_TEST"}
        self.process = subprocess.Popen(
            program, env={**os.environ, **passed, **self.variables}, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert b"listening" in self.process.stdout.readline()

    def kill(self) -> None:
        """Kill it, and check that its sandboxes are gone."""
        self.process.kill()
        self.process.communicate()
        assert eventually(lambda: not processes_mentioning(str(self.folder)))

    def end(self) -> None:
        """Stop it as a user would."""
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT)
