"""Check the papers' claims against records; pure except for reading `papers.json`.

`papers.json` has the papers' own figures, in numbers, with the place of each, and the claims: how
a claim is measured, and the bounds within which it holds. Shoal's own goals have no paper.
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
"""The number of runs needed to estimate a share within 5 points."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A paper's figure, with the numbers that its text gives."""

    title: str
    where: str
    numbers: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A claim of a paper about its planners."""

    where: str
    """The paper and the section."""
    claim: str
    paper: str
    """The paper's figure."""
    kind: str
    """How the claim is measured: `change`, `saving`, `error`, `fulfilment` or `largest-step`."""
    metric: str = ""
    of: str = ""
    than: str = ""
    sla: int = 0
    workflow: str = ""
    least: float = float("-inf")
    most: float = float("inf")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measurement of a claim."""

    claim: PaperClaim
    here: str
    """The measured figure; empty if the records have none."""
    typical: str
    """For a claim about a change, the median of the changes within each workflow and SLA."""
    verdict: str
    """`holds`, `in part`, `doesn't hold`, `too few runs` or `not measured`."""


@cache
def _papers() -> Mapping[str, Any]:
    text = files("shoal.experiments.report").joinpath("papers.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def titles() -> Mapping[str, str]:
    """Return the papers' titles by number."""
    return _papers()["papers"]  # type: ignore[no-any-return]


def figure(name: str) -> Figure:
    """Return a figure of a paper, such as `000/3`."""
    return Figure(**_papers()["figures"][name])


def relative(metric: str) -> Mapping[str, float]:
    """Return the paper's medians of each planner, relative to optimised WUKONG."""
    return _papers()["relative"][metric]  # type: ignore[no-any-return]


def relative_note() -> str:
    """Return the source of those medians."""
    return str(_papers()["relative"]["note"])


def claims() -> list[PaperClaim]:
    """Return all claims, in the order of the report."""
    return [PaperClaim(**each) for each in _papers()["claims"]]


def judged(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    """Check a claim against the records."""
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


def _concerns(claim: PaperClaim, row: Row) -> bool:
    return (not claim.workflow or row.workflow == claim.workflow) and (
        not claim.sla or row.sla == claim.sla
    )


def _change(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    measured = change(rows, claim.metric, claim.of, claim.than)
    if measured is None:
        return Verdict(claim, "", "", "not measured")
    typical = typical_change(rows, claim.metric, claim.of, claim.than)
    return Verdict(claim, more(measured), more(typical or 0.0), _held(claim, measured))


def _saving(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    planners = by_planner(rows)
    before, after = (values(planners.get(n, []), claim.metric) for n in (claim.than, claim.of))
    if not before or not after:
        return Verdict(claim, "", "", "not measured")
    saved = fmean(before) - fmean(after)
    return Verdict(claim, f"{saved:.2f} s a run", "", _held(claim, saved))


def _error(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    errors = values(rows, claim.metric)
    if not errors:
        return Verdict(claim, "", "", "not measured")
    return Verdict(claim, f"{100 * median(errors):.1f} %", "", _held(claim, median(errors)))


def _fulfilment(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    kept = promises(rows)
    if kept is None:
        return Verdict(claim, "", "", "not measured")
    here = f"{100 * kept.share:.1f} % of {kept.made:,} runs"
    enough = kept.made >= _ENOUGH
    return Verdict(claim, here, "", _held(claim, kept.share) if enough else "too few runs")


def _largest_step(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    """Return the design that shortened the makespan most, compared with the previous one."""
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


def _held(claim: PaperClaim, measured: float) -> str:
    """Return whether a difference has the right direction but is too small (holds in part)."""
    if claim.least <= measured <= claim.most:
        return "holds"
    differs = (claim.kind == "change" and claim.most < measured < 0) or (
        claim.kind == "saving" and 0 < measured < claim.least
    )
    return "in part" if differs else "doesn't hold"


def more(change: float) -> str:
    """Describe a change in words, such as `12.6 % less`."""
    return f"{100 * abs(change):.1f} % {'less' if change < 0 else 'more'}"
