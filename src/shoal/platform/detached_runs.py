"""`DetachedRuns`: what a gateway needs to resume detached runs after it was killed.

No client waits for a detached run, and its key is never in the store. So the gateway saves the
context of each in a file that only its user can read and that no sandbox sees. A gateway that
starts again on the same port loads them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import GatewayRefused
from shoal.platform.invocation import RunContext, from_json, to_json
from shoal.platform.sandbox_env import hidden_folder
from shoal.private import private_folder, write_private
from shoal.types import RunId

log = logging.getLogger(__name__)


class DetachedRuns:
    """An invocation of each detached run, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)

    @staticmethod
    def of_port(port: int) -> DetachedRuns:
        """The detached runs of the user's gateway on a port."""
        return DetachedRuns(hidden_folder() / "runs" / str(port))

    def save(self, context: RunContext) -> None:
        """Save what all workers of a run have in common; a failure is logged."""
        path = self._folder / context.run
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.unlink(missing_ok=True)
            write_private(unfinished, [to_json(context)])
            unfinished.rename(path)
        except OSError as error:
            log.warning("detached run %s won't survive this gateway: %s", context.run, error)

    def delete(self, run: RunId) -> None:
        """Delete the file of a run that has ended."""
        with contextlib.suppress(OSError):
            (self._folder / run).unlink()

    def load(self) -> Sequence[RunContext]:
        """The saved contexts; a file that can't be read is logged and deleted."""
        found = []
        for path in sorted(self._folder.iterdir()):
            try:
                found.append(from_json(path.read_bytes(), RunContext))
            except (OSError, GatewayRefused) as error:
                log.warning("deleting %s, which can't be read: %s", path, error)
                path.unlink(missing_ok=True)
        return found
