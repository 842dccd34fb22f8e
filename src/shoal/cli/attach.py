"""Implement `shoal attach RUN`: wait for a detached run and print its value."""

from __future__ import annotations

import argparse

from shoal.cli.resume import configure, finish
from shoal.cli.settings import parse_assignments
from shoal.session import Session

__all__ = ["carry_out", "configure"]


def carry_out(args: argparse.Namespace) -> None:
    """Wait for the run and print its value."""
    with Session(**parse_assignments(args.assignments)) as session:
        finish(session.attach(args.run))
