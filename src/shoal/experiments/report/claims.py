"""Check the papers' claims against records; pure except for reading `papers.json`.

`papers.json` has the papers' own figures, in numbers, with the place of each, and the claims: how
a claim is measured, and the bounds within which it holds. Shoal's own goals have no paper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from shoal.experiments.records import Row
from shoal.experiments.report.intervals import Estimate
from shoal.experiments.report.statistics import (
    DESIGNS,
    by_planner,
    change,
    middle,
    promises,
    saving,
    typical_change,
)

TOO_FEW = "too few runs"
"""The verdict on figures without a confidence interval."""
UNDECIDED = "undecided"
"""The verdict if the interval has values within the claim's bounds and beyond them."""
MIXED = "mixed"
"""The verdict if the medians over all runs say the opposite of the typical difference."""
UNREAL = "needs real runs"
"""The verdict on what simulations leave out."""


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
    """`holds`, `in part`, `doesn't hold`, `mixed`, `undecided`, `too few runs`, `needs real runs`
    or `not measured`."""
    range: str = ""
    """The confidence interval of the measured figure; empty if there are too few runs."""
    typical_range: str = ""


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
            found = change(concerned, claim.metric, claim.of, claim.than)
            typical = typical_change(concerned, claim.metric, claim.of, claim.than)
            return _verdict(claim, found, more, typical)
        case "saving":
            found = saving(concerned, claim.metric, claim.of, claim.than)
            return _verdict(claim, found, lambda seconds: f"{seconds:.2f} s a run")
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


def _verdict(
    claim: PaperClaim,
    found: Estimate | None,
    text: Callable[[float], str],
    typical: Estimate | None = None,
) -> Verdict:
    if found is None:
        return Verdict(claim, "", "", "not measured")
    verdict = MIXED if typical and _opposed(found, typical) else _held(claim, found)
    return Verdict(claim, text(found.value), text(typical.value) if typical else "", verdict,
                   ranged(found, text), ranged(typical, text))  # fmt: skip


def _opposed(found: Estimate, typical: Estimate) -> bool:
    """Return whether two differences have opposite signs, with their whole intervals."""
    return found.high < 0 < typical.low or typical.high < 0 < found.low


def _error(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    """Judge an error of predictions; one of transfers by real runs only."""
    known = [row for row in rows if row.mode == "real" or claim.metric != "transfer_error"]
    verdict = _verdict(claim, middle(known, claim.metric), _percent)
    simulated = middle(rows, claim.metric)
    if not verdict.here and simulated is not None:
        return Verdict(claim, f"{_percent(simulated.value)} on the virtual clock", "", UNREAL)
    return verdict


def _fulfilment(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    kept = promises(rows)
    if kept is None:
        return Verdict(claim, "", "", "not measured")
    verdict = _verdict(claim, kept.interval, lambda share: f"{100 * share:.1f} %")
    return replace(verdict, here=f"{verdict.here} of {kept.made:,} runs")


def _largest_step(claim: PaperClaim, rows: Sequence[Row]) -> Verdict:
    """Return the design that shortened the makespan most, compared with the previous one."""
    present = [name for name in DESIGNS if name in by_planner(rows)]
    found = {
        later: typical_change(rows, claim.metric, later, earlier)
        for earlier, later in pairwise(present)
    }
    steps = {name: step for name, step in found.items() if step is not None}
    if claim.of not in steps:
        return Verdict(claim, "", "", "not measured")
    largest = min(steps, key=lambda name: steps[name].value)
    own = steps[claim.of]
    here = f"{DESIGNS[largest]}: {more(steps[largest].value)}"
    if largest != claim.of:
        here += f"; {DESIGNS[claim.of]}: {more(own.value)}"
    others = [step for name, step in steps.items() if name != claim.of]
    if not all(step.known for step in steps.values()):
        verdict = TOO_FEW
    elif all(own.high < other.low for other in others):
        verdict = "holds"
    else:
        behind = any(other.high < own.low for other in others)
        verdict = "doesn't hold" if behind else UNDECIDED
    return Verdict(claim, here, "", verdict, ranged(own, more))


def _held(claim: PaperClaim, found: Estimate) -> str:
    """Return whether the whole interval is within the claim's bounds.

    A difference that is too small but has the right direction holds in part.
    """
    if not found.known:
        return TOO_FEW
    if claim.least <= found.low and found.high <= claim.most:
        return "holds"
    if found.low <= claim.most and found.high >= claim.least:
        return UNDECIDED
    differs = (claim.kind == "change" and claim.most < 0 and found.high < 0) or (
        claim.kind == "saving" and found.low > 0 and found.high < claim.least
    )
    return "in part" if differs else "doesn't hold"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def ranged(found: Estimate | None, text: Callable[[float], str]) -> str:
    """Describe a confidence interval, such as `12.6 % less to 1.0 % more`."""
    if found is None or not found.known:
        return ""
    low, high = text(found.low), text(found.high)
    return f"{low.removesuffix(_unit(low, high))} to {high}"


def _unit(low: str, high: str) -> str:
    """Return what both texts say after their numbers."""
    unit = low.partition(" ")[2]
    return f" {unit}" if unit == high.partition(" ")[2] else ""


def more(change: float) -> str:
    """Describe a change in words, such as `12.6 % less`."""
    return f"{100 * abs(change):.1f} % {'less' if change < 0 else 'more'}"
