"""Confidence intervals contain what they are about, about as often as they say."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from report_examples import runs

from shoal.experiments.report.intervals import FEWEST, Estimate, estimate, percentage, pooled_median
from shoal.experiments.report.statistics import Promises, change, middle, typical_change


def test_an_interval_contains_its_estimate_and_is_always_the_same() -> None:
    groups = [[float(n) for n in range(10)], [20.0 + n for n in range(10)]]
    found = estimate(groups, pooled_median)
    assert found.low <= found.value <= found.high
    assert found.value == median(groups[0] + groups[1])
    assert estimate(groups, pooled_median) == found


def test_few_runs_have_no_interval() -> None:
    assert not estimate([[1.0] * (FEWEST - 1)], pooled_median).known
    assert not estimate([[1.0] * FEWEST, [1.0] * (FEWEST - 1)], pooled_median).known
    assert estimate([[1.0] * FEWEST], pooled_median).known


@pytest.mark.slow
def test_most_intervals_contain_the_true_median() -> None:
    rng = Random(1)
    samples = ([rng.gauss(5.0, 1.0) for _ in range(20)] for _ in range(100))
    found = [estimate([sample], pooled_median) for sample in samples]
    assert sum(each.low <= 5.0 <= each.high for each in found) >= 88


def test_workflows_are_not_resampled_only_their_runs() -> None:
    """Without noise there is no doubt, however much workflows differ."""
    rows = [
        *runs("tree", "wukong", *[1.0] * 5), *runs("tree", "uniform", *[0.5] * 5),
        *runs("text", "wukong", *[50.0] * 5), *runs("text", "uniform", *[40.0] * 5),
    ]  # fmt: skip
    found = middle(rows, "makespan")
    assert found is not None
    assert found.low == found.high
    for of in (change, typical_change):
        changed = of(rows, "makespan", "uniform", "wukong")
        assert changed is not None
        assert changed.low == changed.high == changed.value


def test_shares_near_one_have_intervals_too() -> None:
    found = Promises(made=20, kept=20).interval
    assert found.value == 1.0
    assert 0.8 < found.low < 0.9
    assert found.high == pytest.approx(1.0)


def test_a_share_is_described_with_its_interval() -> None:
    assert percentage(Estimate(0.072, 0.0691, 0.0759)) == "7.2 % (6.9 to 7.6 %)"
    assert percentage(Estimate(0.072)) == "7.2 %"
