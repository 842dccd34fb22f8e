"""`shoal experiments`: the papers' evaluation, run and reported."""

from __future__ import annotations

import argparse

from shoal.cli import experimenting, reporting


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    experimenting.configure(actions)
    reporting.configure(actions)


def carry_out(args: argparse.Namespace) -> None:
    """Run, compare, calibrate or report."""
    if args.action == "report":
        reporting.carry_out(args)
    else:
        experimenting.carry_out(args)
