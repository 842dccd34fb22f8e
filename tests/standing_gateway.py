"""`shoal gateway` as a process of its own, which can be killed and started again at its port."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from observing import PATIENCE, eventually, processes_mentioning
from store_servers import free_port


@dataclass
class StandingGateway:
    """A gateway with a new token each time; its sandboxes are recognised by a folder."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, the first time or again."""
        program = [sys.executable, "-m", "shoal.cli.main", "gateway", "--port", str(self.port)]
        passed = {"OF_TEST": str(self.folder), "SHOAL_PASS_VARIABLES": "OF_TEST"}
        self.process = subprocess.Popen(
            program, env=dict(os.environ) | passed, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert b"listening" in self.process.stdout.readline()

    def kill(self) -> None:
        """Kill it, and see that its sandboxes are gone with it."""
        self.process.kill()
        self.process.communicate()
        assert eventually(lambda: not processes_mentioning(str(self.folder)))

    def end(self) -> None:
        """End it as its user does."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)
