"""Implement `shoal experiments`: run the papers' evaluation and report on it."""

from __future__ import annotations

import argparse

from shoal.cli import experiment_report, experiment_run


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    experiment_run.configure(actions)
    experiment_report.configure(actions)


def carry_out(args: argparse.Namespace) -> None:
    """Run the action that was asked for."""
    if args.action == "report":
        experiment_report.carry_out(args)
    else:
        experiment_run.carry_out(args)
