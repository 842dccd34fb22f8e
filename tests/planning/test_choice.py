"""Which planner a call gets, by name or by goal."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import AutoPlanner, Percentile, UniformPlanner
from shoal.errors import UsageError
from shoal.planning import choice
from shoal.planning.choice import PLANNERS, Wanted, named_planner


def planner(settings: str | None = None, **options: Any) -> Any:
    return Wanted.taken(options).planner(settings)


def plain() -> UniformPlanner:
    """A planner that takes nothing."""
    return UniformPlanner()


@pytest.mark.parametrize("name", PLANNERS)
def test_every_planner_of_ours_takes_a_service_level(name: str) -> None:
    assert planner(planner=name).sla == "median"
    assert planner(planner=name, sla=Percentile(95)).sla == Percentile(95)
    assert planner(name, sla=Percentile(95)).sla == Percentile(95)


def test_a_goal_is_for_the_default_planner() -> None:
    for found in (
        planner(deadline=3),
        planner("auto", deadline=3),
        planner(planner="auto", deadline=3),
    ):
        assert isinstance(found, AutoPlanner)
        assert found.deadline == 3
    for goal in ({"deadline": 3}, {"budget": 1}):
        (name,) = goal
        for options in ({"planner": "uniform"}, {"settings": "uniform"}):
            with pytest.raises(UsageError, match=f"'uniform' takes no {name}; 'auto' does"):
                planner(**options, **goal)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"{name}= is for the default planner"):
            planner(planner=UniformPlanner(), **goal)


def test_a_planner_without_service_levels_is_not_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PLANNERS", {"plain": f"{__name__}:plain"})
    assert isinstance(named_planner("plain"), UniformPlanner)
    with pytest.raises(UsageError, match="'plain' takes no sla"):
        named_planner("plain", Percentile(95))
