"""`shoal runs`: the runs that are known, the latest first."""

from __future__ import annotations

import argparse
import time
from contextlib import closing

from shoal.cli.settings import assigned, configure_set
from shoal.cli.terminal import NARROW, print_table
from shoal.connecting import open_history
from shoal.metadata.history import RunRecord
from shoal.settings import resolve

_TITLES = ("run", "workflow", "started", "planner", "tasks", "workers", "seconds", "predicted",
           "outcome")  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = NARROW
    parser.add_argument("name", nargs="?", help="only the runs of this workflow")
    parser.add_argument("-n", "--most", type=int, default=20, help="how many (default: 20)")
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Print a table of runs."""
    with closing(open_history(resolve(assigned(args.assignments)))) as history:
        found = history.runs(name=args.name, most=max(1, args.most))
    if not found:
        of_name = f" of {args.name!r}" if args.name else ""
        print(f"No run{of_name} is known yet. `shoal demo` makes one.")
        return
    print_table(
        _TITLES,
        map(_row, found),
        numbers=("tasks", "workers", "seconds", "predicted"),
        words=("workflow", "outcome"),
        spare=("planner", "started", "workers", "tasks"),
    )


def _row(run: RunRecord) -> list[str]:
    return [
        run.run,
        run.name,
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started)),
        run.planner or "-",
        f"{run.tasks:,}",
        f"{run.workers:,}",
        f"{run.makespan:,.3f}",
        "-" if run.predicted is None else f"{run.predicted:,.3f}",
        run.outcome,
    ]
