"""What the papers claim, held against records; pure but for reading `papers.json`.

`papers.json` has the papers' own figures, in numbers, with the place of each, and the claims: how
a claim is measured, and between which bounds it holds. Shoal's own aims are claims without a paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from shoal.experiments.records import Row
from shoal.experiments.report.statistics import (
    DESIGNS,
    by_planner,
    change,
    promises,
    typical_change,
    values,
)

_ENOUGH = 100
"""Runs that it takes to tell a share within 5 points."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a paper in the numbers that its text gives."""

    title: str
    where: str
    numbers: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a paper says of its planners."""

    where: str
    """The paper and the section."""
    claim: str
    paper: str
    """The paper's figure."""
    kind: str
    """How it is measured: `change`, `saving`, `error`, `fulfilment` or `largest-step`."""
    metric: str = ""
    of: str = ""
    than: str = ""
    sla: int = 0
    workflow: str = ""
    least: float = float("-inf")
    most: float = float("inf")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was measured of a claim."""

    claim: Claim
    here: str
    """The figure; empty if the records have nothing to say."""
    typical: str
    """The median of the changes within each workflow and SLA, of a claim about a change."""
    verdict: str
    """`holds`, `in part`, `doesn't hold`, `too few runs` or `not measured`."""


@cache
def _papers() -> Mapping[str, Any]:
    text = files("shoal.experiments.report").joinpath("papers.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def titles() -> Mapping[str, str]:
    """The papers by their numbers."""
    return _papers()["papers"]  # type: ignore[no-any-return]


def figure(name: str) -> Figure:
    """A figure of a paper, such as `000/3`."""
    return Figure(**_papers()["figures"][name])


def relative(metric: str) -> Mapping[str, float]:
    """The paper's medians of each planner as changes against WUKONG optimised."""
    return _papers()["relative"][metric]  # type: ignore[no-any-return]


def relative_note() -> str:
    """Where those come from."""
    return str(_papers()["relative"]["note"])


def claims() -> list[Claim]:
    """Every claim, in the order in which it is told."""
    return [Claim(**each) for each in _papers()["claims"]]


def judged(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """What the records say of a claim."""
    concerned = [row for row in rows if _concerns(claim, row)]
    match claim.kind:
        case "change":
            return _change(claim, concerned)
        case "saving":
            return _saving(claim, concerned)
        case "error":
            return _error(claim, concerned)
        case "fulfilment":
            return _fulfilment(claim, concerned)
        case _:
            return _largest_step(claim, concerned)


def _concerns(claim: Claim, row: Row) -> bool:
    return (not claim.workflow or row.workflow == claim.workflow) and (
        not claim.sla or row.sla == claim.sla
    )


def _change(claim: Claim, rows: Sequence[Row]) -> Verdict:
    measured = change(rows, claim.metric, claim.of, claim.than)
    if measured is None:
        return Verdict(claim, "", "", "not measured")
    typical = typical_change(rows, claim.metric, claim.of, claim.than)
    return Verdict(claim, more(measured), more(typical or 0.0), _held(claim, measured))


def _saving(claim: Claim, rows: Sequence[Row]) -> Verdict:
    planners = by_planner(rows)
    before, after = (values(planners.get(n, []), claim.metric) for n in (claim.than, claim.of))
    if not before or not after:
        return Verdict(claim, "", "", "not measured")
    saved = fmean(before) - fmean(after)
    return Verdict(claim, f"{saved:.2f} s a run", "", _held(claim, saved))


def _error(claim: Claim, rows: Sequence[Row]) -> Verdict:
    errors = values(rows, claim.metric)
    if not errors:
        return Verdict(claim, "", "", "not measured")
    return Verdict(claim, f"{100 * median(errors):.1f} %", "", _held(claim, median(errors)))


def _fulfilment(claim: Claim, rows: Sequence[Row]) -> Verdict:
    kept = promises(rows)
    if kept is None:
        return Verdict(claim, "", "", "not measured")
    here = f"{100 * kept.share:.1f} % of {kept.made:,} runs"
    enough = kept.made >= _ENOUGH
    return Verdict(claim, here, "", _held(claim, kept.share) if enough else "too few runs")


def _largest_step(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Which design shortened the makespan most against the one before it."""
    present = [name for name in DESIGNS if name in by_planner(rows)]
    steps = {
        later: typical_change(rows, claim.metric, later, earlier) or 0.0
        for earlier, later in pairwise(present)
    }
    if claim.of not in steps:
        return Verdict(claim, "", "", "not measured")
    largest = min(steps, key=steps.__getitem__)
    here = f"{DESIGNS[largest]}: {more(steps[largest])}"
    if largest != claim.of:
        here += f"; {DESIGNS[claim.of]}: {more(steps[claim.of])}"
    return Verdict(claim, here, "", "holds" if largest == claim.of else "doesn't hold")


def _held(claim: Claim, measured: float) -> str:
    """A claim about a difference holds in part if there is one in that direction, but smaller."""
    if claim.least <= measured <= claim.most:
        return "holds"
    differs = (claim.kind == "change" and claim.most < measured < 0) or (
        claim.kind == "saving" and 0 < measured < claim.least
    )
    return "in part" if differs else "doesn't hold"


def more(change: float) -> str:
    """A change in words: `12.6 % less`."""
    return f"{100 * abs(change):.1f} % {'less' if change < 0 else 'more'}"
