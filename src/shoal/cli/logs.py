"""`shoal logs RUN`: what a run's tasks printed, with escapes for what a terminal would obey."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing

from shoal.cli.runs import find_run
from shoal.cli.settings import assigned, configure_set
from shoal.connecting import open_history, remote_platform
from shoal.execution.wording import printable
from shoal.platform.base import LogLine
from shoal.platform.logs import RunLogs
from shoal.settings import Settings, resolve
from shoal.types import RunId


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "run", metavar="RUN", help="the run's id, or the beginning of it; or `last`"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="leave control characters as they are: the terminal obeys colours, and worse",
    )
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Print the lines."""
    settings = resolve(assigned(args.assignments))
    with closing(open_history(settings)) as history:
        run = find_run(history, args.run).run
    lines = _lines(run, settings)
    if not lines:
        print(printable(f"The tasks of run {run} printed nothing."))
    for line in lines:
        at = time.strftime("%H:%M:%S", time.localtime(line.time))
        mark = "!" if line.stream == "stderr" else " "
        said = f"{at} {line.worker}{mark} {line.text}"
        print(said if args.raw else printable(said, kept="\t"))


def _lines(run: RunId, settings: Settings) -> Sequence[LogLine]:
    """What is kept of a run, by the gateway that the settings name or in the user's folder."""
    remote = remote_platform(settings)
    if remote is None:
        return RunLogs(settings.data_folder() / "logs").read(run)
    with closing(remote):
        return remote.logs(run)
