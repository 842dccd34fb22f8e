"""`shoal runs`: the runs that are known, the latest first."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing

from shoal.cli.settings import assigned, configure_set
from shoal.connecting import open_history
from shoal.settings import resolve

WIDE = 1000
"""Columns where no terminal limits them, so that a row is a line."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("name", nargs="?", help="only the runs of this workflow")
    parser.add_argument("-n", "--most", type=int, default=20, help="how many (default: 20)")
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Print a table of runs."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with closing(open_history(resolve(assigned(args.assignments)))) as history:
        found = history.runs(name=args.name, most=max(1, args.most))
    if not found:
        of_name = f" of {args.name!r}" if args.name else ""
        print(f"No run{of_name} is known yet. `shoal demo` makes one.")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("run", "workflow", "started", "planner", "tasks", "workers", "seconds",
                  "predicted", "outcome"):  # fmt: skip
        number = title in ("tasks", "workers", "seconds", "predicted")
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for run in found:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))
        predicted = "-" if run.predicted is None else f"{run.predicted:,.3f}"
        table.add_row(run.run, Text(run.name), started, Text(run.planner or "-"), f"{run.tasks:,}",
                      f"{run.workers:,}", f"{run.makespan:,.3f}", predicted,
                      Text(run.outcome))  # fmt: skip
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)
