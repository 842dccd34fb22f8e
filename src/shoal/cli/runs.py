"""`shoal runs`: the runs that are known, the latest first."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing

from shoal.cli.settings import assigned, configure_set
from shoal.cli.terminal import NARROW, print_table
from shoal.connecting import open_history
from shoal.errors import UsageError
from shoal.metadata.history import ALL, History, RunRecord
from shoal.settings import resolve

NO_RUNS = "No run is known yet. `shoal demo` makes one."
_TITLES = ("run", "workflow", "started", "planner", "tasks", "workers", "seconds", "predicted",
           "outcome")  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = NARROW
    parser.add_argument("name", nargs="?", help="only the runs of this workflow")
    configure_most(parser, "how many")
    configure_set(parser)


def configure_most(parser: argparse.ArgumentParser, what: str) -> None:
    """Let a command take how many runs are wanted."""
    parser.add_argument("-n", "--most", type=_count, default=20, help=f"{what} (default: 20)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return min(int(text), sys.maxsize)  # more than that no database takes


def carry_out(args: argparse.Namespace) -> None:
    """Print a table of runs."""
    with closing(open_history(resolve(assigned(args.assignments)))) as history:
        found = _named(history, args.name, args.most)
    if not found:
        print(f"No run of {args.name!r} is known yet." if args.name else NO_RUNS)
        return
    print_table(
        _TITLES,
        map(_row, found),
        numbers=("tasks", "workers", "seconds", "predicted"),
        words=("workflow", "outcome"),
        spare=("planner", "started", "workers", "tasks"),
    )


def _named(history: History, name: str | None, most: int) -> list[RunRecord]:
    """The latest runs, only those of workflows of a name if one is given."""
    if name is None:
        return history.runs(most=most)
    found = [run for run in history.runs(most=ALL) if name in (run.name, run.key)]
    return found[:most]


def find_run(history: History, run: str) -> RunRecord:
    """A run by its id, the beginning of that, or `last`."""
    if run != "last":
        return history.find(run)
    latest = history.runs(most=1)
    if not latest:
        raise UsageError(NO_RUNS)
    return latest[0]


def began(run: RunRecord) -> str:
    """When a run was started, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))


def _row(run: RunRecord) -> list[str]:
    return [
        run.run,
        run.name,
        began(run),
        run.planner or "-",
        f"{run.tasks:,}",
        f"{run.workers:,}",
        f"{run.makespan:,.3f}",
        "-" if run.predicted is None else f"{run.predicted:,.3f}",
        run.outcome,
    ]
