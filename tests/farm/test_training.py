from dataclasses import replace

import numpy as np
import pytest

from shoal.farm.autoscalers import Fixed
from shoal.farm.control import run_episode
from shoal.farm.learned import TABLE, Sarsa
from shoal.farm.polishing import Streams, polished
from shoal.farm.sarsa import train_sarsa
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.training import Best, Fared, Training, judgement, turn, weighed
from shoal.farm.workloads import replay

SHORT = Training(workloads=("paper-measured",), episodes=60, every=20, held_out=2, patience=1000)


def test_training_is_the_same_for_the_same_seed_and_says_what_it_was() -> None:
    reports: list[int] = []
    first = train_sarsa(SHORT, lambda episodes, best: reports.append(episodes))
    assert reports == [20, 40, 60]
    assert np.array_equal(first.table, train_sarsa(SHORT).table)
    assert first.about["workloads"] == ("paper-measured",)
    assert first.about["trained_episodes"] == 60


def test_service_below_the_target_weighs_more_than_workers() -> None:
    fifteen, three = judgement(SHORT, Fixed(15)), judgement(SHORT, Fixed(3))
    assert fifteen > three
    assert judgement(SHORT, Fixed(20)) > judgement(SHORT, Fixed(30))


def test_the_best_policy_is_kept_and_training_ends_without_a_better_one() -> None:
    training = Training(workloads=("paper-measured",), every=1, held_out=1, patience=2)
    best = Best(training, None)
    assert not best.is_final(1, Fixed(16), {"a": np.array([1.0])})
    assert not best.is_final(2, Fixed(3), {"a": np.array([2.0])})
    assert best.is_final(3, Fixed(3), {"a": np.array([3.0])})
    assert best.arrays["a"].tolist() == [1.0]


def test_no_stream_of_training_is_held_out_or_evaluated() -> None:
    seeds = {turn(Training(), episode)[1] for episode in range(10_000)}
    assert max(seeds) < 1_000_000


def test_polishing_never_makes_it_worse_on_the_held_out_streams() -> None:
    policy = Sarsa({"table": np.zeros(TABLE)}, {"phase_clock": True})
    training = Training(workloads=("poisson",), held_out=4, target=0.9)
    better = polished(training, policy, tries=40)
    assert judgement(training, better) > judgement(training, policy)


def test_polishing_is_the_same_for_the_same_seed() -> None:
    policy = Sarsa({"table": np.zeros(TABLE)}, {"phase_clock": True})
    training = Training(workloads=("poisson",), held_out=2, target=0.9)
    first, second = (polished(training, policy, tries=5) for _ in range(2))
    assert np.array_equal(first.table, second.table)


def test_polishing_judges_a_table_as_training_does_and_simulates_no_course_twice() -> None:
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


def test_a_policy_is_judged_where_it_needs_most() -> None:
    training = Training(target=0.95, action_price=0.1)
    calm, busy = Fared(0.96, 10.0, 5.0), Fared(0.97, 12.0, 3.0)
    assert weighed(training, [calm, busy]) == pytest.approx(-12.3)
    assert weighed(training, [calm, busy._replace(service=0.94)]) == pytest.approx(-17.3)


def test_the_price_of_an_action_decides_between_equal_services() -> None:
    free, dear = (replace(SHORT, target=0.5, action_price=price) for price in (0.0, 1.0))
    still, moving = Fixed(12), Fixed(11)
    assert judgement(free, moving) > judgement(free, still)
    assert judgement(dear, moving) == pytest.approx(judgement(free, moving) - 1.0)
    assert judgement(dear, still) == pytest.approx(judgement(free, still))


def test_a_phase_is_judged_by_its_own_tasks_and_bounds() -> None:
    farm = SimulatedFarm(replay([0.0, 1.0], [1.0, 1.0])(0), workers=2)
    episode = run_episode(farm, Fixed(4), actions=(-4, 0, 4))
    assert episode.phase_qos == (1.0,) == (episode.qos,)
    assert episode.phase_workers == pytest.approx((episode.mean_workers,))
    assert (episode.actions, episode.no_ops) == (0, 1)
