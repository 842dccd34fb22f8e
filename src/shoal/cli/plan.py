"""Implement `shoal plan FILE_OR_MODULE:OUTPUT`: show a workflow's plan without running it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from shoal.cli.plan_options import configure_planning, planning_options
from shoal.cli.run import configure_workflow, load_wanted
from shoal.cli.settings import parse_assignments
from shoal.cli.show import write_page
from shoal.cli.terminal import colored, terminal_width
from shoal.engine import plan
from shoal.execution.gantt import gantt_html


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    configure_workflow(parser)
    configure_planning(parser)
    parser.add_argument("--compare", metavar="PLANNER", help="compare with another planner's plan")
    parser.add_argument(
        "--explain",
        metavar="TASK",
        action="append",
        default=[],
        help="explain where and when a task runs, such as total#0; may be repeated",
    )
    parser.add_argument("--html", metavar="FILE", help="write the chart to an HTML page")


def carry_out(args: argparse.Namespace) -> None:
    """Plan the workflow and print the prediction."""
    given = parse_assignments(args.assignments)
    options = planning_options(args)
    wanted = load_wanted(args.workflow, given)
    preview = plan(wanted, **({"name": args.name} | given | options))
    parts = [preview.show(terminal_width(), colored(sys.stdout))]
    if args.compare is not None:
        level: dict[str, Any] = {"sla": options["sla"]} if "sla" in options else {}
        level |= {"planner": args.compare}
        other = plan(wanted, **({"name": args.name} | given | level))
        parts.append(preview.compare(other))
    parts += [preview.explain(task) for task in args.explain]
    if args.html:
        title = f"{args.name or preview.plan.workflow.name}, as planned"
        write_page(Path(args.html), gantt_html(preview.timeline, title))
        parts.append(f"written to {args.html}")
    print("\n\n".join(parts))
