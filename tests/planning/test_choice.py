"""Which planner a call gets, by name or by goal."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

import pytest
from planning_examples import Table, conditions, fan, step, workflow

from shoal import AutoPlanner, Percentile, UniformPlanner
from shoal.errors import UsageError
from shoal.planning import choice
from shoal.planning.choice import GROUP, PLANNERS, Wanted, named_planner, planned
from shoal.planning.spread import SpreadPlanner


def planner(settings: str | None = None, **options: Any) -> Any:
    return Wanted.pop_from(options).planner(settings)


def plain() -> UniformPlanner:
    """A planner without parameters."""
    return UniformPlanner()


@pytest.mark.parametrize("name", PLANNERS)
def test_every_built_in_planner_accepts_a_service_level(name: str) -> None:
    assert planner(planner=name).sla == "median"
    assert planner(planner=name, sla=Percentile(95)).sla == Percentile(95)
    assert planner(name, sla=Percentile(95)).sla == Percentile(95)


def test_a_goal_applies_to_the_default_planner() -> None:
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
        with pytest.raises(UsageError, match=f"{name}= applies to the default planner"):
            planner(planner=UniformPlanner(), **goal)


def test_a_planner_without_service_levels_is_not_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PLANNERS", {"plain": f"{__name__}:plain"})
    assert isinstance(named_planner("plain"), UniformPlanner)
    with pytest.raises(UsageError, match="'plain' takes no sla"):
        named_planner("plain", Percentile(95))


@pytest.mark.parametrize("sla", [90, "90", "p90", None])
def test_a_calls_service_level_is_the_median_or_a_percentile(sla: Any) -> None:
    with pytest.raises(UsageError, match=rf"sla={sla!r}: give 'median' or Percentile\(90\)\."):
        planner(sla=sla)


@pytest.mark.parametrize("sla", [90, "90", None])
def test_a_planners_own_service_level_is_the_median_or_a_percentile(sla: Any) -> None:
    with pytest.raises(UsageError, match=rf"Theirs has sla={sla!r}: give 'median' or Percentile"):
        planned(workflow(step()), conditions(Table()), Theirs(sla))
    with pytest.raises(UsageError, match=r"SpreadPlanner\(sla=.*\): give 'median' or Percentile"):
        SpreadPlanner(sla=sla)


@pytest.mark.parametrize("options", [{"planner": ""}, {"settings": ""}])
def test_an_empty_name_is_no_planner(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="There is no planner ''; choose one of auto"):
        planner(**options)


@pytest.mark.parametrize(("prices", "unmet"), [("aws-lambda", True), ("none", False)])
def test_a_budget_uses_the_prices_in_force(prices: str, unmet: bool) -> None:
    flow, under = workflow(step()), replace(conditions(Table()), prices=prices)
    plan = planned(flow, under, Wanted(budget=1e-12).planner(None)).plan
    assert bool(plan.unmet) == unmet


def test_prices_that_do_not_exist_are_an_error() -> None:
    with pytest.raises(UsageError, match="no prices for 'azure'"):
        planned(workflow(step()), replace(conditions(Table()), prices="azure"), UniformPlanner())


def test_a_deadline_finds_the_plan_of_fewest_gb_seconds_where_nothing_is_charged() -> None:
    under = replace(conditions(Table(start=3.0)), prices="none")
    plan = planned(workflow(fan(6)), under, AutoPlanner(deadline=60, seconds=5)).plan
    assert len(plan.workers) == 1


class Theirs:
    """A third-party planner."""

    def __init__(self, sla: Any = "median") -> None:
        self.sla = sla

    def plan(self, workflow: Any, conditions: Any) -> Any:
        raise LookupError("no worker will do")


class Needy(Theirs):
    """A planner that can't be created without arguments."""

    def __init__(self, key: str) -> None: ...


INSTANCE = Theirs()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that registers a planner under the name `theirs`."""

    def register(value: str) -> None:
        point = importlib.metadata.EntryPoint("theirs", value, GROUP)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [point])

    return register


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere_at_all:One", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (f"{__name__}:Missing", "AttributeError: .* no attribute 'Missing'"),
        (f"{__name__}:Needy", "TypeError: .* missing 1 required positional argument: 'key'"),
        (__name__, "TypeError: 'module' object is not callable"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(
    registered: Any, value: str, reason: str
) -> None:
    registered(value)
    said = f"The planner 'theirs', registered as {value}, can't be used: {reason}"
    with pytest.raises(UsageError, match=said):
        named_planner("theirs")


def test_a_registered_planner_needs_a_plan_method(registered: Any) -> None:
    registered("builtins:object")
    with pytest.raises(
        UsageError, match=r"'theirs' is <object .*: a planner must have a method `plan`"
    ):
        named_planner("theirs")


def test_a_planner_may_be_registered_as_an_object(registered: Any) -> None:
    registered(f"{__name__}:INSTANCE")
    assert named_planner("theirs") is INSTANCE
    with pytest.raises(UsageError, match="'theirs' takes no sla"):
        named_planner("theirs", Percentile(95))


def test_an_error_inside_a_planner_names_the_planner() -> None:
    with pytest.raises(LookupError, match="no worker will do") as found:
        planned(workflow(step()), conditions(Table()), Theirs())
    assert found.value.__notes__ == [f"The planner Theirs of {__name__} raised this."]
