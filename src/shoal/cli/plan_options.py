"""Add and parse the planning options `--planner`, `--deadline`, `--budget` and `--sla`."""

from __future__ import annotations

import argparse
import math
from typing import Any

from shoal.errors import UsageError
from shoal.types import SLA, Percentile


def configure_planning(parser: argparse.ArgumentParser) -> None:
    """Add the planning options to a command."""
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--planner",
        metavar="NAME",
        help="auto (default), uniform, nonuniform, spread, wukong, …",
    )
    group.add_argument(
        "--deadline", metavar="SECONDS", help="choose the cheapest plan that meets this deadline"
    )
    group.add_argument(
        "--budget", metavar="USD", help="choose the fastest plan that stays within this budget"
    )
    group.add_argument(
        "--sla",
        metavar="LEVEL",
        help="how conservative predictions are: median (default), or the percentage of runs that "
        "should stay within them, such as 95",
    )


def planning_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given planning options, as arguments of `plan` and `submit`."""
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
        raise UsageError(f"{option} {text}: must be a number greater than 0.")
    return amount


def _level(text: str) -> SLA:
    if text == "median":
        return "median"
    try:
        return Percentile(float(text.removesuffix("%")))
    except ValueError:
        raise UsageError(f"--sla {text}: must be median or a percentage such as 95.") from None
    except UsageError as error:
        raise UsageError(f"--sla {text}: {error}") from None
