"""Compare Auto with the best of fifteen published schedulers on every kind of graph."""

from collections.abc import Iterator, Sequence
from statistics import median

from quality.contest import Case, Contestant, Terms, contend
from quality.graphs import graph
from quality.tables import aligned, geometric, rounded

PUBLISHED = (
    *("HEFT", "CPOP", "ETF", "BIL", "Duplex", "FCP", "FLB", "MaxMin", "MCT", "MinMin", "MSBC"),
    *("MST", "OLB", "Suffer", "WBA"),
)
"""saga's schedulers without those that leave tasks out (HBMCT), take minutes (DPS) or put all tasks
on one of equal workers (GDL, MET, Fastest)."""

BEHIND = 0.01
"""How far behind the best published scheduler counts as no worse."""


def contend_kind(
    kind: str, ccr: float, seed: int, contestants: Sequence[Contestant], terms: Terms
) -> Case:
    """Score a kind's graph."""
    return contend(graph(kind, seed), ccr, contestants, {}, terms)


def best_published(case: Case) -> tuple[str, float]:
    """Return the name and the makespan of the best plan that isn't Shoal's."""
    found = {name: score.makespan for name, score in case.scores.items() if name in PUBLISHED}
    name = min(found, key=lambda name: found[name])
    return name, found[name]


def ratio(case: Case) -> float:
    """Return Auto's makespan over that of the best published scheduler."""
    return case.scores["auto"].makespan / best_published(case)[1]


def kinds_table(cases: Sequence[Case]) -> str:
    """Return a row for each case, then the counts and means."""
    head = ["kind", "tasks", "ccr", "workers", "auto", "published", "by", "ratio", "planning"]
    rows = [
        [
            *(case.shape, str(case.tasks), f"{case.ccr:g}", str(case.workers)),
            *(rounded(case.scores["auto"].makespan), rounded(best_published(case)[1])),
            *(best_published(case)[0], f"{ratio(case):.3f}"),
            f"{case.scores['auto'].planning:.2f}",
        ]
        for case in cases
    ]
    title = "Kinds of graphs: seconds with Auto and with the best of 15 published schedulers"
    return "\n".join([title, aligned([head, *rows]), "", *_summary(cases)])


def _summary(cases: Sequence[Case]) -> Iterator[str]:
    ratios = [ratio(case) for case in cases]
    ahead = sum(each < 1 - BEHIND for each in ratios)
    held = sum(each <= 1 + BEHIND for each in ratios)
    worst = max(cases, key=ratio)
    yield (
        f"Auto is at most 1 % behind the best published scheduler in {held} of {len(cases)} cases, "
        f"and over 1 % ahead in {ahead}"
    )
    yield (
        f"ratio: {geometric(ratios):.3f} in the geometric mean, {max(ratios):.3f} at worst "
        f"({worst.shape}, ccr {worst.ccr:g}, {worst.workers} workers)"
    )
    for ccr in sorted({case.ccr for case in cases}):
        for workers in sorted({case.workers for case in cases}):
            group = [ratio(c) for c in cases if (c.ccr, c.workers) == (ccr, workers)]
            yield f"  ccr {ccr:g}, {workers} workers: {geometric(group):.3f}"
    planning = [case.scores["auto"].planning for case in cases]
    yield (
        f"seconds to plan with Auto: median {median(planning):.2f}, at most {max(planning):.2f}, "
        f"{sum(planning):.0f} in all"
    )
