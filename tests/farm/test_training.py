"""Training of autoscalers, and the search for better tables."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.farm.autoscalers import Fixed
from shoal.farm.episode import run_episode
from shoal.farm.learned import TABLE, Sarsa
from shoal.farm.sarsa import train_sarsa, train_table, training_steps
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.table_search import Streams, improve_table
from shoal.farm.training import Best, Performance, Training, judgement, turn, weighed
from shoal.farm.workloads import replay

SHORT = Training(workloads=("paper-measured",), episodes=60, every=20, held_out=2, patience=1000)


def test_training_is_deterministic_for_a_seed_and_reports_its_arguments() -> None:
    reports: list[int] = []
    first = train_table(SHORT, lambda episodes, best: reports.append(episodes))
    assert reports == [20, 40, 60]
    assert np.array_equal(first.table, train_table(SHORT).table)
    assert first.about["workloads"] == ("paper-measured",)
    assert first.about["trained_episodes"] == 60


def test_service_below_the_target_costs_more_than_workers() -> None:
    fifteen, three = judgement(SHORT, Fixed(15)), judgement(SHORT, Fixed(3))
    assert fifteen > three
    assert judgement(SHORT, Fixed(20)) > judgement(SHORT, Fixed(30))


def test_the_best_policy_is_kept_and_training_stops_without_improvement() -> None:
    training = Training(workloads=("paper-measured",), every=1, held_out=1, patience=2)
    best = Best(training, None)
    assert not best.is_final(1, Fixed(16), {"a": np.array([1.0])})
    assert not best.is_final(2, Fixed(3), {"a": np.array([2.0])})
    assert best.is_final(3, Fixed(3), {"a": np.array([3.0])})
    assert best.arrays["a"].tolist() == [1.0]


def test_training_streams_are_neither_held_out_nor_evaluated() -> None:
    seeds = {turn(Training(), episode)[1] for episode in range(10_000)}
    assert max(seeds) < 1_000_000


@pytest.mark.slow
def test_training_searches_for_a_better_table_and_reports_its_progress() -> None:
    training = replace(SHORT, workloads=("poisson",), episodes=10, every=10, target=0.9)
    assert training_steps(training) == 30
    assert training_steps(replace(training, phase_clock=False)) == 16
    reports: list[int] = []
    policy = train_sarsa(training, lambda steps, best: reports.append(steps))
    assert reports == [10, *range(11, 31)]
    fresh = range(1_000_002, 1_000_006)
    learned = train_table(training)
    assert judgement(training, policy, fresh) >= judgement(training, learned, fresh)
    assert policy.about["trained_episodes"] == 10


@pytest.mark.slow
def test_search_never_makes_a_table_worse_on_the_held_out_streams() -> None:
    policy = Sarsa({"table": np.zeros(TABLE)}, {"phase_clock": True})
    training = Training(workloads=("poisson",), held_out=4, target=0.9)
    better = improve_table(training, policy, moves=40)
    assert judgement(training, better) > judgement(training, policy)


@pytest.mark.slow
def test_search_is_the_same_for_the_same_seed() -> None:
    policy = Sarsa({"table": np.zeros(TABLE)}, {"phase_clock": True})
    training = Training(workloads=("poisson",), held_out=2, target=0.9)
    first, second = (improve_table(training, policy, moves=5) for _ in range(2))
    assert np.array_equal(first.table, second.table)


def test_search_scores_a_table_as_training_does_and_simulates_no_episode_twice() -> None:
    rng, training = np.random.default_rng(0), Training(target=0.9)
    streams = Streams(training, range(3))
    for _ in range(3):
        table = rng.random(TABLE)
        policy = Sarsa({"table": table}, {"phase_clock": True})
        judged = judgement(training, policy, range(3))
        assert streams.judgement(table, 3) == pytest.approx(judged)
        simulated = streams.met.total()
        assert streams.judgement(table, 3) == pytest.approx(judged)
        assert streams.met.total() == simulated


def test_a_policy_is_scored_by_its_worst_phase() -> None:
    training = Training(target=0.95, action_price=0.1)
    calm, busy = Performance(0.96, 10.0, 5.0), Performance(0.97, 12.0, 3.0)
    assert weighed(training, [calm, busy]) == pytest.approx(-12.3)
    assert weighed(training, [calm, busy._replace(service=0.94)]) == pytest.approx(-17.3)


def test_the_price_of_actions_breaks_ties_in_service() -> None:
    free, dear = (replace(SHORT, target=0.5, action_price=price) for price in (0.0, 1.0))
    still, moving = Fixed(12), Fixed(11)
    assert judgement(free, moving) > judgement(free, still)
    assert judgement(dear, moving) == pytest.approx(judgement(free, moving) - 1.0)
    assert judgement(dear, still) == pytest.approx(judgement(free, still))


def test_a_phase_is_scored_by_its_own_tasks_and_bounds() -> None:
    farm = SimulatedFarm(replay([0.0, 1.0], [1.0, 1.0])(0), workers=2)
    episode = run_episode(farm, Fixed(4), actions=(-4, 0, 4))
    assert episode.phase_qos == (1.0,) == (episode.qos,)
    assert episode.phase_workers == pytest.approx((episode.mean_workers,))
    assert (episode.actions, episode.no_ops) == (0, 1)
