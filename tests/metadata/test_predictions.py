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
from shoal.metadata.features import values_of
from shoal.metadata.groups import ENOUGH
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.samples import About, Sample, Samples
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
    assert seconds_of(learnt(*runs, fingerprint="another")) == pytest.approx(2.0)


def test_samples_of_the_same_resources_are_enough_if_there_are_enough() -> None:
    own = [execution(1.0, number=9) for _ in range(ENOUGH)]
    others = [execution(50.0, resources=LARGE, number=9) for _ in range(100)]
    assert seconds_of(learnt(own + others)) == 1.0


def test_with_too_few_samples_of_the_same_resources_others_count_too() -> None:
    own = [execution(1.0, number=9) for _ in range(ENOUGH - 1)]
    others = [execution(3.0, resources=LARGE, number=9) for _ in range(ENOUGH - 1)]
    assert seconds_of(learnt(own + others)) == pytest.approx(2.0)


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


def test_samples_are_brought_to_the_asked_size() -> None:
    samples = [execution(n / 10, n * 10**4, number=n) for n in range(10, 1000, 10)]
    predictions = learnt(samples)
    for size in (10, 100, 500, 900, 2000):
        assert seconds_of(predictions, size * 10**4) == pytest.approx(size / 10, rel=0.05)


def test_the_cost_scales_with_the_size_until_samples_say_otherwise() -> None:
    known = learnt([execution(1.0, 10**9, number=9) for _ in range(9)])
    assert seconds_of(known, 10**9) == pytest.approx(1.0)
    assert seconds_of(known, 10**10) == pytest.approx(10.0, rel=1e-3)
    assert seconds_of(known, 10**8) == pytest.approx(0.1, rel=1e-3)
    sizes = (10**9, 2 * 10**9)
    known = learnt([execution(1.0, nbytes, number=9) for nbytes in sizes for _ in range(9)])
    assert seconds_of(known, 4 * 10**9) == pytest.approx(1.0, rel=0.05)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_input_never_costs_less_if_all_samples_are_alike(one: int, two: int) -> None:
    predictions = learnt([execution(1.0, 10**6, number=9) for _ in range(9)])
    few, many = (seconds_of(predictions, nbytes) for nbytes in sorted((one, two)))
    assert 0 < few <= many


def test_sizes_of_outputs_are_learnt_like_times() -> None:
    samples = [execution(1.0, 10**6, number=9, output_nbytes=500_000) for _ in range(9)]
    costs = learnt(samples).at("median")
    assert costs.output_nbytes(FIRST, 10**6) == 500_000
    assert costs.output_nbytes(FIRST, 10**8) == pytest.approx(50_000_000, rel=0.01)


def test_a_transfer_larger_than_any_sample_takes_longer() -> None:
    costs = learnt([other("fetch", 0.01, 10**7) for _ in range(9)]).at("median")
    assert costs.transfer("fetch", 10**9, SMALL) == pytest.approx(1.0, rel=0.01)


def calls_of(runs: list[Sample], *constants: Any, **sized: Any) -> LearntPredictions:
    """Learn from samples what a call of `clean` with these constants takes."""
    workflow = Workflow.of(clean(*constants, **sized))
    return LearntPredictions(workflow, [Samples("another", runs)], DefaultCosts())


def called(seconds: float, *constants: Any, output_nbytes: int = 0, **named: Any) -> Sample:
    """Return a sample of such a call."""
    (call,) = Workflow.of(clean(*constants, **named)).calls.values()
    sample = execution(seconds, number=0, output_nbytes=output_nbytes)
    return sample._replace(about=About((), 0, values_of(call)))


def test_numbers_among_the_arguments_count_by_value() -> None:
    runs = [called(n / 1000, n, output_nbytes=8 * n) for n in (100, 200, 400, 800)]
    for n in (50, 300, 3200):
        costs = calls_of(runs, n).at("median")
        assert costs.execution(FIRST, 0, SMALL) == pytest.approx(n / 1000, rel=0.1)
        assert costs.output_nbytes(FIRST, 0) == pytest.approx(8 * n, rel=0.1)


def test_numbers_that_do_not_matter_are_ignored() -> None:
    runs = [called(1.0 + (n * 7 % 10) / 100, seed=n, page=n % 3) for n in range(1, 30)]
    assert seconds_of(calls_of(runs, seed=12345, page=7)) == pytest.approx(1.0, rel=0.1)


def test_a_number_that_was_always_the_same_tells_nothing_about_one_that_is_far_from_it() -> None:
    runs = [called(1e-6, delay=0.0)] * 6
    assert seconds_of(calls_of(runs, delay=0.0)) == pytest.approx(1e-6)
    assert seconds_of(calls_of(runs, delay=0.05)) == DefaultCosts().execution(FIRST, 0, SMALL)
    simulations = [called(0.2, n=10**3)] * 6
    assert seconds_of(calls_of(simulations, n=10**6)) > 100
    assert seconds_of(calls_of(simulations, n=1001)) == pytest.approx(0.2)


def test_texts_among_the_arguments_are_told_apart_if_they_matter() -> None:
    runs = [called(s, how) for s, how in ((1.0, "fast"), (5.0, "slow")) for _ in range(6)]
    assert seconds_of(calls_of(runs, "fast")) == pytest.approx(1.0, rel=0.1)
    assert seconds_of(calls_of(runs, "slow")) == pytest.approx(5.0, rel=0.1)


def test_a_task_that_is_slow_for_its_size_stays_so_at_another_size() -> None:
    """In all runs each task has the same size, and every other one is three times as slow."""
    sizes = [10**6 * size for size in (3, 4, 8, 7, 2, 1, 6, 5)]
    run = [
        execution((1, 3)[n % 2] * nbytes / 10**6, nbytes, number=n)
        for n, nbytes in enumerate(sizes)
    ]
    predictions = learnt(*[run] * 6)
    for n, level in ((0, 1), (1, 3)):
        costs = predictions.at("median")
        took = costs.execution(TaskId(f"clean#{n}"), 2 * sizes[n], SMALL)
        assert took == pytest.approx(2 * level * sizes[n] / 10**6, rel=0.25)


def test_a_task_may_depend_on_one_of_its_inputs() -> None:
    """Its second input is much larger than the first, varies as much, and doesn't matter."""

    @task(name="search")
    def search(patterns: Any, text: Any) -> None: ...

    sizes = [(n, 10**6 * (1 + n * 7 % 10)) for n in range(1000, 9000, 500)]
    samples = [
        Sample("execute", "search", 2, SMALL, few + many, few / 1000, 1.0, 10,
               About((few, many), 2))
        for few, many in sizes
    ]  # fmt: skip
    made = [
        Sample("execute", "clean", number, SMALL, 0, 1.0, 1.0, nbytes)
        for number, nbytes in ((0, 4000), (1, 3 * 10**6)) for _ in range(3)
    ]  # fmt: skip
    workflow = Workflow.of(search(clean(), clean()))
    run = Samples(workflow.fingerprint(), samples + made)
    costs = LearntPredictions(workflow, [run], DefaultCosts()).at("median")
    took = costs.execution(TaskId("search#0"), 3_004_000, SMALL)
    assert took == pytest.approx(4.0, rel=0.2)


def test_transfers_of_different_kinds_of_values_are_learnt_apart() -> None:
    """The outputs of one task are mapped whatever their size, those of another are copied."""

    @task(name="arrays")
    def arrays() -> None: ...

    sizes = (10**6, 2 * 10**6, 4 * 10**6, 8 * 10**6) * 2
    samples = [
        other("fetch", seconds, nbytes)._replace(name=name)
        for nbytes in sizes
        for name, seconds in (("arrays", 0.002), ("clean", nbytes / 10**8))
    ]
    workflow = Workflow.of(clean(arrays()))
    costs = LearntPredictions(workflow, [Samples("another", samples)], DefaultCosts()).at("median")
    for nbytes in (10**6, 16 * 10**6):
        mapped = costs.transfer_of(TaskId("arrays#0"), "fetch", nbytes, SMALL)
        assert mapped == pytest.approx(0.002, rel=0.2)
        copied = costs.transfer_of(TaskId("clean#0"), "fetch", nbytes, SMALL)
        assert copied == pytest.approx(nbytes / 10**8, rel=0.2)


def test_a_drawn_run_has_one_pace_for_all_starts() -> None:
    """In every other run all starts took twice as long."""
    predictions = learnt(*[[other("cold start", float(k))] * 8 for k in (1, 2) * 4])
    drawn = [
        [costs.startup(SMALL, warm=False) for _ in range(8)]
        for costs in map(predictions.sampled, range(20))
    ]
    assert all(max(run) < 1.3 * min(run) for run in drawn)
    assert max(map(min, drawn)) > 1.5 * min(map(min, drawn))


def test_far_from_the_known_sizes_a_high_percentile_allows_for_doubt() -> None:
    runs = [[execution(s, 10**6, number=9)] for s in (0.95, 1.0, 1.05) * 3]
    predictions = learnt(*runs)

    def doubt(nbytes: int) -> float:
        high = seconds_of(predictions, nbytes, sla=Percentile(90))
        return high / seconds_of(predictions, nbytes)

    assert doubt(10**6) < 1.1
    assert doubt(4 * 10**6) > 1.5


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
