"""`shoal logs RUN`: what a run's tasks printed."""

from __future__ import annotations

import argparse
import time
from contextlib import closing

from shoal.metadata.history import History
from shoal.platform.logs import RunLogs
from shoal.session import remote_platform
from shoal.settings import resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "run", metavar="RUN", help="the run's id, or the beginning of it; or `last`"
    )


def carry_out(args: argparse.Namespace) -> None:
    """Print the lines."""
    settings = resolve({})
    with closing(History(settings.data_folder())) as history:
        latest = history.runs(most=1) if args.run == "last" else []
        run = (latest[0] if latest else history.find(args.run)).run
    remote = remote_platform(settings)
    lines = remote.logs(run) if remote else RunLogs(settings.data_folder() / "logs").read(run)
    if not lines:
        print(f"The tasks of run {run} printed nothing.")
    for line in lines:
        at = time.strftime("%H:%M:%S", time.localtime(line.time))
        mark = "!" if line.stream == "stderr" else " "
        print(f"{at} {line.worker}{mark} {line.text}")
