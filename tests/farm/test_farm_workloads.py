"""Workloads of farms: the papers' streams, steps and traces."""

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.farm.workloads import (
    COUNTS,
    WORKLOADS,
    Workload,
    paper_described,
    paper_measured,
    replay,
    step,
    workload_named,
)


@pytest.mark.parametrize("generate", [paper_described, paper_measured])
def test_the_papers_streams_have_exact_counts(generate: object) -> None:
    workload = generate(3)  # type: ignore[operator]
    assert np.bincount(workload.phases).tolist() == list(COUNTS)
    assert np.all(np.diff(workload.arrivals) >= 0)


@pytest.mark.parametrize("name", ["paper-described", "paper-measured"])
def test_shuffled_streams_have_the_same_phases_in_an_order_of_the_seed(name: str) -> None:
    shuffled = [workload_named(f"{name}-shuffled")(seed) for seed in range(12)]
    counts = {tuple(np.bincount(workload.phases).tolist()) for workload in shuffled}
    assert len(counts) > 5
    assert all(sorted(each) == sorted(COUNTS) for each in counts)
    again = workload_named(f"{name}-shuffled")(3)
    assert np.array_equal(again.arrivals, shuffled[3].arrivals)


def test_the_oscillation_travels_with_its_phase() -> None:
    """In `paper-described`, the fast oscillation has few arrivals when its first cycle ends."""
    generate = workload_named("paper-described-shuffled")
    for seed in range(12):
        workload = generate(seed)
        by_phase = np.bincount(workload.phases).tolist()
        quiet = by_phase.index(90)
        inside = workload.arrivals[workload.phases == quiet] - workload.phase_starts[quiet]
        assert inside.min() >= 0
        assert inside.max() <= 60
        if by_phase == list(COUNTS):
            assert np.array_equal(workload.arrivals, paper_described(seed).arrivals)


def test_processing_times_have_the_papers_mean_and_bounds() -> None:
    times = np.concatenate([paper_measured(seed).processing for seed in range(40)])
    assert times.mean() == pytest.approx(1.47, abs=0.02)
    assert times.min() >= 0.0465
    assert times.max() == 2.870


def test_deadlines_are_twice_the_processing_time_but_at_least_a_tenth_of_a_second() -> None:
    workload = paper_described(0)
    assert workload.deadlines == pytest.approx(np.maximum(2 * workload.processing, 0.1))


def test_the_measured_stream_skips_empty_windows() -> None:
    starts = np.array([paper_measured(seed).phase_starts for seed in range(60)])
    assert starts[:, 1].mean() == pytest.approx(46, abs=1.5)
    assert np.diff(starts[:, 1:], axis=1).mean() == pytest.approx(60, abs=1.5)


def test_only_the_described_stream_oscillates() -> None:
    def early_share(generate: object) -> float:
        """Return the share of phase 2's tasks in its first half: the sine is above its mean."""
        shares = []
        for seed in range(20):
            workload = generate(seed)  # type: ignore[operator]
            begin, end = workload.phase_starts[2:]
            inside = workload.arrivals[workload.phases == 2]
            shares.append(np.mean(inside < (begin + end) / 2))
        return float(np.mean(shares))

    assert early_share(paper_described) == pytest.approx(0.5 + 0.5 / np.pi, abs=0.03)
    assert early_share(paper_measured) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_the_same_seed(name: str) -> None:
    generate = workload_named(name)
    assert np.array_equal(generate(1).arrivals, generate(1).arrivals)
    assert not np.array_equal(generate(1).arrivals[:50], generate(2).arrivals[:50])


def test_a_step_changes_the_rate_once() -> None:
    workload = step(1.0, 9.0, at=100.0, seconds=200.0)(0)
    before, after = np.bincount(workload.phases)
    assert 60 < before < 140
    assert 800 < after < 1000


def test_a_trace_is_replayed_unchanged() -> None:
    workload = replay([0.0, 1.0], [2.0, 3.0])(7)
    assert workload.arrivals.tolist() == [0.0, 1.0]
    assert workload.deadlines.tolist() == [4.0, 6.0]


def test_mismatched_or_unsorted_arrays_are_rejected() -> None:
    with pytest.raises(UsageError, match="must have the same length"):
        Workload(np.zeros(2), np.zeros(1), np.zeros(2))
    with pytest.raises(UsageError, match="must be sorted"):
        Workload(np.array([2.0, 1.0]), np.ones(2), np.ones(2))


def test_an_unknown_workload_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'papr'.*paper-measured"):
        workload_named("papr")
