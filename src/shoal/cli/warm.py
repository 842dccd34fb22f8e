"""Implement `shoal warm`: have workers of an engine ready before a run."""

from __future__ import annotations

import argparse

from shoal.cli.settings import configure_set, parse_assignments
from shoal.errors import UsageError
from shoal.execution.formatting import counted
from shoal.session import Session
from shoal.settings import resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "workers", type=int, nargs="?", metavar="WORKERS", help="how many; default: as a run has"
    )
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Warm the engine that the settings name."""
    given = parse_assignments(args.assignments)
    platform = resolve(given).platform or ""
    if platform.partition(":")[0] in ("", "http", "https"):
        where = f"the gateway at {platform}" if platform else "the gateway within a process"
        raise UsageError(
            f"The sandboxes of {where} belong to one session, so no command can warm them for "
            "another. Call shoal.warm(), or Session.warm(), in the program before its run."
        )
    with Session(**given) as session:
        ready = session.warm(args.workers)
        stay = session.platform.idle_seconds
    end = f"; idle ones stay for {stay:g} s" if stay is not None else ""
    print(f"{counted(ready, 'worker')} ready or starting on {platform.partition('?')[0]}{end}")
