"""Implement `shoal runs`: list runs, latest first."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing

from shoal.cli.settings import configure_set, parse_assignments
from shoal.cli.terminal import NARROW, print_table
from shoal.client.backends import open_history
from shoal.errors import UsageError
from shoal.metadata.history import ALL, History, RunRecord
from shoal.settings import resolve

NO_RUNS = "There are no runs yet. Try `shoal demo`."
_TITLES = ("run", "workflow", "started", "planner", "tasks", "workers", "seconds", "predicted",
           "outcome")  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = NARROW
    parser.add_argument("name", nargs="?", help="only the runs of this workflow")
    configure_most(parser, "list at most this many runs")
    configure_set(parser)


def configure_most(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that limits how many runs are shown."""
    parser.add_argument(
        "-n", "--most", metavar="N", type=_count, default=20, help=f"{what} (default: %(default)s)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return min(int(text), sys.maxsize)  # SQLite's limit


def carry_out(args: argparse.Namespace) -> None:
    """Print a table of runs."""
    with closing(open_history(resolve(parse_assignments(args.assignments)))) as history:
        found = _named(history, args.name, args.most)
    if not found:
        print(f"There are no runs of {args.name!r} yet." if args.name else NO_RUNS)
        return
    print_table(
        _TITLES,
        map(_row, found),
        numbers=("tasks", "workers", "seconds", "predicted"),
        words=("workflow", "outcome"),
        spare=("planner", "started", "workers", "tasks"),
    )


def _named(history: History, name: str | None, most: int) -> list[RunRecord]:
    """Return the latest runs, optionally only those of workflows with this name or key."""
    if name is None:
        return history.runs(most=most)
    found = [run for run in history.runs(most=ALL) if name in (run.name, run.key)]
    return found[:most]


def find_run(history: History, run: str) -> RunRecord:
    """Find a run by its id, a unique prefix of it, or `last`."""
    if run != "last":
        return history.find(run)
    latest = history.runs(most=1)
    if not latest:
        raise UsageError(NO_RUNS)
    return latest[0]


def start_time(run: RunRecord) -> str:
    """Return when a run started, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))


def _row(run: RunRecord) -> list[str]:
    return [
        run.run,
        run.name,
        start_time(run),
        run.planner or "-",
        f"{run.tasks:,}",
        f"{run.workers:,}",
        f"{run.makespan:,.3f}",
        "-" if run.predicted is None else f"{run.predicted:,.3f}",
        run.outcome,
    ]
