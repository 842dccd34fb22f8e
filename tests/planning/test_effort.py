"""A search is limited by its steps, whatever a clock says."""

from __future__ import annotations

from planning_examples import Table, chain, conditions, workflow

from shoal.planning.effort import STEPS_A_SECOND, Allowance, Effort
from shoal.planning.spread import SpreadPlanner


def seconds_of(effort: Effort, seconds: float) -> None:
    effort.add(seconds * STEPS_A_SECOND)


def test_an_allowance_is_spent_before_a_step_would_exceed_it() -> None:
    effort = Effort()
    allowance = Allowance(effort, 1.0)
    for _ in range(3):
        seconds_of(effort, 0.24)
        assert not allowance.spent
    seconds_of(effort, 0.1)
    assert allowance.spent


def test_a_skipped_step_does_not_count_as_typical() -> None:
    effort = Effort()
    allowance = Allowance(effort, 1.0)
    seconds_of(effort, 0.6)
    allowance.skip()
    assert not allowance.spent


def test_an_unlimited_allowance_is_never_spent() -> None:
    effort = Effort()
    allowance = Allowance(effort, None)
    seconds_of(effort, 1e9)
    assert not allowance.spent


def test_simulations_of_the_same_plan_count_the_same() -> None:
    costs, flow = Table(), workflow(chain(9))
    under = conditions(costs)
    plan = SpreadPlanner().plan(flow, under)
    under.simulate(plan, costs)
    once = under.effort.seconds
    under.makespan(plan, costs)
    assert under.effort.seconds == 2 * once > 0
