"""`shoal resume RUN`: go on with a run that isn't finished, and print its value."""

from __future__ import annotations

import argparse
import pprint
import sys

from shoal.cli.settings import assigned, configure_set
from shoal.execution.wording import counted
from shoal.run import Run
from shoal.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="its id, as its error or `shoal runs` says")
    configure_set(parser, "a setting, such as the store that the run was begun with")


def carry_out(args: argparse.Namespace) -> None:
    """Repeat what isn't finished of a run."""
    with Session(**assigned(args.assignments)) as session:
        finish(session.resume(args.run))


def finish(run: Run) -> None:
    """Wait for a run and print its value."""
    try:
        value = run.result()
    except BaseException as error:
        run.give_up(error)
        raise
    pprint.pprint(value)
    sys.stdout.flush()
    tasks = counted(len(run.workflow), "task")
    print(f"run {run.id}: {tasks} in {run.makespan:.3f} s", file=sys.stderr)
