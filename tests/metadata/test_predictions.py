"""Predictions are learnt from samples of similar size and the same resources, never optimistic."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal import Percentile, Resources, task
from shoal.metadata.predictions import (
    ENOUGH,
    LEAST,
    MOST,
    DefaultCosts,
    LearntPredictions,
)
from shoal.metadata.samples import Sample, Samples
from shoal.types import TaskId
from shoal.workflow import Workflow

SMALL, LARGE = Resources(1769), Resources(1769 * 4)
HALF = Resources(1769, 0.5)


@task(name="clean")
def clean(*_: Any) -> None: ...


WORKFLOW = Workflow.of(clean(clean(), clean()))
FIRST = TaskId("clean#0")


def execution(
    seconds: float,
    nbytes: int = 0,
    *,
    resources: Resources = SMALL,
    number: int = 0,
    cpu: float | None = None,
    output_nbytes: int = 0,
) -> Sample:
    used = seconds if cpu is None else cpu
    return Sample("execute", "clean", number, resources, nbytes, seconds, used, output_nbytes)


def other(kind: str, seconds: float, nbytes: int = 0, resources: Resources = SMALL) -> Sample:
    return Sample(kind, "", -1, resources, nbytes, seconds, 0.0, 0)


def learnt(*runs: list[Sample], fingerprint: str | None = None) -> LearntPredictions:
    """Learn from runs of this shape, the latest first."""
    shape = WORKFLOW.fingerprint() if fingerprint is None else fingerprint
    return LearntPredictions(WORKFLOW, [Samples(shape, list(run)) for run in runs], DefaultCosts())


def seconds_of(predictions: LearntPredictions, nbytes: int = 0, **options: Any) -> float:
    resources = options.get("resources", SMALL)
    return predictions.at(options.get("sla", "median")).execution(FIRST, nbytes, resources)


def test_without_history_defaults_are_used_and_labelled_as_such() -> None:
    costs = DefaultCosts()
    assert costs.basis == "no history"
    assert costs.at(Percentile(99)).execution(FIRST, 0, SMALL) > 0
    assert costs.startup(SMALL, warm=False) > costs.startup(SMALL, warm=True)
    assert costs.transfer("save", 10**9, SMALL) > costs.transfer("save", 10**6, SMALL)


def test_costs_without_samples_come_from_the_defaults() -> None:
    costs = learnt([execution(2.0)]).at("median")
    assert costs.startup(SMALL, warm=True) == DefaultCosts().startup(SMALL, warm=True)
    assert costs.execution(FIRST, 0, SMALL) == 2.0


def test_latency_that_is_added_for_experiments_is_part_of_the_defaults() -> None:
    assert DefaultCosts(latency=0.5).coordination() == DefaultCosts().coordination() + 0.5


def test_the_median_of_the_same_task_is_predicted() -> None:
    runs = [[execution(s), execution(100.0, number=1)] for s in (3.0, 5.0, 2.0, 4.0, 1.0)]
    assert seconds_of(learnt(*runs)) == pytest.approx(3.0, rel=0.2)


def test_the_latest_runs_count_most() -> None:
    runs = [[execution(s)] for s in (2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0)]
    assert seconds_of(learnt(*runs)) > 1.1


def test_a_task_with_few_samples_learns_from_tasks_of_its_name() -> None:
    runs = [[execution(1.0, number=1), execution(3.0, number=2)] for _ in range(5)]
    assert seconds_of(learnt(*runs)) == 2.0


def test_tasks_of_one_name_but_another_origin_teach_nothing() -> None:
    """Neither by name nor by position in a workflow of the same shape."""
    elsewhere = [execution(9.0)._replace(name="/other.py:clean") for _ in range(6)]
    assert seconds_of(learnt(elsewhere)) == DefaultCosts().execution(FIRST, 0, SMALL)
    assert seconds_of(learnt([execution(2.0)] * 3, elsewhere)) == 2.0


def test_task_numbers_of_another_shape_mean_other_tasks() -> None:
    runs = [[execution(1.0), execution(3.0, number=1)] for _ in range(5)]
    assert seconds_of(learnt(*runs, fingerprint="another")) == 2.0


def test_samples_of_the_same_resources_are_enough_if_there_are_enough() -> None:
    own = [execution(1.0, number=9) for _ in range(ENOUGH)]
    others = [execution(50.0, resources=LARGE, number=9) for _ in range(100)]
    assert seconds_of(learnt(own + others)) == 1.0


def test_with_too_few_samples_of_the_same_resources_others_count_too() -> None:
    own = [execution(1.0, number=9) for _ in range(ENOUGH - 1)]
    others = [execution(3.0, resources=LARGE, number=9) for _ in range(ENOUGH - 1)]
    assert seconds_of(learnt(own + others)) == 2.0


def test_half_a_cpu_doubles_computing_time_but_not_waiting_time() -> None:
    computing = learnt([execution(1.0) for _ in range(9)])
    waiting = learnt([execution(1.0, cpu=0.0) for _ in range(9)])
    assert seconds_of(computing, resources=HALF) == pytest.approx(2.0)
    assert seconds_of(waiting, resources=HALF) == pytest.approx(1.0)


def test_more_than_a_cpu_helps_only_a_task_that_uses_several() -> None:
    single = learnt([execution(1.0) for _ in range(9)])
    parallel = learnt([execution(1.0, cpu=1.9) for _ in range(9)])
    assert seconds_of(single, resources=LARGE) == pytest.approx(1.0)
    assert seconds_of(parallel, resources=LARGE) == pytest.approx(4**-0.3)


def test_a_start_is_not_predicted_slower_for_more_memory_without_evidence() -> None:
    costs = learnt([other("cold start", 0.2) for _ in range(9)]).at("median")
    assert costs.startup(LARGE, warm=False) == pytest.approx(0.2)


def test_starts_by_the_client_and_by_workers_are_predicted_separately() -> None:
    by_worker, by_client = other("warm start", 3.0), other("warm start", 1.0)._replace(name="first")
    costs = learnt([by_worker, by_client]).at("median")
    assert costs.startup(SMALL, warm=True) == 3.0
    assert costs.startup(SMALL, warm=True, first=True) == 1.0
    assert learnt([by_worker]).at("median").startup(SMALL, warm=True, first=True) == 3.0
    assert learnt([by_client]).at("median").startup(SMALL, warm=True) == 1.0


def test_a_start_beside_others_takes_longer_if_samples_say_so() -> None:
    """The second start took half a second longer in each run, whatever the run's pace."""
    runs = [
        [other("cold start", pace, 0), other("cold start", pace + 0.5, 1)] for pace in (1, 1, 3)
    ]
    costs = learnt(*runs).at("median")
    alone = costs.startup(SMALL, warm=False)
    assert 1 <= alone < 2
    assert costs.startup(SMALL, warm=False, beside=1) == pytest.approx(alone + 0.5)
    assert costs.startup(SMALL, warm=False, beside=31) == pytest.approx(alone + 0.5)


def test_a_start_beside_others_is_never_shorter() -> None:
    runs = [[other("warm start", 2.0, 0), other("warm start", 1.0, 1)] for _ in range(3)]
    costs = learnt(*runs).at("median")
    assert costs.startup(SMALL, warm=True, beside=1) == costs.startup(SMALL, warm=True)


def test_samples_near_the_requested_size_count() -> None:
    samples = [execution(n / 10, n, number=9) for n in range(10, 1000, 10)]
    predictions = learnt(samples)
    for nbytes in (100, 500, 900):
        assert seconds_of(predictions, nbytes) == pytest.approx(nbytes / 10, rel=0.05)


def test_outside_the_samples_the_cost_scales_with_the_size() -> None:
    known = [execution(1.0, nbytes, number=9) for nbytes in (10**9, 2 * 10**9) for _ in range(9)]
    predictions = learnt(known)
    assert seconds_of(predictions, 15 * 10**8) == 1.0
    assert seconds_of(predictions, 2 * 10**9 + 1) == pytest.approx(1.0)
    assert seconds_of(predictions, 2 * 10**10) == pytest.approx(10.0, rel=1e-3)
    assert seconds_of(predictions, 10**8) == pytest.approx(0.1, rel=1e-3)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_input_never_costs_less_if_all_samples_are_alike(one: int, two: int) -> None:
    predictions = learnt([execution(1.0, 10**6, number=9) for _ in range(9)])
    few, many = (seconds_of(predictions, nbytes) for nbytes in sorted((one, two)))
    assert 0 < few <= many


def test_a_window_is_balanced_between_smaller_and_larger_sizes() -> None:
    below = [execution(1.0, 990, number=9) for _ in range(3 * MOST)]
    above = [execution(3.0, 1010, number=9) for _ in range(MOST)]
    assert seconds_of(learnt(below + above), 1000) == pytest.approx(2.0)


def test_at_least_a_few_samples_count_however_distant() -> None:
    samples = [execution(float(n), 10**n, number=9) for n in range(1, 9)]
    values = learnt(samples).executions(FIRST, 10, SMALL)
    assert len(values) == LEAST


def test_sizes_of_outputs_are_learnt_like_times() -> None:
    samples = [execution(1.0, 10**6, number=9, output_nbytes=500_000) for _ in range(9)]
    costs = learnt(samples).at("median")
    assert costs.output_nbytes(FIRST, 10**6) == 500_000
    assert costs.output_nbytes(FIRST, 10**8) == pytest.approx(50_000_000, rel=0.01)


def test_a_transfer_larger_than_any_sample_takes_longer() -> None:
    costs = learnt([other("fetch", 0.01, 10**7) for _ in range(9)]).at("median")
    assert costs.transfer("fetch", 10**9, SMALL) == pytest.approx(1.0, rel=0.01)


runs_of_samples = st.lists(
    st.lists(
        st.tuples(
            st.floats(1e-4, 1e3),
            st.sampled_from([0, 1, 10, 1000, 1100, 10**6]),
            st.sampled_from([SMALL, LARGE, HALF]),
            st.floats(0, 2),
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=6,
)


@examples(300)
@given(
    runs_of_samples,
    st.lists(st.floats(1.0, 99.9), min_size=2, max_size=5),
    st.sampled_from([0, 5, 1000, 10**5, 10**8]),
    st.sampled_from([SMALL, LARGE, HALF]),
)
def test_a_higher_percentile_never_predicts_a_smaller_cost(
    runs: list[list[tuple[float, int, Resources, float]]],
    levels: list[float],
    nbytes: int,
    resources: Resources,
) -> None:
    blocks = [
        [
            sample
            for s, n, r, cpu in run
            for sample in (
                execution(s, n, resources=r, cpu=s * cpu, output_nbytes=n * 2),
                *(other(kind, s, n, r) for kind in ("fetch", "save")),
                *(other(kind, s, 0, r) for kind in ("cold start", "warm start", "deliver")),
                other("launch", s, n, r),
            )
        ]
        for run in runs
    ]
    predictions = learnt(*blocks)
    for lower, higher in pairwise(sorted(levels)):
        low, high = predictions.at(Percentile(lower)), predictions.at(Percentile(higher))
        assert low.execution(FIRST, nbytes, resources) <= high.execution(FIRST, nbytes, resources)
        assert low.output_nbytes(FIRST, nbytes) <= high.output_nbytes(FIRST, nbytes)
        for direction in ("fetch", "save"):
            slow = high.transfer(direction, nbytes, resources)
            assert low.transfer(direction, nbytes, resources) <= slow
        for warm in (True, False):
            assert low.startup(resources, warm=warm) <= high.startup(resources, warm=warm)
        assert low.coordination() <= high.coordination()
        assert low.launch() <= high.launch()


def test_drawn_costs_are_near_the_recorded_ones_and_determined_by_the_seed() -> None:
    predictions = learnt(*[[execution(s)] for s in (1.0, 2.0, 4.0)], fingerprint="another")
    drawn = [predictions.sampled(seed).execution(FIRST, 0, SMALL) for seed in range(200)]
    assert sum(0.5 < seconds < 8.0 for seconds in drawn) > 150
    assert len(set(drawn)) > 100
    again = [predictions.sampled(seed).execution(FIRST, 0, SMALL) for seed in range(200)]
    assert drawn == again


def test_a_zero_cost_is_drawn_as_zero() -> None:
    predictions = learnt([execution(1.0), other("deliver", 0.0)])
    assert predictions.sampled(0).coordination() == 0.0


def test_a_task_may_be_as_late_as_other_tasks_of_its_name() -> None:
    """One of 100 executions took three times as long, and it wasn't one of the first task's."""
    runs = [[execution(1.0 + n / 1000, number=n) for n in range(20)] for _ in range(5)]
    runs[2][7] = execution(3.0, number=7)
    predictions = learnt(*runs)
    drawn = [predictions.sampled(seed).execution(FIRST, 0, SMALL) for seed in range(2000)]
    late = sum(seconds > 2.5 for seconds in drawn) / len(drawn)
    assert 0.005 < late < 0.02
    assert median(drawn) == pytest.approx(1.0, rel=0.02)


def test_a_drawn_run_has_one_pace_for_all_tasks() -> None:
    """Half of the runs were twice as slow in everything, so a drawn run is slow in all or none."""
    runs = [[execution(1.0 * k), execution(10.0 * k, number=1)] for k in (1, 2) * 4]
    predictions = learnt(*runs)
    for seed in range(20):
        costs = predictions.sampled(seed)
        first = costs.execution(FIRST, 0, SMALL)
        second = costs.execution(TaskId("clean#1"), 0, SMALL)
        assert second == pytest.approx(10 * first)


def test_drawn_costs_have_the_recorded_median() -> None:
    predictions = learnt([execution(float(s), number=9) for s in range(1, 100)])
    drawn = [predictions.sampled(seed).execution(FIRST, 0, SMALL) for seed in range(400)]
    assert median(drawn) == pytest.approx(50, rel=0.2)


def test_after_a_few_runs_a_slower_one_is_still_expected() -> None:
    runs = [[execution(s)] for s in (1.0, 1.1, 0.9, 1.05, 0.95)]
    predictions = learnt(*runs)
    drawn = [predictions.sampled(seed).execution(FIRST, 0, SMALL) for seed in range(400)]
    slower = sum(seconds > 1.1 for seconds in drawn) / len(drawn)
    assert 0.05 < slower < 0.3
    assert median(drawn) == pytest.approx(1.0, rel=0.05)
