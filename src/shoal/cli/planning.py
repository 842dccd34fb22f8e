"""Which plan is wanted, from the command line: `--planner`, `--deadline`, `--budget`, `--sla`."""

from __future__ import annotations

import argparse
import math
from typing import Any

from shoal.errors import UsageError
from shoal.types import SLA, Percentile


def configure_planning(parser: argparse.ArgumentParser) -> None:
    """Let a command take what concerns the plan."""
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--planner",
        metavar="NAME",
        help="auto (the default), uniform, nonuniform, spread, wukong, …",
    )
    group.add_argument(
        "--deadline", metavar="SECONDS", help="the cheapest plan that is predicted to take no more"
    )
    group.add_argument(
        "--budget", metavar="USD", help="the fastest plan that is predicted to cost no more"
    )
    group.add_argument(
        "--sla",
        metavar="LEVEL",
        help="how careful predictions are: median (the default), or the share of runs in per cent "
        "that is to stay within them, such as 95",
    )


def planning_options(args: argparse.Namespace) -> dict[str, Any]:
    """What was given, as options of `plan` and `submit`."""
    options: dict[str, Any] = {}
    if args.planner is not None:
        options["planner"] = args.planner
    for name in ("deadline", "budget"):
        text = getattr(args, name)
        if text is not None:
            options[name] = _amount(f"--{name}", text)
    if len(options.keys() & {"deadline", "budget"}) == 2:
        raise UsageError("Give --deadline or --budget, not both.")
    if args.sla is not None:
        options["sla"] = _level(args.sla)
    return options


def _amount(option: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise UsageError(f"{option} {text}: give a number greater than 0.")
    return amount


def _level(text: str) -> SLA:
    if text == "median":
        return "median"
    try:
        return Percentile(float(text.removesuffix("%")))
    except ValueError:
        raise UsageError(f"--sla {text}: give median, or per cent such as 95.") from None
    except UsageError as error:
        raise UsageError(f"--sla {text}: {error}") from None
