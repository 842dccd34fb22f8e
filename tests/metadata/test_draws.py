"""Costs of a future run are drawn from the levels, paces and deviations of earlier runs."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from math import exp
from statistics import median

from shoal.metadata.draws import TASKS, Draws, Kin, Value
from shoal.types import Resources

RUNS = 5
SMALL = Resources(2048)
MESSAGE = Kin("deliver", "deliver", (0, None))


def of_task(number: int) -> Kin:
    return Kin(TASKS, "load", (number, SMALL))


def learnt(took: dict[Kin, list[float]]) -> tuple[Draws, dict[Kin, list[Value]]]:
    """Learn from runs in which each cost took so long."""
    draws = Draws()
    values: dict[Kin, list[Value]] = {}
    for kin, seconds in took.items():
        for number, each in enumerate(seconds):
            draws.add(number % RUNS, kin, each)
            values.setdefault(kin, []).append(Value(each, number % RUNS))
    return draws, values


def drawn(draws: Draws, values: dict[Kin, list[Value]], kin: Kin, runs: int = 200) -> list[float]:
    return [draws.of_run(seed).factor(values[kin], kin) for seed in range(runs)]


def noisy(level: float, deviation: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [level * exp(rng.gauss(0.0, deviation)) for _ in range(RUNS)]


def test_chance_differences_between_tasks_of_one_name_are_ignored() -> None:
    draws, values = learnt({of_task(n): noisy(1.0, 0.3, n) for n in range(20)})
    found = [median([each.amount for each in values[of_task(n)]]) for n in range(20)]
    believed = [median(drawn(draws, values, of_task(n))) for n in range(20)]
    assert max(found) / min(found) > 1.5
    assert max(believed) / min(believed) < 1.25


def test_tasks_of_one_name_that_really_differ_stay_apart() -> None:
    draws, values = learnt({of_task(n): noisy(1.0 + n, 0.05, n) for n in range(20)})
    for number in (0, 9, 19):
        assert abs(median(drawn(draws, values, of_task(number))) / (1.0 + number) - 1) < 0.08


def test_slow_runs_are_drawn_for_all_tasks_together() -> None:
    paces = [0.7, 0.85, 1.0, 1.2, 1.4]
    draws, values = learnt({of_task(n): list(paces) for n in range(20)})
    runs = [
        [draws.of_run(seed).factor(values[of_task(n)], of_task(n)) for n in (1, 2)]
        for seed in (0, 1)
    ]
    assert max(runs[0]) < min(runs[1]) or max(runs[1]) < min(runs[0])


def test_messages_are_not_slow_because_tasks_were() -> None:
    rng = random.Random(1)
    took = {of_task(n): [0.5, 0.8, 1.0, 1.3, 2.0] for n in range(20)}
    took[MESSAGE] = [0.03 * exp(rng.gauss(0.0, 0.05)) for _ in range(20 * RUNS)]
    draws, values = learnt(took)
    messages = drawn(draws, values, MESSAGE)
    assert max(messages) < 0.03 * 1.5
    tasks = drawn(draws, values, of_task(0))
    assert max(tasks) / min(tasks) > 3


def test_a_task_may_be_named_like_another_kind_of_cost() -> None:
    def named(number: int) -> Kin:
        return Kin(TASKS, MESSAGE.peers, (number, None))

    took = {named(n): noisy(1.0, 0.3, n) for n in range(20)}
    took |= {MESSAGE._replace(thing=(n, None)): noisy(0.001, 0.3, n) for n in range(20)}
    draws, values = learnt(took)
    for kin in (named(1), MESSAGE):
        drawn(draws, values, kin, 1)
    assert 0.7 < median(drawn(draws, values, named(0))) < 1.4


def test_concurrent_threads_get_the_same_answer() -> None:
    took = {of_task(n): noisy(1.0 + n, 0.3, n) for n in range(50)}
    alone = drawn(*learnt(took), of_task(7), 5)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            draws, values = learnt(took)
            with ThreadPoolExecutor(4) as threads:
                asked = [threads.submit(drawn, draws, values, of_task(7), 5) for _ in range(4)]
            assert [each.result() for each in asked] == [alone] * 4
    finally:
        sys.setswitchinterval(before)


def test_a_single_sample_is_drawn_unchanged() -> None:
    draws, values = learnt({of_task(0): [2.0]})
    assert set(drawn(draws, values, of_task(0), 10)) == {2.0}


def test_a_cost_that_was_always_zero_stays_zero() -> None:
    draws = Draws()
    assert draws.of_run(0).factor([Value(0.0, 0)], MESSAGE) == 0.0
