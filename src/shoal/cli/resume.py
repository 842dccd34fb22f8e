"""Implement `shoal resume RUN`: resume an unfinished run and print its value."""

from __future__ import annotations

import argparse
import pprint
import sys

from shoal.cli.settings import configure_set, parse_assignments
from shoal.client.run import Run
from shoal.execution.formatting import counted
from shoal.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="the run's id, as shown by `shoal runs`")
    configure_set(parser, "a setting, for example the run's store")


def carry_out(args: argparse.Namespace) -> None:
    """Run the tasks that are not finished yet."""
    with Session(**parse_assignments(args.assignments)) as session:
        finish(session.resume(args.run))


def finish(run: Run) -> None:
    """Wait for a run and print its value."""
    try:
        value = run.result()
    except BaseException as error:  # the command's outermost edge: Ctrl-C ends the run, too
        run.give_up(error)
        raise
    pprint.pprint(value)
    sys.stdout.flush()
    tasks = counted(len(run.workflow), "task")
    print(f"run {run.id}: {tasks} in {run.makespan:.3f} s", file=sys.stderr)
