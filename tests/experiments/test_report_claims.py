"""The papers' claims, checked against records."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from report_examples import ROW as RUN

from shoal.experiments.records import Row
from shoal.experiments.report.claims import (
    PaperClaim,
    claims,
    figure,
    judged,
    more,
    relative,
    titles,
)
from shoal.experiments.report.statistics import PLANNERS

ROW = replace(RUN, makespan=8.0)
FASTER = PaperClaim("000", "Uniform is faster", "12.6 % less", "change", "makespan", "uniform",
               "wukong", most=-0.126)  # fmt: skip


def repeated(*rows: Row, times: int = 10) -> list[Row]:
    """Repeat runs, of which each is one percent off the other way from the one before."""
    return [
        replace(row, makespan=row.makespan * off, startup=row.startup * off)
        for row in rows
        for off in (0.99, 1.01) * (times // 2)
    ]


def test_a_claim_holds_if_the_whole_interval_is_within_its_bounds() -> None:
    slow = replace(ROW, planner="wukong", makespan=10.0)
    verdict = judged(FASTER, repeated(ROW, slow))
    assert (verdict.here, verdict.typical, verdict.verdict) == (
        "20.0 % less",
        "20.0 % less",
        "holds",
    )
    assert verdict.range == verdict.typical_range == "21.6 to 18.4 % less"
    assert judged(FASTER, repeated(ROW, replace(slow, makespan=8.5))).verdict == "in part"
    assert judged(FASTER, repeated(ROW, replace(slow, makespan=7.8))).verdict == "doesn't hold"


def test_a_claim_is_undecided_if_the_interval_crosses_a_bound() -> None:
    near = replace(ROW, planner="wukong", makespan=9.15)
    assert judged(FASTER, repeated(ROW, near)).verdict == "undecided"


def test_a_claim_is_mixed_if_a_single_workflow_decides_the_medians() -> None:
    rows = [
        replace(ROW, workflow=workflow, planner=planner, makespan=makespan)
        for workflow, ours, theirs in (("a", 1.2, 1.0), ("b", 3.0, 4.0), ("c", 6.0, 5.0))
        for planner, makespan in (("uniform", ours), ("wukong", theirs))
    ]
    verdict = judged(FASTER, repeated(*rows))
    assert (verdict.here, verdict.typical) == ("25.0 % less", "20.0 % more")
    assert verdict.verdict == "mixed"


def test_a_claim_needs_enough_runs_for_an_interval() -> None:
    slow = replace(ROW, planner="wukong", makespan=10.0)
    verdict = judged(FASTER, [ROW, slow] * 4)
    assert (verdict.here, verdict.range, verdict.verdict) == ("20.0 % less", "", "too few runs")


def test_errors_of_transfers_are_judged_by_real_runs_only() -> None:
    """Simulated transfers hardly vary, so they say nothing."""
    claim = next(claim for claim in claims() if claim.metric == "transfer_error")
    rows = repeated(replace(ROW, transfer_error=0.002))
    verdict = judged(claim, rows)
    assert (verdict.here, verdict.verdict) == ("0.2 % on the virtual clock", "needs real runs")
    real = repeated(replace(ROW, transfer_error=0.2, mode="real"))
    verdict = judged(claim, [*rows, *real])
    assert (verdict.here, verdict.verdict) == ("20.0 %", "holds")


def test_a_claim_about_absent_planners_is_not_measured() -> None:
    assert judged(FASTER, [ROW]).verdict == "not measured"
    assert judged(FASTER, []).here == ""


def test_a_share_needs_enough_runs() -> None:
    claim = PaperClaim("000", "kept", "", "fulfilment", sla=50, least=0.45, most=0.55)
    kept, broken = replace(ROW, predicted=9.0), replace(ROW, predicted=7.0)
    other = replace(broken, sla=90)
    assert judged(claim, [kept, broken, other] * 50).verdict == "undecided"
    enough = judged(claim, [kept, broken, other] * 500)
    assert (enough.here, enough.range, enough.verdict) == (
        "50.0 % of 1,000 runs",
        "46.9 to 53.1 %",
        "holds",
    )
    assert judged(claim, [kept] * 100).verdict == "doesn't hold"


def test_a_saving_is_the_difference_of_the_means() -> None:
    claim = PaperClaim("000", "pre-warming", "2 to 6 s", "saving", "startup", "uniform-optimised",
                  "uniform", least=2.0)  # fmt: skip
    rows = repeated(
        replace(ROW, startup=3.5), replace(ROW, planner="uniform-optimised", startup=1.25)
    )
    verdict = judged(claim, rows)
    assert (verdict.here, verdict.verdict) == ("2.25 s a run", "holds")
    assert judged(replace(claim, least=2.5), rows).verdict == "in part"


def test_an_error_is_the_median_over_all_runs_that_have_one() -> None:
    claim = PaperClaim("000", "accurate", "9.3 %", "error", "execution_error", most=0.093)
    rows = [ROW, *(replace(ROW, execution_error=error) for error in (0.01, 0.05, 0.5))]
    assert judged(claim, rows).here == "5.0 %"


def test_the_largest_step_is_between_neighbouring_designs() -> None:
    claim = PaperClaim("003", "the largest", "", "largest-step", "makespan", "decentralised")
    rows = [
        replace(ROW, planner=planner, makespan=makespan)
        for planner, makespan in (
            ("strawman", 10.0), ("parallel-invokers", 8.0), ("decentralised", 2.0)
        )
    ]  # fmt: skip
    assert judged(claim, rows).verdict == "too few runs"
    assert judged(claim, repeated(*rows)).verdict == "holds"
    rows[1] = replace(rows[1], makespan=3.0)
    other = judged(claim, repeated(*rows))
    assert other.here == "parallel invokers: 70.0 % less; decentralised: 33.3 % less"
    assert other.verdict == "doesn't hold"
    assert judged(claim, rows[:2]).verdict == "not measured"


def test_a_claim_can_be_about_one_workflow() -> None:
    rows = [
        ROW,
        replace(ROW, planner="wukong", makespan=10.0),
        replace(ROW, workflow="text", planner="wukong", makespan=1.0),
    ]
    assert judged(replace(FASTER, workflow="tree"), repeated(*rows)).verdict == "holds"


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: f"{claim.where}-{claim.claim}")
def test_every_claim_of_the_papers_can_be_judged(claim: PaperClaim) -> None:
    assert judged(claim, []).verdict == "not measured"
    assert claim.metric in {"", *(field.name for field in fields(Row))}
    assert claim.where.split(":")[0] in {*titles(), "Shoal's own"}


def test_the_papers_figures_and_medians_are_included() -> None:
    names = [*(f"000/{number}" for number in range(3, 8)), "003/4"]
    names += [f"003/{number}" for number in range(7, 13)]
    assert all(figure(name).numbers for name in names)
    assert set(relative("makespan")) == set(relative("gb_seconds")) < set(PLANNERS)


def test_a_change_is_described_in_words() -> None:
    assert (more(-0.126), more(1.14)) == ("12.6 % less", "114.0 % more")
