"""`shoal attach RUN`: wait for a run that goes on without its client, and print its value."""

from __future__ import annotations

import argparse

from shoal.cli.resume import configure, finish
from shoal.cli.settings import assigned
from shoal.session import Session

__all__ = ["carry_out", "configure"]


def carry_out(args: argparse.Namespace) -> None:
    """Wait for the run."""
    with Session(**assigned(args.assignments)) as session:
        finish(session.attach(args.run))
