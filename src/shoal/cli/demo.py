"""Implement `shoal demo`: run the text-analysis workflow and show its plan, chart and history."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from shoal.cli.show import print_gantt, write_page
from shoal.cli.terminal import colored, terminal_width
from shoal.errors import HistoryError
from shoal.execution.gantt import gantt_html
from shoal.experiments.text_analysis import generate_text, text_analysis
from shoal.metadata.history import RunRecord
from shoal.session import Session
from shoal.workflow import Workflow
from shoal.workflow.drawing import draw_svg, draw_text

NAME = "text-analysis"


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "--lines", type=int, default=100_000, help="lines of text (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, help="number of workers (default: one per core)")
    parser.add_argument(
        "--out", default="out", metavar="FOLDER", help="output folder (default: %(default)s)"
    )


def carry_out(args: argparse.Namespace) -> None:
    """Draw the workflow, run it, and show its timeline."""
    begin = time.perf_counter()
    print(f"Generating {args.lines:,} lines of text …", end=" ", flush=True)
    text = generate_text(max(100, args.lines))
    print(f"{len(text) / 2**20:.1f} MB in {time.perf_counter() - begin:.1f} s\n")
    report = text_analysis(text)
    workflow = Workflow.of(report)
    print(f"The workflow has {len(workflow):,} tasks:\n\n{draw_text(workflow)}\n")
    workers = {} if args.workers is None else {"workers": args.workers}
    with Session(**workers) as session:
        earlier, latest = _earlier(session, workflow)
        run = session.submit(report, name=NAME)
        print(f"Planned by {run.plan.planner} from {run.preview.basis}.\n")
        value = run.result()
    print(f"{value}\n")
    if run.preview.learnt:
        print(run.report(width=terminal_width(), color=colored(sys.stdout)))
    else:
        print_gantt(run.timeline)
    folder = Path(args.out)
    write_page(folder / "workflow.svg", draw_svg(workflow))
    write_page(folder / "gantt.html", gantt_html(run.timeline, f"{NAME}, run {run.id}"))
    print(f"\nGantt chart: {folder / 'gantt.html'}; workflow diagram: {folder / 'workflow.svg'}")
    if earlier:
        seconds = ", ".join(f"{record.makespan:.2f} s" for record in latest)
        print(f"This was run {earlier + 1} of this workflow; previous runs took {seconds}.")
        print(f"`shoal history show {NAME}` compares predictions with actual times.")
    else:
        print("This run is now part of the history: the next demo is planned from it.")
    print(f"`shoal show {run.id}` shows this run again.")


def _earlier(session: Session, workflow: Workflow) -> tuple[int, list[RunRecord]]:
    """Return the number of past runs and the latest five; none if the history is unreadable."""
    try:
        count = session.history.count(NAME, workflow.fingerprint())
        return count, session.history.runs(key=NAME, most=5)
    except HistoryError:
        return 0, []  # the session logs a warning
