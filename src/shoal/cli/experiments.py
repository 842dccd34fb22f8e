"""`shoal experiments`: the papers' evaluation, run and reported."""

from __future__ import annotations

import argparse

from shoal.cli import reporting


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    reporting.configure(actions)


def carry_out(args: argparse.Namespace) -> None:
    """Report."""
    reporting.carry_out(args)
