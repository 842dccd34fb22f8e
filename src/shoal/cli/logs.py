"""Implement `shoal logs RUN`: show what a run's tasks printed, with control characters escaped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing

from shoal.cli.runs import find_run
from shoal.cli.settings import configure_set, parse_assignments
from shoal.client.backends import open_history, remote_platform
from shoal.execution.formatting import printable
from shoal.platform.base import LogLine
from shoal.platform.logs import RunLogs
from shoal.settings import Settings, resolve
from shoal.types import RunId


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="the run's id, a unique prefix of it, or `last`")
    parser.add_argument(
        "--raw",
        action="store_true",
        help="don't escape control characters: shows colours, but trusts the tasks' output",
    )
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Print the lines that the run's tasks printed."""
    settings = resolve(parse_assignments(args.assignments))
    with closing(open_history(settings)) as history:
        run = find_run(history, args.run).run
    lines = _lines(run, settings)
    if not lines:
        print(printable(f"The tasks of run {run} printed nothing."))
    for line in lines:
        at = time.strftime("%H:%M:%S", time.localtime(line.time))
        mark = "!" if line.stream == "stderr" else " "
        text = f"{at} {line.worker}{mark} {line.text}"
        print(text if args.raw else printable(text, kept="\t"))


def _lines(run: RunId, settings: Settings) -> Sequence[LogLine]:
    """Read a run's logs, from the remote gateway if there is one, else from the data folder."""
    remote = remote_platform(settings)
    if remote is None:
        return RunLogs(settings.data_folder() / "logs").read(run)
    with closing(remote):
        return remote.logs(run)
