"""`KeptRuns`: what a gateway has to know of detached runs to go on with them after it was killed.

Nobody else waits for such a run, and its key is never in the store. So a gateway keeps an
invocation of each in a file that only its user can read and that no sandbox sees. A gateway that is
started again at the same port finds them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.errors import GatewayRefused
from shoal.platform.base import Invocation
from shoal.platform.housing import hidden_folder
from shoal.private import private_folder, write_private
from shoal.types import RunId

log = logging.getLogger(__name__)


class KeptRuns:
    """An invocation of each detached run, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)

    @staticmethod
    def of_port(port: int) -> KeptRuns:
        """Those of the user's gateway at a port."""
        return KeptRuns(hidden_folder() / "runs" / str(port))

    def keep(self, job: Invocation) -> None:
        """Keep what others of the run's workers are started with."""
        path = self._folder / job.run
        unfinished = path.with_suffix(f".{os.getpid()}")
        common = replace(job, part=None, inputs=None)
        try:
            unfinished.unlink(missing_ok=True)
            write_private(unfinished, [common.to_json().encode()])
            unfinished.rename(path)
        except OSError as error:
            log.warning("run %s will not go on if this gateway is killed: %s", job.run, error)

    def forget(self, run: RunId) -> None:
        """The run is over."""
        with contextlib.suppress(OSError):
            (self._folder / run).unlink()

    def all(self) -> Sequence[Invocation]:
        """What is kept; what can't be read is told and left out."""
        found = []
        for path in sorted(self._folder.iterdir()):
            try:
                found.append(Invocation.from_json(path.read_bytes()))
            except (OSError, GatewayRefused) as error:
                log.warning("%s is of no use, and deleted: %s", path, error)
                path.unlink(missing_ok=True)
        return found
