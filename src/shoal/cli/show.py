"""Implement `shoal show RUN`: draw a run's Gantt chart in the terminal or as an HTML page."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from shoal.cli.runs import find_run, start_time
from shoal.cli.settings import configure_set, parse_assignments
from shoal.cli.terminal import colored, terminal_width
from shoal.cli.trends import relative_error
from shoal.client.backends import open_history
from shoal.errors import UsageError
from shoal.execution.formatting import percent, printable, seconds_text
from shoal.execution.gantt import gantt_html, gantt_text
from shoal.execution.timeline import Timeline
from shoal.metadata.history import RunRecord
from shoal.settings import resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="the run's id, a unique prefix of it, or `last`")
    parser.add_argument("--html", metavar="FILE", help="write the chart to an HTML page")
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Print the run's plan and its Gantt chart."""
    with closing(open_history(resolve(parse_assignments(args.assignments)))) as history:
        record = find_run(history, args.run)
        timeline = history.load(record).timeline
    where = f" on {record.platform}" if record.platform else ""
    head = f"run {record.run} of {record.name}{where}, {start_time(record)}"
    print(printable(f"{head}: {record.outcome}"))
    if record.planner:
        print(printable(_planned(record)))
    print_gantt(timeline)
    for line in timeline.shard_use:
        print(line)
    if args.html:
        write_page(Path(args.html), gantt_html(timeline, f"{record.name}, run {record.run}"))
        print(f"written to {args.html}")


def _planned(record: RunRecord) -> str:
    took = f" in {seconds_text(record.planning)}" if record.planning else ""
    text = f"planned by {record.planner}{took} for "
    text += "the median" if record.sla == "median" else f"the {record.sla} level"
    if record.predicted is None:
        return f"{text}; no prediction was recorded"
    error = relative_error(record)
    off = "" if error is None else f" ({percent(error, '+')})"
    return f"{text}: predicted {record.predicted:,.3f} s, took {record.makespan:,.3f} s{off}"


def print_gantt(timeline: Timeline) -> None:
    """Print a Gantt chart as wide as the terminal."""
    print(gantt_text(timeline, width=terminal_width(), color=colored(sys.stdout)))


def write_page(path: Path, page: str) -> None:
    """Write a file whose path the user chose."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error
