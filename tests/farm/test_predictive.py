"""Plans of the model-predictive autoscaler, and the states that they are made for."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.farm.model import Observation
from shoal.farm.predictive import MOST_WORKERS, PROGRESS, ModelPredictive, States
from shoal.farm.predictive_plan import Chain, late_tasks, planning_steps, train_predictive
from shoal.farm.training import Training
from shoal.farm.workloads import Workload, workload_of

SEEN = Observation(2, 3, 0, 400, 14, 1.6, 3.1, 7.5, 0.98, 11, 1)
CALM, BUSY = 40, 400


def rising(seed: int) -> Workload:
    """A stream that is calm for 40 s, then busy for 40 s."""
    rng = np.random.default_rng(seed)
    calm, busy = rng.random(CALM) * 40, 40 + rng.random(BUSY) * 40
    arrivals = np.sort(np.concatenate([calm, busy]))
    return workload_of(arrivals, np.full(len(arrivals), 1.0))


def chain(phase_clock: bool) -> Chain:
    made = Chain(States(phase_clock))
    for seed in range(6):
        workload = rising(seed)
        made.add(workload, late_tasks(workload, "fifo"))
    return made


def test_the_state_with_the_clock_is_the_progress_of_the_stream() -> None:
    states = States(True)
    assert states.next(0, 0.0) == 0
    assert states.next(3 * PROGRESS, 8.0) == states.next(4 * PROGRESS - 1, 1.0) == 3
    assert states.next(10**6, 1.0) == states.count - 1


def test_the_state_without_the_clock_depends_on_recent_arrivals_only() -> None:
    states = States(False)
    calm = [states.next(arrived, 2.0) for arrived in (16, 32, 10**6)]
    assert len(set(calm)) == 1
    assert states.next(0, 7.5) != calm[0]
    states.reset()
    assert states.next(0, 2.0) == calm[0]


def test_more_workers_make_fewer_tasks_late() -> None:
    late = late_tasks(rising(0), "fifo").sum(axis=1)
    assert late[0] > late[-1]
    assert np.all(np.diff(late) <= 0)


def test_a_plan_with_the_clock_grows_before_the_load_does() -> None:
    plan = chain(True).best_plan(price=100.0, change_price=3.0)
    before, after = (CALM - 8) // PROGRESS, (CALM + BUSY) // PROGRESS - 2
    assert plan[before, 8] == 1
    assert plan[after, 20] == -1


def test_a_plan_without_the_clock_does_the_same_at_the_same_rate() -> None:
    plan = chain(False).best_plan(price=100.0, change_price=3.0)
    states = States(False)
    for _ in range(8):
        busy = states.next(0, 10.0)
    assert plan[busy, 7] == 1


def test_a_higher_price_of_late_tasks_never_plans_for_fewer_workers() -> None:
    made = chain(True)
    cheap, dear = (made.best_plan(price, 3.0).astype(int).sum() for price in (5.0, 500.0))
    assert cheap < dear


def test_expensive_changes_are_avoided() -> None:
    plan = chain(True).best_plan(price=1.0, change_price=1e6)
    assert not plan[:, 5:23].any()


def test_a_decision_looks_the_plan_up() -> None:
    plan = np.zeros((States(True).count, MOST_WORKERS + 1), np.int8)
    plan[414 // PROGRESS, 15] = -1
    policy = ModelPredictive({"plan": plan}, {"phase_clock": True})
    assert policy.decide(SEEN) == -1
    assert policy.decide(SEEN._replace(changing=0)) == 0
    assert policy.decide(SEEN._replace(collected=500)) == 0


@pytest.mark.slow
def test_planning_is_deterministic_and_reports_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("_PRICES", (50, 90)), ("_CHANGE_PRICES", (10,)), ("_HELD_OUT", 5)):
        monkeypatch.setattr(f"shoal.farm.predictive_plan.{name}", fewer)
    training = Training(workloads=("poisson",), episodes=36, target=0.9)
    reports: list[int] = []
    first = train_predictive(training, lambda done, best: reports.append(done))
    assert reports == list(range(1, planning_steps(training) + 1))
    again = train_predictive(replace(training))
    assert np.array_equal(first.plan, again.plan)
    assert first.about["trained_episodes"] == 36
