"""Implement `shoal experiments report DIR`: write an experiment's report and print its claims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.terminal import print_table

if TYPE_CHECKING:
    from shoal.experiments.report.claims import Verdict

_STYLES = {"holds": "green", "in part": "yellow", "mixed": "yellow", "doesn't hold": "red"}


def configure(actions: Any) -> None:
    """Describe the command's arguments."""
    parser = actions.add_parser(
        "report",
        help="write an HTML report of an experiment",
        description="Draw the papers' figures from an experiment's records, check the papers' "
        "claims against them, and write report.html in the experiment's folder.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of `shoal experiments run`")


def carry_out(args: argparse.Namespace) -> None:
    """Write the report and print whether each claim holds."""
    from shoal.experiments.report.writing import write_report

    report = write_report(Path(args.folder))
    for line in report.damaged:
        print(f"skipped: {line}", file=sys.stderr)
    print(f"on this platform: {report.platform}")
    _print_claims(report.verdicts)
    if report.note:
        print(report.note, file=sys.stderr)
    print(f"written to {report.path}")


def _print_claims(verdicts: Sequence[Verdict]) -> None:
    from rich.text import Text

    rows = [
        (
            verdict.claim.claim,
            verdict.claim.paper or "-",
            _ranged(verdict.here, verdict.range),
            _ranged(verdict.typical or "-", verdict.typical_range),
            Text(verdict.verdict, _STYLES.get(verdict.verdict, "")),
        )
        for verdict in verdicts
        if verdict.here
    ]
    if rows:
        print_table(("claim", "paper", "here", "typical", ""), rows, words=("claim",))


def _ranged(text: str, within: str) -> str:
    return f"{text} ({within})" if within else text
